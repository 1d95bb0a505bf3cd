"""One host of a lab: its life, a way in, and what is to be seen there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.system.lab import disk
from tests.system.lab.first_process import FirstProcess, command_line, in_namespace, parent, program, until
from tests.system.lab.net import HANG_S, Place, host_commands, link_commands

if TYPE_CHECKING:
    from tests.system.lab.hosts import Lab

FIRST = Path(__file__).with_name("first.sh")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Host(Place):
    """Made by Lab.host. `pid` is the number of its first process as this machine counts; 0 while it is down."""

    def __init__(self, lab: Lab, name: str, number: int, names: str, version: int, docker0: bool) -> None:
        super().__init__(number, version)
        self.name = name
        self.names = names
        self.hostname = disk.hostname(name, names)
        self.docker0 = docker0
        self.identity = lab.identity
        """The private key that logs in as root."""
        self.host_key = ""
        """The public line."""
        self.port = 22
        self.disk = lab.disks / name
        self.home = Path()
        self._lab = lab
        self._first: FirstProcess | None = None

    # ---- life

    def start(self) -> None:
        """Boot. A cut or a block from before still holds: it is the network's."""
        (self.disk / "boot_id").write_text(f"{uuid.uuid4()}\n")
        needed = dict.fromkeys([sys.base_prefix, sys.prefix])
        self._first = FirstProcess(
            ["nsenter", "--target", str(self._lab.laptop.pid), "--mount", "--pid", "--",
             "unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child=SIGKILL", "--",
             "bash", str(FIRST), str(self._lab.folder / "disks" / self.name), str(self.home), self.hostname, *needed]
        )  # fmt: skip
        self.pid = self._first.pid
        self._lab.laptop.ip(link_commands(self.number, self.pid))
        self.ip(host_commands(self.number, self.version, self.docker0))
        if self.cuts or self.blocks:
            self.filter()
        self.start_sshd()

    def vanish(self) -> None:
        """Be gone in this instant: the cable first, so that no connection is closed, then every process.

        Who calls the address hears nothing, or "no route to host" once its kernel has noticed that nobody has it; a
        cut before is silent for good.
        """
        if self._first and self._first.lives:
            self._lab.laptop.ip(f"link delete v{self.number}\n")
        self.forget()

    def forget(self) -> None:
        if self._first:
            self._first.kill()
        self._first = None
        self.pid = 0

    def reboot(self) -> None:
        """Vanish, and come back with the same disk, name and address, and another boot id."""
        self.vanish()
        self.start()

    # ---- inside

    @property
    def enter(self) -> list[str]:
        """What to write before a command that is to run in the host, as root."""
        assert self.pid, f"host {self.name} is down"
        return [
            "nsenter", "--target", str(self.pid), "--net", "--mount", "--pid", "--uts", "--ipc", "--root", "--wd", "--",
            "env", "-i", "HOME=/root", "USER=root", "LANG=C.UTF-8", f"PATH={PATH}",
        ]  # fmt: skip

    def run(self, argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command in the host to its end, past its sshd."""
        return subprocess.run(
            [*self.enter, *argv], **{"capture_output": True, "text": True, "timeout": HANG_S, **options}
        )

    def processes(self) -> list[str]:
        """Command lines of all that runs here, but the first process and sshd."""
        assert self.pid, f"host {self.name} is down"
        pids = [pid for pid in in_namespace("pid", self.pid) if pid != self.pid and not _is_sshd(pid)]
        return [line for pid in pids if (line := command_line(pid))]

    def files(self, path: str) -> list[str]:
        """All files under a folder, by their path in it; not what is mounted there."""
        mounts = [line.split()[1] for line in Path(f"/proc/{self.pid}/mounts").read_text().splitlines()]
        apart = [word for mount in mounts if mount != path for word in ("-path", mount, "-prune", "-o")]
        done = self.run(["find", path, *apart, "-not", "-type", "d", "-printf", r"%P\n"])
        return sorted(done.stdout.splitlines())

    def write(self, path: str, text: str) -> None:
        self.run(["tee", path], input=text, check=True)

    # ---- SSH

    @property
    def ssh(self) -> list[str]:
        """What to write before a line for this host's shell, to go there from the laptop."""
        return [
            *self._lab.enter, "ssh", "-F", "/dev/null", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes",
            "-o", f"UserKnownHostsFile={self._lab.known_hosts}", "-i", str(self.identity), "-p", str(self.port),
            f"root@{self.address}", "--",
        ]  # fmt: skip

    @property
    def known_hosts_line(self) -> str:
        place = self.address if self.port == 22 else f"[{self.address}]:{self.port}"
        return f"{place} {' '.join(self.host_key.split()[:2])}\n"

    @property
    def sshd_log(self) -> str:
        log = self.disk / "upper/var/log/sshd.log"
        return log.read_text() if log.exists() else ""

    def start_sshd(self) -> None:
        assert self._first, f"host {self.name} is down"
        self._first.tell()
        until(lambda: self._listener() and self._listens(), lambda: f"{self.name}: sshd listens: {self.sshd_log}")

    def stop_sshd(self) -> None:
        """End the sshd that listens; sessions go on."""
        listener = self._listener()
        if listener:
            os.kill(listener, signal.SIGKILL)
        # A process that ends has no command line for a moment in which its socket still listens.
        until(lambda: not self._listener() and not self._listens(), lambda: f"{self.name}: sshd ended")

    def kill_sessions(self) -> int:
        """End the processes of sshd that serve a connection, and nothing that was started over one; how many."""
        sessions = set(self._sshd()) - {self._listener()}
        for pid in sessions:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # its other half ended it
        until(lambda: sessions.isdisjoint(self._sshd()), lambda: f"{self.name}: sessions ended")
        return len(sessions)

    def _sshd(self) -> list[int]:
        return [pid for pid in in_namespace("pid", self.pid) if _is_sshd(pid) and command_line(pid)]

    def _listener(self) -> int | None:
        """The sshd that the first process started. A session that outlived its own comes back there too, renamed."""
        ours = (pid for pid in self._sshd() if parent(pid) == self.pid)
        return next((pid for pid in ours if "lab_config" in command_line(pid)), None)

    def _listens(self) -> bool:
        tables = [Path(f"/proc/{self.pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
        rows = [line.split() for line in "".join(tables).splitlines()]
        return any(row[1].endswith(f":{self.port:04X}") and row[3] == "0A" for row in rows)


def _is_sshd(pid: int) -> bool:
    return program(pid).startswith("sshd")
