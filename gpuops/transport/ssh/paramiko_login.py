"""Logins by paramiko to one target: one transport as a rule, more where the server limits programs per login."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from gpuops.core.errors import NodeError
from gpuops.transport.ssh import errors, paramiko_transport
from gpuops.transport.ssh.channel import Program
from gpuops.transport.ssh.limits import Gate, Limits, Once
from gpuops.transport.ssh.paramiko_transport import LoginFull, LoginGone, OpenLogin, log_in
from gpuops.transport.ssh.quoting import encoded
from gpuops.transport.ssh.target import Target

if TYPE_CHECKING:
    import paramiko


class ParamikoLogin:
    """Thread-safe. A dead transport is replaced when the next program is started."""

    def __init__(self, target: Target, limits: Limits, gate: Gate) -> None:
        self.target = target
        self._limits = limits
        self._gate = gate
        self._open_logins: list[OpenLogin] = []
        self._running: list[Program] = []
        self._lock = threading.Lock()
        self._logging_in: Once[OpenLogin] = Once()

    def start(self, shell_command: str, early: bytes = b"") -> Program:
        """Start a shell command on the host. Raises ConnectionLost, Denied, HostKeyChanged, NodeError."""
        paramiko_transport.import_paramiko()
        import paramiko

        channel = self._open_channel()
        program = Program(channel, self.target.where)
        try:
            program.start(encoded(shell_command), self._limits.noise_s, early)
        except (paramiko.SSHException, EOFError, OSError) as error:
            program.close(self._limits.close_s)
            if program.connected:
                raise errors.noise(self.target.where, b"", "", "refused to start a program") from error
            raise errors.ended(self.target.where) from error
        with self._lock:
            self._running = [*(program for program in self._running if not program.closed), program]
        return program

    def _open_channel(self) -> paramiko.Channel:
        full: list[OpenLogin] = []
        for _ in range(2 * self._limits.logins):
            open_login = self._get_login(full)
            try:
                return open_login.open_channel()
            except LoginFull:
                full.append(open_login)
            except LoginGone:
                open_login.close()
        raise errors.ended(self.target.where)

    def _get_login(self, full: list[OpenLogin]) -> OpenLogin:
        """A live transport that is not in `full`; a new login where there is none."""
        return self._logging_in.get(lambda: self._find_login(full), lambda: self._log_in(full))

    def _find_login(self, full: list[OpenLogin]) -> OpenLogin | None:
        with self._lock:
            dead = [open_login for open_login in self._open_logins if not open_login.alive]
            self._open_logins = [open_login for open_login in self._open_logins if open_login.alive]
            free_login = next((open_login for open_login in self._open_logins if open_login not in full), None)
        for open_login in dead:
            open_login.close()
        return free_login

    def _log_in(self, full: list[OpenLogin]) -> OpenLogin:
        if len([open_login for open_login in full if open_login.alive]) >= self._limits.logins:
            raise errors.crowded(self.target.where)
        open_login = self._gate.start(self.target.address, lambda: log_in(self.target, self._limits))
        with self._lock:
            self._open_logins.append(open_login)
        return open_login

    def explain_failed_start(self, program: Program) -> NodeError | None:
        """The error for a program that never began; None where the far side's shell is to blame."""
        return None if program.connected else errors.ended(self.target.where)

    @property
    def busy(self) -> bool:
        with self._lock:
            return any(not program.closed for program in self._running)

    def tick(self, passed_s: float) -> None:
        with self._lock:
            open_logins = list(self._open_logins)
        for open_login in open_logins:
            open_login.tick(passed_s)

    def close(self) -> None:
        with self._lock:
            open_logins, self._open_logins = self._open_logins, []
            running, self._running = self._running, []
        for open_login in open_logins:
            open_login.close()
        for program in running:
            program.close(self._limits.close_s)
