"""AWS in a lab: instances with a systemd of their own, for the scenarios of rented.py."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioners.aws.boot_script import WATCH
from tests.conftest import until
from tests.fakes.aws import FakeAWS, Instance
from tests.fakes.aws.machine import Machine
from tests.system.chaos.ec2 import SaboteurAtAws, TenantOfAws
from tests.system.chaos.tenant import Tenant
from tests.system.lab.available import why_no_machines
from tests.system.lab.laptop import Laptop
from tests.system.lab.rented import Boot, RentedCloud, RentedMachine

SHUTDOWN_S = 20.0
"""A machine shuts down for so long, unbilled, and the guard of who is back sees it off."""
MISHAPS = {Boot.UNREACHABLE: "", Boot.NEVER: "dead", Boot.FAILS: "fails", Boot.HANGS: "hangs early"}


class AwsMachine(RentedMachine):
    watch_folder = WATCH

    def __init__(self, fake: FakeAWS, instance: Instance) -> None:
        assert fake.world.bodies
        self._fake = fake
        self._machines = fake.world.bodies.machines
        self.instance = instance
        self._machine: Machine = self._machines.machine(instance.id)

    @property
    def place(self) -> Machine:
        return self._machine

    @property
    def disk(self) -> Path:
        return self._machine.disk / "upper"

    @property
    def root(self) -> Path:
        return self._machine.root

    @property
    def bills(self) -> bool:
        self._fake.settle()
        return self.instance.lives

    @property
    def bill_ended(self) -> float:
        """When it began to shut down: from then on it costs nothing (EC2's description of the instance lifecycle)."""
        assert self.instance.ended
        return float(self.instance.ended - self._fake.ending_s)

    @property
    def has_booted(self) -> bool:
        return "stage final" in self._machines.console(self.instance.id)

    @property
    def known_to_provider(self) -> str:
        return f"{self.instance.user_data} {self.instance.tags}"

    @property
    def console(self) -> str:
        return str(self._machines.console(self.instance.id))

    @property
    def first_host_key(self) -> str:
        return self.instance.tags["gpuops:host-key"]

    def run(self, argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return self._machine.run(argv, **options)

    def processes(self) -> list[str]:
        return self._machine.processes()

    def restart(self) -> None:
        end = self.disk / self.end_file[1:]
        before = end.read_text()
        self._fake.reboot(self.instance.id)
        until(lambda: self._machine.boots == 2 or not self.bills, "a second boot")
        until(lambda: self._machines.console(self.instance.id).count("stage final") == 2 or not self.bills, "it boots")
        assert end.read_text() == before

    def end_boot_watch(self) -> None:
        self.run(["systemctl", "stop", "gpuops-end.timer", "gpuops-end.service"], check=True)


@dataclass
class AwsTenant(TenantOfAws):
    """One of several in an account."""

    def instances(self) -> list[Instance]:
        """All that there ever were."""
        everyones = list(self.fake.world.instances.values())
        return [instance for instance in everyones if instance.tags.get("gpuops:owner") == self.owner]

    def running(self) -> list[Any]:
        """What the whole account still has with their mark."""
        living = [instance for instance in self.fake.instances() if instance.tags.get("gpuops:owner") == self.owner]
        groups = [line for line in self.fake.left() if f"gpuops-{self.owner}-" in line]
        return [*map(str, living), *groups]

    def most_at_once(self) -> int:
        mine = self.instances()
        overlap = (
            sum(other.created <= instance.created < (other.ended or instance.created + 1) for other in mine)
            for instance in mine
        )
        return max(overlap, default=0)

    def expect_over(self, hang_s: float, pods_at_once: int = 1) -> None:
        Tenant.expect_over(self, hang_s, pods_at_once)  # the others' machines may go on


class RentedAws(RentedCloud):
    name = "aws"
    machine_flags = ("--gpus", "1", "--gpu-type", "t4")
    boot_lease = ("--max-cost", "0.0135")
    node_lease = ("--max-hours", "0.03")
    revival_lease = ("--max-hours", "0.036")
    ends_without_service = True
    why_not = staticmethod(why_no_machines)
    fake: FakeAWS

    def _start(self, folder: Path) -> FakeAWS:
        fake = FakeAWS(folder, lab=self.lab)
        fake.ending_s = SHUTDOWN_S
        return fake

    def _make_saboteur(self) -> SaboteurAtAws:
        return SaboteurAtAws(self.fake)

    def next_boot(self, boot: Boot) -> None:
        self.fake.mishaps[0] = MISHAPS[boot]

    def machines(self, tenant: Tenant) -> list[RentedMachine]:
        assert isinstance(tenant, AwsTenant)
        return [AwsMachine(self.fake, instance) for instance in tenant.instances()]

    def lift_limits(self) -> None:
        self.fake.ending_s = 0.1
        self.fake.dry_s = 0.0  # else a zone that took a machine back has none for anybody

    def what_bills(self) -> list[str]:
        return self.fake.left()

    def _tenant(self, shell: Laptop) -> Tenant:
        return AwsTenant(shell, self.fake, self._saboteur)
