"""A connection by SSH to one target: starts programs on a login of the pool, and finds where their output begins.

A shell's start-up files may write before a program does. So each command line first prints a mark, a random line, and
what comes before it is dropped.
"""

from __future__ import annotations

import io
import secrets
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from gpuops.core.errors import NodeError
from gpuops.transport.connection import MAX_NOISE_BYTES, Channel, Connection, NoMark, read_to_mark
from gpuops.transport.deadlines import DEADLINES
from gpuops.transport.ssh import errors as faults
from gpuops.transport.ssh.pool import POOL, Login, Pool
from gpuops.transport.ssh.quoting import shell_line
from gpuops.transport.ssh.target import Target


def mark_output(argv: Sequence[str]) -> tuple[str, bytes]:
    """The line for the remote shell, and the mark that comes right before the program's first byte.

    The line has the mark in two pieces, so that a shell that prints its command lines does not print the mark.
    """
    first, second = secrets.token_hex(8), secrets.token_hex(8)
    # A word that begins with a dash would be an option of exec; then the shell stays as the program's parent.
    start = "" if argv and argv[0].startswith("-") else "exec "
    return f"printf '%s%s\\n' {first} {second}; {start}{shell_line(argv)}", f"{first}{second}\n".encode()


class OutputAfterMark(io.RawIOBase):
    """A program's output: `first`, which came with the mark, then the rest of the stream."""

    def __init__(self, stream: BinaryIO, first: bytes) -> None:
        self._stream = stream
        self._first = memoryview(first)

    def readable(self) -> bool:
        return True

    def read(self, count: int = -1) -> bytes:
        if count < 0:
            return self.readall()
        if self._first and not self.closed:
            piece, self._first = self._first[:count], self._first[count:]
            return bytes(piece)
        return self._stream.read(count)

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        super().close()
        self._stream.close()


class SshChannel:
    """A program on a node. `first`: the bytes of its output that came with the mark."""

    def __init__(self, program: Channel, first: bytes) -> None:
        self.stdin = program.stdin
        self.stdout = cast(BinaryIO, OutputAfterMark(program.stdout, first))
        self.closed = False
        self._program = program

    def wait(self, timeout: float | None = None) -> int:
        return self._program.wait(timeout)

    def errors(self) -> str:
        return self._program.errors()

    def close(self) -> None:
        self._program.close()
        self.closed = True


class SshConnection:
    """Programs on one host. Several connections to one host share its login."""

    def __init__(self, target: Target, label: str, folder: Path, pool: Pool) -> None:
        self.label = label
        self._target = target
        self._folder = folder
        self._pool = pool
        self._login: Login | None = None
        self._channels: list[SshChannel] = []
        self._lock = threading.Lock()

    def open(self, argv: Sequence[str], early: bytes = b"") -> SshChannel:
        """Start `argv` on the host. Raises ConnectionLost, NodeError, UsageError."""
        line, mark = mark_output(argv)
        with self._lock:
            if self._login is None:
                self._login = self._pool.hold(self._target, self._folder)
            login = self._login
        program = login.start(line, early)
        try:
            channel = self._await_mark(login, program, mark)
        except faults.Refused:  # the login broke just then, and nothing was started
            channel = self._await_mark(login, login.start(line, early), mark)
        with self._lock:
            if self._login is login:
                self._channels = [*(known for known in self._channels if not known.closed), channel]
                return channel
        channel.close()  # the connection was closed meanwhile
        raise faults.ended(self._target.where)

    def _await_mark(self, login: Login, program: Channel, mark: bytes) -> SshChannel:
        """Wait for the mark. Returns the program; raises ConnectionLost, NodeError."""
        late = threading.Event()

        def end() -> None:
            late.set()
            program.close()

        limit = DEADLINES.after(self._pool.limits.noise_s, end)
        try:
            return SshChannel(program, read_to_mark(program.stdout.read, mark))
        except (NoMark, OSError, ValueError) as error:
            seen = error.seen if isinstance(error, NoMark) else b""
            raise self._explain_no_mark(login, program, seen, late.is_set()) from error
        finally:
            limit.cancel()

    def _explain_no_mark(self, login: Login, program: Any, seen: bytes, late: bool) -> NodeError:
        """Why the mark did not come. `late`: the time was up."""
        why = None if late else login.explain_failed_start(program)
        program.close()
        if why is not None:
            return why
        if late:
            say = f"has not started a program within {self._pool.limits.noise_s:.0f} s"
        elif len(seen) > MAX_NOISE_BYTES:
            say = "does not stop talking before a program starts"
        else:
            say = "does not run programs for this user"
        return faults.noise(self._target.where, seen, program.errors(), say)

    def close(self) -> None:
        with self._lock:
            channels, self._channels = self._channels, []
            login, self._login = self._login, None
        for channel in channels:
            channel.close()
        if login is not None:
            self._pool.release(self._target, self._folder)


def connect(target: Target, label: str, folder: Path, pool: Pool = POOL) -> Connection:
    """A connection to the host, not yet opened. `folder` is ours alone: what `ssh` needs is written there."""
    return SshConnection(target, label, folder, pool)
