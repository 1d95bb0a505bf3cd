"""Logins by the system's OpenSSH, for hosts that paramiko cannot log in to: programs share a few master connections.

All processes of this user with the same target share a master, whose socket's path is derived from the target. A
master ends by itself MASTER_IDLE_S after its last program. `ssh` reads a generated configuration instead of the
user's: the target already holds the options of that one.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from gpuops.core.errors import ConnectionLost, NodeError, UsageError
from gpuops.core.file_lock import LockTimeout, file_lock
from gpuops.core.files import private_folder, write_private
from gpuops.core.platform import HERE, NULL_FILE, System
from gpuops.core.processes import end_apart, start_apart
from gpuops.transport.connection import ProcessChannel, send_early
from gpuops.transport.ssh import config_lines, private_keys
from gpuops.transport.ssh import errors as faults
from gpuops.transport.ssh.limits import Gate, Limits, Once
from gpuops.transport.ssh.quoting import encoded
from gpuops.transport.ssh.target import Target

ALIAS = "gpuops"
MASTER_IDLE_S = 60
"""How long a master lives without programs: the next command uses it, without another touch of a security key."""


class SystemProgram(ProcessChannel):
    """A program run by `ssh`; counted on the master that it uses, until it is closed."""

    def __init__(self, argv: Sequence[str], master: Master | None, where: str) -> None:
        super().__init__(argv)
        self._master = master
        self._where = where
        self._is_released = False

    def errors(self) -> str:
        messages = super().errors()
        if (
            not messages
            and self._process.poll() == faults.CONNECTION_LOST_CODE
            and self._master is not None
            and not self._master.alive()
        ):
            return f"{faults.ended(self._where).message}\n"  # where its master ended, `ssh` prints nothing
        return messages

    def close(self) -> None:
        super().close()
        if self._master is not None and not self._is_released:
            self._is_released = True
            self._master.remove_program()


class Master:
    """One master's socket, and how many programs of ours use it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.opening: Once[bool] = Once()
        self._programs = 0
        self._lock = threading.Lock()

    def add_program(self, limit: int) -> bool:
        with self._lock:
            if self._programs >= limit:
                return False
            self._programs += 1
            return True

    def remove_program(self) -> None:
        with self._lock:
            self._programs -= 1

    def alive(self) -> bool:
        """Whether a master listens on the socket."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(2)
            try:
                sock.connect(str(self.path))
            except OSError:
                return False
            return True


class SystemLogin:
    """All logins to one target by the system's `ssh`."""

    def __init__(self, target: Target, folder: Path, limits: Limits, gate: Gate) -> None:
        self.target = target
        self._folder = folder
        self._limits = limits
        self._gate = gate
        self._masters = [Master(config_lines.control_path(folder, target, number)) for number in range(limits.logins)]
        self._config_path: Path | None = None
        self._lock = threading.Lock()
        self._running: list[SystemProgram] = []

    def start(self, shell_command: str, early: bytes = b"") -> SystemProgram:
        """Start a shell command on the host. Raises ConnectionLost, Denied, HostKeyChanged, NodeError, UsageError."""
        if not self.target.host_keys:
            raise faults.unpinned(self.target)
        argv = [ssh_program(), "-F", str(self._config_file()), "-T", "-e", "none", "-o", "BatchMode=yes"]
        command = os.fsdecode(encoded(shell_command))
        master = next((master for master in self._shared_masters() if master.add_program(self._limits.programs)), None)
        if master is None:  # a login of its own
            program = SystemProgram([*argv, "-S", "none", ALIAS, command], None, self.target.where)
        else:
            try:
                master.opening.get(lambda: master.alive() or None, lambda: self._open_master(argv, master))
                program = SystemProgram(
                    [*argv, "-o", "ControlMaster=no", "-S", str(master.path), ALIAS, command], master, self.target.where
                )
            except BaseException:
                master.remove_program()
                raise
        with self._lock:
            self._running = [*(program for program in self._running if not program.closed), program]
        send_early(program, early, self._limits.noise_s)
        return program

    def _shared_masters(self) -> list[Master]:
        if not HERE.shares_logins:
            return []
        if not HERE.fits_socket(str(self._masters[0].path)):
            raise UsageError(
                f"the folder {self._folder} has too long a name for the socket that `ssh` needs in it",
                "set GPUOPS_HOME to a shorter path",
            )
        return self._masters

    def _config_file(self) -> Path:
        """The generated configuration of this target, written once."""
        with self._lock:
            if self._config_path is None or not self._config_path.exists():
                private_folder(self._folder)
                private_folder(self._folder / "cm")
                own = private_folder(self._folder / "own")
                name = config_lines.mark(self.target)
                known = own / f"{name}.known_hosts"
                write_private(known, "\n".join([*config_lines.known_hosts_lines(ALIAS, self.target), ""]))
                lines = config_lines.host_lines(
                    ALIAS, self.target, known, None, MASTER_IDLE_S, max(1, round(self._limits.ping_s))
                )
                lines += ["  LogLevel ERROR", "  ClearAllForwardings yes", f"  ControlPersist {MASTER_IDLE_S}"]
                write_private(own / f"{name}.config", "\n".join([*lines, ""]))
                self._config_path = own / f"{name}.config"
            return self._config_path

    def _open_master(self, argv: Sequence[str], master: Master) -> bool:
        """Log in, and leave the login in the background, unless another process of this user just did."""
        try:
            with file_lock(self._folder / "own" / f"{master.path.name}.lock", self._limits.login_s):
                if not master.alive():
                    self._gate.start(self.target.address, lambda: self._log_in(argv, master.path))
        except LockTimeout as error:
            raise ConnectionLost(
                f"another gpuops has been logging in to {self.target.where} for {self._limits.login_s:.0f} s",
                f"try it by hand: ssh {self.target.where}",
            ) from error
        return True

    def _log_in(self, argv: Sequence[str], path: Path) -> None:
        """Start a master in the background. Raises ConnectionLost, and the errors of `faults.from_openssh`."""
        path.unlink(missing_ok=True)  # no master listens on it any more
        with tempfile.TemporaryFile() as error_file:
            process = start_apart(
                [*argv, "-o", "ControlMaster=yes", "-S", str(path), "-N", "-f", ALIAS],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=error_file,
            )
            try:
                code = process.wait(self._limits.login_s)
            except subprocess.TimeoutExpired as error:
                raise ConnectionLost(
                    f"logging in to {self.target.where} has not ended for {self._limits.login_s:.0f} s",
                    f"try it by hand: ssh {self.target.where}",
                ) from error
            finally:
                if process.poll() is None:
                    end_apart(process)
                    process.wait()
            if code != 0:
                error_file.seek(0)
                raise self.explain_failure(error_file.read().decode(errors="replace"))

    def explain_failure(self, messages: str) -> NodeError:
        """The error that the messages of `ssh` stand for."""
        locked = [path for path in self.target.identities if private_keys.is_locked(path)]
        return faults.from_openssh(self.target, messages, locked)

    def explain_failed_start(self, program: SystemProgram) -> NodeError | None:
        """The error for a program that never began; None where the far side's shell is to blame."""
        try:
            code = program.wait(self._limits.close_s)
        except TimeoutError:
            return None
        return self.explain_failure(program.errors()) if code == faults.CONNECTION_LOST_CODE else None

    @property
    def busy(self) -> bool:
        with self._lock:
            return any(not program.closed for program in self._running)

    def tick(self, passed_s: float) -> None:
        """Nothing to do: `ssh` asks the host itself whether it is there."""

    def close(self) -> None:
        """The master ends by itself; another process may be using it."""
        with self._lock:
            running, self._running = self._running, []
        for program in running:
            program.close()


def ssh_program(system: System = HERE) -> str:
    """The path of `ssh`. Raises UsageError where it is not installed."""
    path = shutil.which("ssh")
    if path is None:
        raise UsageError("this takes the program `ssh`, which is not installed here", system.install_ssh)
    return path


def end_master(path: Path) -> None:
    """End a master at once, with whatever uses it; never raises."""
    try:
        subprocess.run(
            [ssh_program(), "-F", NULL_FILE, "-S", str(path), "-O", "exit", ALIAS],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=5,
            check=False,
        )
    except (OSError, UsageError, subprocess.TimeoutExpired):
        pass  # it ends by itself a little later
