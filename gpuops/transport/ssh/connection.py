"""The connection to one node over SSH, whichever kind of login carries it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from gpuops.core.errors import NodeError
from gpuops.transport.connection import Channel, Connection
from gpuops.transport.ssh import errors as faults
from gpuops.transport.ssh import noise
from gpuops.transport.ssh.pool import POOL, Login, Pool
from gpuops.transport.ssh.target import Target


class SshChannel:
    """A program on a node, its output without the shell's noise."""

    def __init__(self, program: Channel, rest: bytes) -> None:
        self.stdin = program.stdin
        self.stdout = cast(BinaryIO, noise.Clean(program.stdout, rest))
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
        line, mark = noise.marked(argv)
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
            return SshChannel(program, noise.skip(program.stdout.read, mark))
        except (noise.NoMark, OSError, ValueError) as error:
            seen = error.seen if isinstance(error, noise.NoMark) else b""
            raise self._silent(login, program, seen, late.is_set()) from error
        finally:
            limit.cancel()

    def _silent(self, login: Login, program: Any, seen: bytes, late: bool) -> NodeError:
        """Why a program's output never began."""
        why = None if late else login.broken(program)
        program.close()
        if why is not None:
            return why
        if late:
            say = f"has not started a program within {self._pool.limits.noise_s:.0f} s"
        elif len(seen) > noise.NOISE_LIMIT:
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
