"""The product on whole hosts: a user at the laptop, and counters on hosts whose every byte is compared."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.conftest import Shell, until
from tests.files import expire_lease
from tests.integration.cli.counting import Counting
from tests.system.lab.hosts import Host, Lab

SIDE = "/srv/side"


@dataclass
class Laptop(Shell):
    """`gpuops` typed in the lab's network."""

    lab: Lab = field(default=None)  # type: ignore[assignment]

    def up(self, *hosts: Host, name: str = "lab", more: tuple[str, ...] = ()) -> None:
        done = self.run("up", "ssh", "--name", name, *self.naming(*hosts), *more)
        assert done.returncode == 0, done.stderr

    def naming(self, *hosts: Host, user: str = "root") -> list[str]:
        """The options that name hosts."""
        options = ["--accept-new", "--identity", str(self.lab.identity)]
        for host in hosts:
            place = f"[{host.address}]" if ":" in host.address else host.address
            options += ["--host", f"{user}@{place}:{host.port}"]
        return options

    def expect_hosts_clean(self, *hosts: Host) -> None:
        """Nothing of ours is left on these hosts: no process, no file."""
        until(lambda: not any(host.processes() for host in hosts), f"no process: {[h.processes() for h in hosts]}")
        for host in hosts:
            assert [path for path in host.files("/root") if "gpuops" in path] == []


@dataclass
class HostCounting(Counting):
    """Counters on two hosts of a cluster that is up."""

    hosts: tuple[Host, Host] = field(default=None)  # type: ignore[assignment]
    cluster: str = "lab"

    def make_sides(self) -> None:
        for host in self.hosts:
            host.run(["mkdir", "-p", SIDE])

    def side_of(self, who: int) -> Path:
        return root(self.hosts[who]) / SIDE[1:]

    def node(self, index: int) -> Path:
        (folder,) = root(self.hosts[index]).glob(f"root/.gpuops-*/{self.cluster}/n{index}")
        return folder

    def kill(self, what: str, index: int, sign: int = signal.SIGKILL) -> None:
        done = self.hosts[index].run(["kill", f"-{int(sign)}", str(self.pid(what, index))])
        assert done.returncode == 0, done.stderr

    def kill_the_command(self) -> None:
        """As when the laptop is shut: the command is gone, and nobody says goodbye."""
        self.process.kill()
        self.process.wait()

    def concluded(self) -> dict[str, Any]:
        """The verdict, once the guard has brought everything home."""
        until(lambda: self.shell.run_states() == ["home"], "the guard's work")
        return self.verdict()

    def expect_nothing_left(self) -> None:
        """No process of the run is left on a host; the cluster itself stays."""
        for host in self.hosts:
            if host.pid:
                until(partial(_only_ours, host), f"nothing left on {host.name}, but: {host.processes()}")


Begin = Callable[..., HostCounting]


def _only_ours(host: Host) -> bool:
    return ours(host) <= {"watchdog", "agent"}


def root(host: Host) -> Path:
    """A host's files, as this test sees them."""
    return Path(f"/proc/{host.pid}/root")


def end_lease(host: Host) -> None:
    """A node's lease is over: at this moment, however long a busy machine took to come to it."""
    (lease,) = root(host).glob("root/.gpuops-*/*/n*/lease.json")
    assert json.loads(lease.read_text())["hard_wall"], "it has no end"
    expire_lease(lease)


def ours(host: Host) -> set[str]:
    """What runs on a host: the modes of our agent, or whole command lines."""
    found = set()
    for line in host.processes():
        words = line.split()
        mode = next((words[at + 1] for at, word in enumerate(words[:-1]) if word.endswith(".pyz")), line)
        found.add(mode)
    return found - {"connect"}
