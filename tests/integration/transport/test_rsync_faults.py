"""rsync here, and everything that may go wrong with it: a node that goes silent, ends that do not arrive, floods."""

from __future__ import annotations

import array
import io
import os
import socket
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuops.core.errors import ConnectionLost
from gpuops.transport import rsync, rsync_joint
from gpuops.transport.connection import Channel, ProcessChannel
from gpuops.transport.rsync import Rsync, RsyncFailed, Upload

SIGN_OF_LIFE = b"\0\0\0\x07"
"""An empty message of rsync's protocol."""


class Stalling:
    """A program whose node takes only so many bytes, and says from then on that it lives."""

    def __init__(self, argv: Sequence[str], takes: int) -> None:
        self.inner = ProcessChannel(argv)
        self.left = takes
        self.stalled, self.closed = threading.Event(), threading.Event()
        self.stdin: Any = SimpleNamespace(write=self.write, flush=lambda: None, close=self.inner.stdin.close)
        self.stdout: Any = SimpleNamespace(read=self.read)
        self.wait, self.errors = self.inner.wait, self.inner.errors

    def write(self, data: memoryview) -> int:
        if self.left <= 0:
            self.stalled.set()
            self.closed.wait()
            raise BrokenPipeError("closed")
        count = self.inner.stdin.write(data[: self.left]) or 0
        self.left -= count
        return count

    def read(self, count: int) -> bytes:
        if self.stalled.is_set():
            return b"" if self.closed.wait(0.02) else SIGN_OF_LIFE * 10_000
        return self.inner.stdout.read(count)

    def close(self) -> None:
        self.closed.set()
        self.inner.close()


def send(program: Rsync, here: Path, start: Any, silence_s: float = 600.0) -> None:
    (here / "file").write_bytes(os.urandom(2_000_000))
    upload = Upload(str(here), ["file"])
    rsync.send("node0", start, program, upload, lambda _: None, lambda _: None, silence_s)


def serve(there: Path) -> list[str]:
    return ["rsync", "--server", "-tIRe.LsfxCIvu", ".", str(there)]


@pytest.mark.parametrize("takes", [1000, 500_000])
def test_a_node_that_only_says_that_it_lives_is_unreachable(tmp_path: Path, takes: int) -> None:
    program = rsync.local_rsync()
    assert program
    channels: list[Stalling] = []

    def start(*_: str) -> Channel:
        channels.append(Stalling(serve(tmp_path / "there"), takes))
        return channels[0]

    with pytest.raises(ConnectionLost, match="has not moved for"):
        send(program, tmp_path, start, silence_s=1.0)
    assert channels[0].closed.is_set()


def test_a_transfer_that_is_held_back_from_here_is_not_silent() -> None:
    ended: list[int] = []
    with rsync_joint.watching(0.2, lambda: ended.append(1)) as watch:
        with watch.holding():
            threading.Event().wait(1.0)
        assert not watch.silent
        until = threading.Event()
        for _ in range(100):  # signs of life
            with watch.holding():
                watch.moved(4)
            if until.wait(0.05) or watch.silent:
                break
        assert watch.silent
    assert ended == [1]


def fake(folder: Path, script: str) -> Rsync:
    path = folder / "rsync"
    path.write_text(script)
    path.chmod(0o755)
    return Rsync(str(path), "3.9.9", has_zstd=False)


def never(*_: str) -> Channel:
    raise AssertionError("it never asked")


def test_an_rsync_that_cannot_be_started_is_no_traceback(tmp_path: Path) -> None:
    with pytest.raises(RsyncFailed, match="does not start"):
        send(Rsync("/nowhere/rsync", "3.9.9", has_zstd=False), tmp_path, never)


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "ended with 0"), (2, "another protocol"), (11, "could not read or write"), (12, "was cut off"),
     (23, "could not send every file"), (24, "removed meanwhile"), (30, "heard nothing"), (255, "ended with 255")],
)  # fmt: skip
def test_an_rsync_that_ends_before_it_asks_for_the_node_lets_the_stream_take_over(
    tmp_path: Path, code: int, words: str
) -> None:
    failing = fake(tmp_path, f"#!/bin/sh\necho 'a reason' >&2\nexit {code}\n")
    with pytest.raises(RsyncFailed, match=rf"{words}.*\(a reason\)"):
        send(failing, tmp_path, never)


