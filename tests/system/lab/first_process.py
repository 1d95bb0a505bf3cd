"""A process at the head of a pid namespace, started from here: what it holds ends with it, and it ends with us."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.system.lab.net import ENVIRON, HANG_S


class FirstProcess:
    """`argv` leads to a first process that prints its number when it is ready and ends when its stdin does.

    Nothing else holds that pipe: when this process is killed, the kernel closes it.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        self._started = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env=ENVIRON,
            start_new_session=True,  # Ctrl-C is for the tests
        )
        try:
            self.pid = int(self._line())
            self._handle = os.pidfd_open(self.pid)
        except BaseException:
            self._started.kill()
            self._close()
            raise

    def _line(self) -> bytes:
        assert self._started.stdout
        with selectors.DefaultSelector() as selector:
            selector.register(self._started.stdout, selectors.EVENT_READ)
            ready = selector.select(HANG_S)
        line = self._started.stdout.readline() if ready else b""
        if not line.strip().isdigit():
            self._started.kill()
            _, errors = self._started.communicate(timeout=HANG_S)
            raise RuntimeError(f"no lab here: {errors.decode(errors='replace').strip() or 'no answer'}")
        return line

    def tell(self) -> None:
        """Send a line."""
        assert self._started.stdin
        self._started.stdin.write(b"\n")
        self._started.stdin.flush()

    @property
    def lives(self) -> bool:
        return self.status is None

    @property
    def status(self) -> int | None:
        """What it ended with: minus a signal's number where that ended it; None while it lives."""
        return self._started.poll()

    def kill(self) -> None:
        """End it, and so everything in its namespace; returns when all of that is gone."""
        if self.lives:
            try:
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self._started.wait(HANG_S)
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
        self._close()

    def _close(self) -> None:
        self._started.wait(HANG_S)
        for stream in (self._started.stdin, self._started.stdout, self._started.stderr):
            if stream:
                stream.close()


def until(condition: Callable[[], Any], what: Callable[[], str]) -> None:
    """Wait until it is true."""
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline, f"still not: {what()}"
        time.sleep(0.005)


def in_namespace(kind: str, pid: int) -> list[int]:
    """Every process in the same namespace of a kind (`net`, `pid`) as `pid`."""
    return members(kind, os.readlink(f"/proc/{pid}/ns/{kind}"))


def members(kind: str, namespace: str) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and os.readlink(f"/proc/{entry}/ns/{kind}") == namespace:
                found.append(int(entry))
        except OSError:
            continue  # ended meanwhile
    return found


def end_members(kind: str, namespace: str) -> None:
    """Kill what still stands in a namespace, until nothing does."""
    until(lambda: not _killed(members(kind, namespace)), lambda: f"ended: {members(kind, namespace)}")


def _killed(pids: list[int]) -> list[int]:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return pids


def program(pid: int) -> str:
    """The name of a process' program; "" for one that is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def parent(pid: int) -> int:
    """The process that started it, or has taken it over; 0 for one that is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def command_line(pid: int) -> str:
    """ "" for a process that is gone, or has ended and was not yet waited for."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
