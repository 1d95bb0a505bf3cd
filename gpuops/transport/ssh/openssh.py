"""Logins by the system's OpenSSH: one master per host, through which every program is started.

The master is shared by all processes of this user that mean the same target (the path of its socket says which),
and ends by itself some time after its last program. What is generated for `ssh` shields from the user's own
configuration: what of it counts is in the target already.
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

from filelock import FileLock, Timeout

from gpuops.core.errors import ConnectionLost, NodeError, UsageError
from gpuops.core.files import private_folder, write_private
from gpuops.core.platform import HERE, NULL_FILE, System
from gpuops.core.processes import end_apart, start_apart
from gpuops.transport.connection import ProcessChannel
from gpuops.transport.ssh import config_lines, keys
from gpuops.transport.ssh import errors as faults
from gpuops.transport.ssh.limits import Gate, Limits, Once
from gpuops.transport.ssh.quoting import encoded
from gpuops.transport.ssh.target import Target

ALIAS = "gpuops"
CONNECTION_LOST_CODE = 255
"""How `ssh` ends when the connection does, or never was."""
MASTER_IDLE_S = 60
"""How long a master lives without programs: the next command finds it, and nobody has to touch a key again."""


class SystemProgram(ProcessChannel):
    """A program through `ssh`, counted on the master it uses."""

    def __init__(self, argv: Sequence[str], slot: Master | None, where: str) -> None:
        super().__init__(argv)
        self._slot = slot
        self._where = where
        self._left = False

    def errors(self) -> str:
        said = super().errors()
        if (
            not said
            and self._process.poll() == CONNECTION_LOST_CODE
            and self._slot is not None
            and not self._slot.alive()
        ):
            return f"{faults.ended(self._where).say}\n"  # of a login that it shared `ssh` says nothing
        return said

    def close(self) -> None:
        super().close()
        if self._slot is not None and not self._left:
            self._left = True
            self._slot.leave()


class Master:
    """One master's socket, and how many programs of ours use it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.opening: Once[bool] = Once()
        self._programs = 0
        self._lock = threading.Lock()

    def enter(self, limit: int) -> bool:
        with self._lock:
            if self._programs >= limit:
                return False
            self._programs += 1
            return True

    def leave(self) -> None:
        with self._lock:
            self._programs -= 1

    def alive(self) -> bool:
        """Whether a master listens there."""
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
        self._slots = [Master(config_lines.control_path(folder, target, number)) for number in range(limits.logins)]
        self._config: Path | None = None
        self._lock = threading.Lock()
        self._running: list[SystemProgram] = []

    def start(self, line: str) -> SystemProgram:
        """Start a line on the host. Raises ConnectionLost, Denied, HostKeyChanged, NodeError, UsageError."""
        if not self.target.host_keys:
            raise faults.unpinned(self.target)
        argv = [ssh_program(), "-F", str(self._configured()), "-T", "-e", "none", "-o", "BatchMode=yes"]
        command = os.fsdecode(encoded(line))
        slot = next((slot for slot in self._shared() if slot.enter(self._limits.programs)), None)
        if slot is None:  # a login of its own
            program = SystemProgram([*argv, "-S", "none", ALIAS, command], None, self.target.where)
        else:
            try:
                slot.opening.get(lambda: slot.alive() or None, lambda: self._open_master(argv, slot))
                program = SystemProgram(
                    [*argv, "-o", "ControlMaster=no", "-S", str(slot.path), ALIAS, command], slot, self.target.where
                )
            except BaseException:
                slot.leave()
                raise
        with self._lock:
            self._running = [*(known for known in self._running if not known.closed), program]
        return program

    def _shared(self) -> list[Master]:
        if not HERE.shares_logins:
            return []
        if not HERE.fits_socket(str(self._slots[0].path)):
            raise UsageError(
                f"the folder {self._folder} has too long a name for the socket that `ssh` needs in it",
                "set GPUOPS_HOME to a shorter path",
            )
        return self._slots

    def _configured(self) -> Path:
        """The generated configuration of this target, written once."""
        with self._lock:
            if self._config is None or not self._config.exists():
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
                self._config = own / f"{name}.config"
            return self._config

    def _open_master(self, argv: Sequence[str], slot: Master) -> bool:
        """Log in, and leave the login in the background, unless another process of this user just did."""
        try:
            with FileLock(self._folder / "own" / f"{slot.path.name}.lock", timeout=self._limits.login_s, mode=0o600):
                if not slot.alive():
                    self._gate.start(self.target.address, lambda: self._log_in(argv, slot.path))
        except Timeout as error:
            raise ConnectionLost(
                f"another gpuops has been logging in to {self.target.where} for {self._limits.login_s:.0f} s",
                f"try it by hand: ssh {self.target.where}",
            ) from error
        return True

    def _log_in(self, argv: Sequence[str], path: Path) -> None:
        """Raises what `faults.from_openssh` says."""
        path.unlink(missing_ok=True)  # nobody listens there any more
        with tempfile.TemporaryFile() as words:
            process = start_apart(
                [*argv, "-o", "ControlMaster=yes", "-S", str(path), "-N", "-f", ALIAS],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=words,
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
                words.seek(0)
                raise self.explain(words.read().decode(errors="replace"))

    def explain(self, words: str) -> NodeError:
        """What `ssh` meant by its last words."""
        locked = [path for path in self.target.identities if keys.is_locked(path)]
        return faults.from_openssh(self.target, words, locked)

    def broken(self, program: SystemProgram) -> NodeError | None:
        """Why a program never began; None where the far side's shell is to blame."""
        try:
            code = program.wait(self._limits.close_s)
        except TimeoutError:
            return None
        return self.explain(program.errors()) if code == CONNECTION_LOST_CODE else None

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
    """Where `ssh` is. Raises UsageError."""
    found = shutil.which("ssh")
    if found is None:
        raise UsageError("this takes the program `ssh`, which is not installed here", system.install_ssh)
    return found


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
