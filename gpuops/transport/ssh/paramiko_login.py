"""Logins by paramiko to one target: one transport as a rule, more where the server limits programs per login."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from gpuops.core.errors import NodeError
from gpuops.transport.ssh import errors, login
from gpuops.transport.ssh.channel import Program
from gpuops.transport.ssh.limits import Gate, Limits, Once
from gpuops.transport.ssh.login import LoginFull, LoginGone, OpenLogin, log_in
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
        self._lines: list[OpenLogin] = []
        self._running: list[Program] = []
        self._lock = threading.Lock()
        self._logging_in: Once[OpenLogin] = Once()

    def start(self, line: str) -> Program:
        """Start a line on the host. Raises ConnectionLost, Denied, HostKeyChanged, NodeError."""
        login.import_paramiko()
        import paramiko

        channel = self._channel()
        program = Program(channel, self.target.where)
        limit = threading.Timer(self._limits.noise_s, channel.event.set)  # paramiko waits for the answer without end
        limit.daemon = True
        limit.start()
        try:
            program.start(encoded(line))
        except (paramiko.SSHException, EOFError, OSError) as error:
            program.close(self._limits.close_s)
            if program.connected:
                raise errors.noise(self.target.where, b"", "", "refused to start a program") from error
            raise errors.ended(self.target.where) from error
        finally:
            limit.cancel()
        with self._lock:
            self._running = [*(known for known in self._running if not known.closed), program]
        return program

    def _channel(self) -> paramiko.Channel:
        full: list[OpenLogin] = []
        for _ in range(2 * self._limits.logins):
            line = self._line(full)
            try:
                return line.session()
            except LoginFull:
                full.append(line)
            except LoginGone:
                line.close()
        raise errors.ended(self.target.where)

    def _line(self, full: list[OpenLogin]) -> OpenLogin:
        """A live transport that is not in `full`; a new login where there is none."""
        return self._logging_in.get(lambda: self._live(full), lambda: self._log_in(full))

    def _live(self, full: list[OpenLogin]) -> OpenLogin | None:
        with self._lock:
            dead = [line for line in self._lines if not line.alive]
            self._lines = [line for line in self._lines if line.alive]
            found = next((line for line in self._lines if line not in full), None)
        for line in dead:
            line.close()
        return found

    def _log_in(self, full: list[OpenLogin]) -> OpenLogin:
        if len([line for line in full if line.alive]) >= self._limits.logins:
            raise errors.crowded(self.target.where)
        line = self._gate.start(self.target.address, lambda: log_in(self.target, self._limits))
        with self._lock:
            self._lines.append(line)
        return line

    def broken(self, program: Program) -> NodeError | None:
        """Why a program never began; None where the far side's shell is to blame."""
        return None if program.connected else errors.ended(self.target.where)

    @property
    def busy(self) -> bool:
        with self._lock:
            return any(not program.closed for program in self._running)

    def tick(self, passed_s: float) -> None:
        with self._lock:
            lines = list(self._lines)
        for line in lines:
            line.tick(passed_s)

    def close(self) -> None:
        with self._lock:
            lines, self._lines = self._lines, []
            running, self._running = self._running, []
        for line in lines:
            line.close()
        for program in running:
            program.close(self._limits.close_s)
