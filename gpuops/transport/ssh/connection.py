"""A connection by SSH to one target. A shell's start-up files may write before a program does: what comes before a
mark of ours is dropped."""

from __future__ import annotations

import io
import secrets
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from gpuops.core.errors import NodeError
from gpuops.transport.connection import Channel, Connection
from gpuops.transport.ssh import errors as faults
from gpuops.transport.ssh.pool import POOL, Login, Pool
from gpuops.transport.ssh.quoting import shell_line
from gpuops.transport.ssh.target import Target

NOISE_LIMIT = 1 << 20


class NoMark(Exception):
    """The program's own output never began; `seen` came instead."""

    def __init__(self, seen: bytes) -> None:
        super().__init__("no mark")
        self.seen = seen


def marked(argv: Sequence[str]) -> tuple[str, bytes]:
    """The line for the remote shell, and the mark that comes right before the program's first byte.

    In the line the mark stands in two pieces, so that a shell that prints what it is told does not print it.
    """
    first, second = secrets.token_hex(8), secrets.token_hex(8)
    # A word that begins with a dash would be an option of exec; then the shell stays as the program's parent.
    start = "" if argv and argv[0].startswith("-") else "exec "
    return f"printf '%s%s\\n' {first} {second}; {start}{shell_line(argv)}", f"{first}{second}\n".encode()


def skip(read: Callable[[int], bytes], mark: bytes) -> bytes:
    """Read up to the mark; what came after it. Raises NoMark at the end of the stream, or after a lot of noise."""
    seen = bytearray()
    while chunk := read(65536):
        searched = max(0, len(seen) - len(mark))
        seen += chunk
        at = seen.find(mark, searched)
        if at >= 0:
            return bytes(seen[at + len(mark) :])
        if len(seen) > NOISE_LIMIT:
            break
    raise NoMark(bytes(seen))


class Clean(io.RawIOBase):
    """A program's output without what came before it."""

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
    """A program on a node, its output without the shell's noise."""

    def __init__(self, program: Channel, rest: bytes) -> None:
        self.stdin = program.stdin
        self.stdout = cast(BinaryIO, Clean(program.stdout, rest))
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

    def open(self, argv: Sequence[str]) -> SshChannel:
        """Start `argv` on the host. Raises ConnectionLost, NodeError, UsageError."""
        line, mark = marked(argv)
        with self._lock:
            if self._login is None:
                self._login = self._pool.hold(self._target, self._folder)
            login = self._login
        program = login.start(line)
        try:
            channel = self._begin(login, program, mark)
        except faults.Refused:  # the login broke just then, and nothing was started
            channel = self._begin(login, login.start(line), mark)
        with self._lock:
            if self._login is login:
                self._channels = [*(known for known in self._channels if not known.closed), channel]
                return channel
        channel.close()  # the connection was closed meanwhile
        raise faults.ended(self._target.where)

    def _begin(self, login: Login, program: Channel, mark: bytes) -> SshChannel:
        """The program once its own output begins. Raises ConnectionLost, NodeError."""
        late = threading.Event()

        def end() -> None:
            late.set()
            program.close()

        limit = threading.Timer(self._pool.limits.noise_s, end)
        limit.daemon = True
        limit.start()
        try:
            return SshChannel(program, skip(program.stdout.read, mark))
        except (NoMark, OSError, ValueError) as error:
            seen = error.seen if isinstance(error, NoMark) else b""
            raise self._silent(login, program, seen, late.is_set()) from error
        finally:
            limit.cancel()

    def _silent(self, login: Login, program: Any, seen: bytes, late: bool) -> NodeError:
        """Why a program's output never began."""
        why = None if late else login.explain_failed_start(program)
        program.close()
        if why is not None:
            return why
        if late:
            say = f"has not started a program within {self._pool.limits.noise_s:.0f} s"
        elif len(seen) > NOISE_LIMIT:
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
