"""A stream to the next node: what is waited for, and what becomes of a connection that is given up."""

from __future__ import annotations

import os
import socket
import threading
from typing import Any

import pytest

from gpuops.agent.peers import stream_onward
from gpuops.agent.peers.stream_onward import QUEUE_BYTES, Onward

PIECE = bytes(1 << 20)


class Link(socket.socket):
    """Takes nothing; once it is ended, whoever is sending takes its time to notice."""

    def __init__(self) -> None:
        one, self.other = socket.socketpair()
        super().__init__(fileno=one.detach())
        self.may_end = threading.Event()
        self.is_sending = threading.Event()
        self.number = self.fileno()

    def sendall(self, _data: Any, _flags: int = 0) -> None:
        self.is_sending.set()
        assert self.may_end.wait(60)
        raise OSError("ended")


@pytest.fixture
def link() -> Link:
    return Link()


def test_a_connection_in_use_keeps_its_number(link: Link) -> None:
    """A file that were opened under it would be written to by whoever is still sending."""
    told: list[str] = []
    onward = Onward(link, told.append)
    onward.stall_s = 0.1
    for _ in range(QUEUE_BYTES // len(PIECE) + 1):
        onward.put(PIECE)
    assert link.is_sending.is_set()
    assert len(told) == 1
    assert told[0].startswith("it took 0.0 MB in ")
    onward.close()
    assert link.fileno() == link.number
    file = os.open(os.devnull, os.O_RDONLY)
    assert file != link.number
    os.close(file)
    assert link.other.recv(1) == b"", "the other side sees the end at once"
    link.may_end.set()
    onward.finish()
    assert link.fileno() == -1
    assert len(told) == 1


def test_everything_arrives_before_the_end() -> None:
    one, other = socket.socketpair()
    told: list[str] = []
    onward = Onward(one, told.append)
    got = bytearray()

    def read() -> None:
        while chunk := other.recv(1 << 16):
            got.extend(chunk)
        other.close()

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(2 * QUEUE_BYTES // len(PIECE)):
        onward.put(bytes([number]) * len(PIECE))
    onward.finish()
    reader.join(60)
    assert got == b"".join(bytes([number]) * len(PIECE) for number in range(2 * QUEUE_BYTES // len(PIECE)))
    assert not told


def test_a_node_that_is_slow_but_not_too_slow_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_onward, "MIN_BYTES_PER_S", 1.0)
    one, other = socket.socketpair()
    told: list[str] = []
    onward = Onward(one, told.append)
    onward.stall_s = 1.0

    def read() -> None:
        while other.recv(1 << 18):
            threading.Event().wait(0.05)
        other.close()

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(3 * QUEUE_BYTES // len(PIECE)):
        onward.put(PIECE)
    onward.finish()
    reader.join(60)
    assert not told