def test_ends_that_do_not_arrive_are_no_deadlock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rsync, "END_S", 0.2)
    without = fake(
        tmp_path,
        "#!/usr/bin/env python3\nimport os, socket\n"
        "owner = socket.socket(fileno=int(os.environ['GPUOPS_RSYNC_OWNER']))\n"
        "owner.sendall(b'rsync\\0--server')\nowner.recv(1)\n",
    )
    with pytest.raises(RsyncFailed, match="does not ask for the node"):
        send(without, tmp_path, never)


def test_a_flood_of_output_is_bounded_and_no_traceback(tmp_path: Path) -> None:
    flooding = fake(
        tmp_path,
        "#!/usr/bin/env python3\nimport sys\n"
        "sys.stdout.write('9' * 5000 + ' 1%\\n' + '7' * 100 + ' 1%\\r' + '1' * 3_000_000)\n"
        "sys.stdout.flush()\nsys.stderr.write('e' * 3_000_000)\n",
    )
    process = subprocess.Popen([flooding.program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    counted: list[int] = []
    with rsync_joint.watching(600, process.kill) as watch:
        words = rsync._read_progress(process, counted.append, watch)
    process.wait()
    for stream in (process.stdout, process.stderr):
        assert stream
        stream.close()
    assert counted == []
    assert len(words) == 1 << 16


def test_a_name_that_cannot_be_written_ends_the_list_of_files() -> None:
    class Closed(io.BytesIO):
        was_closed = False

        def close(self) -> None:
            self.was_closed = True

    given = Closed()
    rsync._feed(SimpleNamespace(stdin=given), ["a", "\ud800", "b"])  # type: ignore[arg-type]
    assert (given.getvalue(), given.was_closed) == (b"./a\0", True)
    given = Closed()
    io.BytesIO.close(given)  # as after an interrupt
    rsync._feed(SimpleNamespace(stdin=given), ["a"])  # type: ignore[arg-type]


def test_both_ends_are_taken_and_no_child_inherits_them() -> None:
    ours, theirs = socket.socketpair()
    near, far = os.pipe()
    with ours, theirs:
        hand_over(theirs, [near, far])
        asked = rsync_joint.take_ends(ours)
        assert asked
        assert list(asked.arguments) == ["--server", "raw\udcff"]
        assert not os.get_inheritable(asked.to_node)
        assert not os.get_inheritable(asked.from_node)
        asked.close()
        for ends in ([], [near], [near, far, near, far]):
            hand_over(theirs, ends)
            before = len(os.listdir("/proc/self/fd"))
            assert rsync_joint.take_ends(ours) is None
            assert len(os.listdir("/proc/self/fd")) == before
        theirs.close()
        assert rsync_joint.take_ends(ours) is None
    os.close(near)
    os.close(far)


def hand_over(sender: socket.socket, ends: Sequence[int]) -> None:
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", ends))] if ends else []
    sender.sendmsg([b"rsync\0--server\0raw\xff"], ancillary)


@pytest.mark.parametrize(("protocol", "used"), [(31, False), (32, True)])
def test_an_rsync_that_a_node_could_harm_this_computer_through_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int, used: bool
) -> None:
    program = tmp_path / "rsync"
    program.write_text(f"#!/bin/sh\necho 'rsync  version 3.2.7  protocol version {protocol}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    rsync.local_rsync.cache_clear()
    try:
        assert (rsync.local_rsync() is not None) is used
    finally:
        rsync.local_rsync.cache_clear()
