"""A pod as a machine: namespaces of its own in a lab, an image's first process, ports that lead there from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.fakes.runpod.images import image, lay
from tests.fakes.runpod.podenv import environment, hostname, hosts_file
from tests.system.lab.first_process import FirstProcess, command_line, in_namespace
from tests.system.lab.net import HANG_S, Place, host_commands, link_commands

if TYPE_CHECKING:
    from tests.fakes.runpod.landscape import Landscape
    from tests.fakes.runpod.records import Pod

FOLDER = Path(__file__).parent
LOOK_S = 0.05
"""How often it is looked whether the container lives, and what it printed."""
PAUSES_S = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Before a container is started again, for one that ends again and again."""


class Container(Place):
    """The body of a pod. `pid` is the number of its first process as this machine counts; 0 while it is down."""

    def __init__(self, landscape: Landscape, pod: Pod, number: int) -> None:
        super().__init__(number)
        self.up = False
        self.starts = 0
        """How often a container was started."""
        self._landscape = landscape
        self._pod = pod
        self._lock = threading.RLock()
        self._boots = 0
        self._log_read = 0
        self._first: FirstProcess | None = None

    # ---- life: as Body has it

    def boot(self, wiped: bool) -> None:
        """Returns at once: `up` comes when the container is there."""
        self._boots += 1
        threading.Thread(target=self._keep, args=(self._boots, wiped), daemon=True).start()

    def halt(self) -> None:
        """The cable first, so that nobody is told; then every process."""
        with self._lock:
            self._boots += 1
            self._unplug()
            self._forget()
            self.up = False

    def _keep(self, boot: int, wiped: bool) -> None:
        """A container that ends is started again, on what it left on its disk, until the pod is halted."""
        try:
            if wiped or not self.disk.exists():
                self._lay()
            for pause in chain(PAUSES_S, repeat(PAUSES_S[-1])):
                if not self._start(boot):
                    return
                while self._alive(boot):
                    self._landscape.wait(LOOK_S)
                self._landscape.wait(pause)
        except (AssertionError, OSError, RuntimeError) as error:
            if boot == self._boots and not self._landscape.closed:
                self._landscape.complain(f"pod {self._pod.name}: {error!r}")

    def _alive(self, boot: int) -> bool:
        with self._lock:  # the thread of another boot may read as well
            self._read_log()
            if boot != self._boots:
                return False
            if self._first and self._first.lives:
                return True
            self._forget()
            return False

    def _start(self, boot: int) -> bool:
        with self._lock:
            if boot != self._boots or self._landscape.closed:
                return False
            self._unplug()
            self._first = FirstProcess(self._argv())
            self.pid = self._first.pid
            self._plug()
            self._first.tell()
            self.up = True
            self.starts += 1
            return True

    def _forget(self) -> None:
        if self._first:
            self._first.kill()
        self._first = None
        self.pid = 0

    # ---- what it is made of

    @property
    def disk(self) -> Path:
        """As seen from this process."""
        return self._landscape.disks / self._pod.id

    def _lay(self) -> None:
        """An empty container disk: the former one is put aside, since its last mount may still be there."""
        if self.disk.exists():
            self.disk.rename(self.disk.with_name(f"{self._pod.id}.{self._boots}"))
        self._log_read = 0
        for folder in ("upper", "work", "root"):
            (self.disk / folder).mkdir(parents=True)
        lay(self.disk / "upper", image(self._pod.request["image"]), hostname(self._pod), hosts_file(self._pod))

    def _argv(self) -> list[str]:
        pod = self._pod
        (self.disk / "start.json").write_text(json.dumps(self._first_process()))
        volume = str(self._landscape.volume(pod.volume["volumeId"])) if pod.volume else ""
        return [
            "nsenter", "--target", str(self._landscape.lab.laptop.pid), "--mount", "--pid", "--",
            "unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child=SIGKILL", "--",
            "bash", str(FOLDER / "container.sh"), str(self._landscape.inside / pod.id), hostname(pod),
            volume, pod.volume["path"] if pod.volume else "",
            str(FOLDER / "enter.py"), os.path.realpath(sys.executable),
            *dict.fromkeys([sys.base_prefix, sys.prefix]),
        ]  # fmt: skip

    def _first_process(self) -> dict[str, Any]:
        """What enter.py is told."""
        chosen = image(self._pod.request["image"])
        user = int(self._pod.env.get("RUNPOD_POD_USER", chosen.user))
        env = environment(self._pod, chosen)
        return {"env": env, "argv": chosen.argv(self._pod.args), "folder": "/workspace", "user": user}

    def _plug(self) -> None:
        self._landscape.lab.laptop.ip(link_commands(self.number, self.pid))
        self.ip(host_commands(self.number, 4, docker0=False))
        self._feed(["nft", "-f", "-"], self._port_rules())
        if self._pod.cluster:
            self._landscape.join(self._pod.cluster, self.number, self.pid)
            self.ip(f"addr add {self._pod.ip}/16 dev ens1\nlink set ens1 up\n")
        if self.cuts or self.blocks:
            self.filter()

    def _unplug(self) -> None:
        for name in (f"v{self.number}", f"e{self.number}"):
            try:
                self._landscape.lab.laptop.ip(f"link delete {name}\n")
            except AssertionError:
                continue  # it went with its other end

    def _port_rules(self) -> str:
        """What was asked to be open is mapped; nothing else is reachable, and nothing at all from another pod."""
        mapped = []
        for port in self._landscape.fake.ports_of(self._pod):
            private = 1 if self._pod.life.deaf else port["private"]  # nothing listens there
            mapped.append(f"tcp dport {port['public']} redirect to :{private}\n")
        return (
            "table ip pod {\n"
            f"chain mapped {{\ntype nat hook prerouting priority -100\n{''.join(mapped)}}}\n"
            "chain incoming {\ntype filter hook input priority 0\n"
            f'iifname "eth0" ip saddr {self._landscape.pods_network} ct state new drop\n'
            'iifname "eth0" meta l4proto { tcp, udp } ct state new ct status & dnat == 0 drop\n}\n}\n'
        )

    def _read_log(self) -> None:
        """What the container printed since the last look, by whole lines."""
        try:
            with (self.disk / "log").open("rb") as log:
                log.seek(self._log_read)
                lines = log.read().splitlines(keepends=True)
        except OSError:
            return  # it printed nothing yet
        for line in lines:
            if line.endswith(b"\n"):
                self._log_read += len(line)
                self._pod.say(self._landscape.fake.clock.now(), line.decode(errors="replace").rstrip(), "container")

    # ---- inside

    @property
    def root(self) -> Path:
        """The container's files, as this process sees them."""
        return Path(f"/proc/{self.pid}/root")

    @property
    def first_environment(self) -> dict[str, str]:
        """/proc/1/environ."""
        entries = Path(f"/proc/{self.pid}/environ").read_bytes().decode().split("\0")
        return dict(entry.split("=", 1) for entry in entries if entry)

    def run(self, argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command in the container to its end, past its sshd; of the environment it has nothing."""
        assert self.pid, f"pod {self._pod.name} is down"
        inside = [
            "nsenter", "--target", str(self.pid), "--net", "--mount", "--pid", "--uts", "--ipc", "--root", "--wd", "--",
            "env", "-i", "HOME=/root", "USER=root", "LANG=C.UTF-8", f"PATH={os.defpath}:/usr/sbin:/sbin",
        ]  # fmt: skip
        return subprocess.run([*inside, *argv], **{"capture_output": True, "text": True, "timeout": HANG_S, **options})

    def processes(self) -> list[str]:
        """Command lines of all that runs here, the first process too."""
        try:
            pids = in_namespace("pid", self.pid) if self.pid else []
        except FileNotFoundError:
            return []  # it ended meanwhile
        return [line for pid in pids if (line := command_line(pid))]
