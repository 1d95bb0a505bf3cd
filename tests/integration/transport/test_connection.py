"""Streams of a program, used by one thread and closed by another."""

from __future__ import annotations

import io
import os
import sys
import threading

import pytest

from gpuops.transport.connection import Pipe, ProcessConnection
from tests.conftest import HANG_S


class Slow(io.RawIOBase):
    """A file whose reads and writes take until they are let go."""

    def __init__(self) -> None:
        self.inside = threading.Event()
        self.go_on = threading.Event()

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        return self._call(len(buffer))

    def write(self, data: bytes) -> int:  # type: ignore[override]
        return self._call(len(data))

    def _call(self, size: int) -> int:
        self.inside.set()
        assert self.go_on.wait(HANG_S)
        assert not self.closed, "its number was given away under a call"
        return size


@pytest.mark.parametrize("use", [lambda pipe: pipe.read(4), lambda pipe: pipe.write(b"four")])
def test_a_number_is_not_given_away_under_a_call(use: object) -> None:
    slow, errors = Slow(), []
    pipe = Pipe(slow)

    def work() -> None:
        try:
            use(pipe)  # type: ignore[operator]
        except AssertionError as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert slow.inside.wait(HANG_S)
    pipe.close()
    assert pipe.closed
    assert not slow.closed
    slow.go_on.set()
    thread.join(HANG_S)

    assert not errors
    assert slow.closed
    with pytest.raises(ValueError, match="closed"):
        use(pipe)  # type: ignore[operator]


def test_an_idle_pipe_is_closed_at_once() -> None:
    reading, writing = os.pipe()
    ours, theirs = Pipe(os.fdopen(writing, "wb", buffering=0)), os.fdopen(reading, "rb")
    assert ours.write(b"all") == 3
    ours.close()
    ours.close()
    assert theirs.read() == b"all"
    theirs.close()


def test_a_program_reads_and_says_all() -> None:
    channel = ProcessConnection("node0").open([sys.executable, "-c", "print(input()[::-1])"])
    channel.stdin.write(b"abc\n")
    channel.stdin.close()
    assert channel.stdout.read() == b"cba\n"
    assert channel.wait(HANG_S) == 0
    channel.close()
