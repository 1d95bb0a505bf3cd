"""An instance as a machine: namespaces of its own in a lab, systemd as its first process, its metadata service."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.fakes.aws import ami, player
from tests.fakes.aws.orders import Order, hostname, metadata
from tests.system.lab.first_process import FirstProcess, command_line, in_namespace
from tests.system.lab.net import ENVIRON, HANG_S, Place, host_commands, link_commands

if TYPE_CHECKING:
    from tests.fakes.aws.machines import Machines

FOLDER = Path(__file__).parent
IMDS = "169.254.169.254"
LOOK_S = 0.05


class Machine(Place):
    """`pid` is the number of its first process as this machine counts; 0 while it is down."""

    def __init__(self, machines: Machines, id: str, number: int) -> None:
        super().__init__(number)
        self.id = id
        self.boots = 0
        """How often it booted."""
        self.order: Order | None = None
        self._machines = machines
        self._notices: dict[str, Mapping[str, Any]] = {}
        self._door: tuple[Sequence[str], Sequence[str]] | None = None
        self._lock = threading.RLock()
        self._stopped = False
        self._first: FirstProcess | None = None
        self._errors_read = 0

    # ---- life

    def start(self, order: Order) -> None:
        """The first boot; player.Unplayable where its user data says something that is not known here."""
        config = player.read(order.user_data)
        with self._lock:
            if self._stopped:
                return
            self.order = order
            self._machines.lab.laptop.ip(f"route replace {self.public}/32 via {self.address}\n")
            for folder in ("upper", "work", "root", "groups"):
                (self.disk / folder).mkdir(parents=True)
            upper = self.disk / "upper"
            ami.lay(upper, hostname(self.address), self.address, order.torch, order.nvme)
            told = json.dumps({"config": config, "user": order.user, "mishap": order.mishap})
            (upper / ami.FOLDER / "play.json").write_text(told)
            if order.mishap == "dead":
                return
            self._boot()
        threading.Thread(target=self._watch, daemon=True).start()

    def _boot(self) -> None:
        (self.disk / "boot_id").write_text(f"{uuid.uuid4()}\n")
        self._tell()
        self._unplug()
        self._first = FirstProcess(self._argv())
        self.pid = self._first.pid
        self._machines.lab.laptop.ip(link_commands(self.number, self.pid))
        self.ip(f"{host_commands(self.number, 4, docker0=False)}addr add {IMDS}/32 dev lo\n")
        self._feed(["nft", "-f", "-"], public_rules(self.public, self.address))
        self.filter()
        self._start_imds()
        self._first.tell()
        self.boots += 1

    def _argv(self) -> list[str]:
        """A power-off ends the first process by SIGINT, a reboot by SIGHUP, which no one on the way may ignore."""
        return [
            "env", "--default-signal=INT,HUP",
            "nsenter", "--target", str(self._machines.lab.laptop.pid), "--mount", "--pid", "--",
            "unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child=SIGKILL", "--",
            "bash", str(FOLDER / "machine.sh"), str(self._machines.lab.folder / "disks" / self.id),
            hostname(self.address), f"{self._machines.group}/{self.id}", *dict.fromkeys([sys.base_prefix, sys.prefix]),
        ]  # fmt: skip

    def _start_imds(self) -> None:
        """In the instance's network, and among its processes, so that it ends with them."""
        subprocess.run(
            ["nsenter", "--target", str(self.pid), "--net", "--pid", "--",
             sys.executable, "-I", "-S", str(FOLDER / "imds.py"), str(self.disk / "imds.json")],
            cwd="/", env=ENVIRON, start_new_session=True, stdin=subprocess.DEVNULL, timeout=HANG_S, check=True,
        )  # fmt: skip

    def _watch(self) -> None:
        """Until it is stopped: what the system does with itself."""
        try:
            while (how := self._ended()) is None:
                self._machines.wait(LOOK_S)
                self._read_errors()
            if how == -signal.SIGINT:
                self._machines.powered_off(self.id)
            elif how:
                self._machines.complain(f"instance {self.id}: its first process ended with {how}")
        except (AssertionError, OSError, RuntimeError) as error:
            if not self._stopped and not self._machines.closed:
                self._machines.complain(f"instance {self.id}: {error!r}")

    def _ended(self) -> int | None:
        """None while it is up, as it is after a reboot too; 0 once it was stopped; else how its first process ended."""
        with self._lock:
            if self._stopped or self._machines.closed or not self._first:
                return 0
            how = self._first.status
            if how is None:
                return None
            self._forget()
            if how == -signal.SIGHUP:
                self._boot()
                return None
            return how

    def stop(self) -> None:
        """The cable first, so that nobody is told; then every process."""
        with self._lock:
            self._stopped = True
            if self._first:
                self._unplug()
            self._forget()

    def _forget(self) -> None:
        if self._first:
            self._first.kill()
        self._first = None
        self.pid = 0

    def _unplug(self) -> None:
        try:
            self._machines.lab.laptop.ip(f"link delete v{self.number}\n")
        except AssertionError:
            pass  # it went with its other end

    def _read_errors(self) -> None:
        """What failed of its user data since the last look."""
        try:
            lines = (self.disk / "upper" / ami.FOLDER / "errors").read_text().splitlines()
        except OSError:
            return
        for line in lines[self._errors_read :]:
            self._machines.complain(f"instance {self.id}: {line}")
        self._errors_read = len(lines)

    # ---- what reaches it

    def notice(self, kind: str, document: Mapping[str, Any] | None) -> None:
        with self._lock:
            self._notices.pop(kind, None)
            if document is not None:
                self._notices[kind] = document
            if self.order:
                self._tell()

    def _tell(self) -> None:
        assert self.order
        text = json.dumps(metadata(self.order, self.address, self.public, self._notices))
        (self.disk / "imds.new").write_text(text)
        os.replace(self.disk / "imds.new", self.disk / "imds.json")

    def firewall(self, cidrs: Sequence[str], members: Sequence[str]) -> None:
        with self._lock:
            self._door = (tuple(cidrs), tuple(members))
            self.filter()

    def filter(self) -> None:
        """The lab's cuts and blocks, and the security group's rules."""
        if not self.pid:
            return
        super().filter()
        if self._door:
            self._feed(["nft", "-f", "-"], door_rules(*self._door))

    # ---- inside

    @property
    def public(self) -> str:
        """The address by which the laptop reaches it, and no other instance."""
        return f"198.18.{self.number >> 8}.{self.number & 255}"

    @property
    def disk(self) -> Path:
        """As seen from this process."""
        return self._machines.lab.disks / self.id

    @property
    def root(self) -> Path:
        """Its files, as this process sees them."""
        return Path(f"/proc/{self.pid}/root")

    def run(self, argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command as its root to the end, past its sshd; of the environment it has nothing."""
        assert self.pid, f"instance {self.id} is down"
        inside = [
            "nsenter", "--target", str(self.pid), "--net", "--mount", "--pid", "--uts", "--ipc", "--cgroup", "--root",
            "--wd", "--", "env", "-i", "HOME=/root", "USER=root", "LANG=C.UTF-8", f"PATH={os.defpath}:/usr/sbin:/sbin",
        ]  # fmt: skip
        return subprocess.run([*inside, *argv], **{"capture_output": True, "text": True, "timeout": HANG_S, **options})

    def processes(self) -> list[str]:
        """Command lines of all that runs here, the first process too."""
        try:
            pids = in_namespace("pid", self.pid) if self.pid else []
        except FileNotFoundError:
            return []  # it ended meanwhile
        return [line for pid in pids if (line := command_line(pid))]


def public_rules(public: str, private: str) -> str:
    """As nft reads them: the instance itself does not know its public address."""
    return (
        "table ip public\ndelete table ip public\ntable ip public {\n"
        "chain incoming {\ntype nat hook prerouting priority dstnat\n"
        f"ip daddr {public} dnat to {private}\n}}\n}}\n"
    )


def door_rules(cidrs: Sequence[str], members: Sequence[str]) -> str:
    """As nft reads them: connections that are there go on, whatever becomes of the rules."""
    allowed = [f"ip saddr {{ {', '.join(members)} }} accept\n"] if members else []
    allowed += [f"ip saddr {cidr} tcp dport 22 accept\n" for cidr in cidrs]
    return (
        "table ip group\ndelete table ip group\ntable ip group {\n"
        "chain incoming {\ntype filter hook input priority 0\n"
        f'iifname "lo" accept\nct state established,related accept\n{"".join(allowed)}drop\n}}\n}}\n'
    )
