"""Vast.ai in a lab: instances with namespaces and Vast.ai's own sshd, for the scenarios of rented.py."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from provisioners.kit.boot_watch import FOLDER, HOST_PUBLIC
from tests.conftest import until
from tests.fakes.vast import FakeVast, Instance
from tests.fakes.vast.container import VastContainer
from tests.fakes.vast.records import NEVER, UNREACHABLE
from tests.system.chaos.hits import Saboteur
from tests.system.chaos.tenant import Tenant
from tests.system.lab.available import why_no_lab
from tests.system.lab.laptop import Laptop
from tests.system.lab.rented import Boot, RentedCloud, RentedMachine

LIVES = {Boot.UNREACHABLE: UNREACHABLE, Boot.NEVER: NEVER}
HASTE = float("inf")
"""Many rent at once by one key, and none of them waits for another."""


class VastMachine(RentedMachine):
    watch_folder = FOLDER

    def __init__(self, fake: FakeVast, instance: Instance) -> None:
        body: Any = instance.body
        assert isinstance(body, VastContainer)
        self._fake = fake
        self.instance = instance
        self._container = body

    @property
    def place(self) -> VastContainer:
        return self._container

    @property
    def disk(self) -> Path:
        return self._container.disk / "upper"

    @property
    def root(self) -> Path:
        return self._container.root

    @property
    def bills(self) -> bool:
        self._fake.settle()
        return self.instance.bills

    @property
    def bill_ended(self) -> float:
        assert self.instance.ended
        return self.instance.ended

    @property
    def has_booted(self) -> bool:
        return self._container.up and self.run(["test", "-s", self.end_file]).returncode == 0

    @property
    def known_to_provider(self) -> str:
        return str(self.instance.request)

    @property
    def console(self) -> str:
        return "".join(line for _, _, line in self.instance.log)

    @property
    def first_host_key(self) -> str:
        return self.instance.env[HOST_PUBLIC]

    def run(self, argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return self._container.run(argv, **options)

    def processes(self) -> list[str]:
        return self._container.processes()

    def restart(self) -> None:
        """Its renter reboots it elsewhere."""
        before = self._container.starts
        with self._fake.service.lock:
            self._fake.service.reboot(self.instance)
        until(
            lambda: not self.bills or (self._container.starts > before and self._container.up),
            "its container starts again",
        )

    def end_boot_watch(self) -> None:
        self.run(["sh", "-c", f"kill -9 $(cat {self.watch_folder}/pid)"], check=True)


class RentedVast(RentedCloud):
    name = "vast"
    machine_flags = ()
    boot_lease = ("--max-cost", "0.006")
    node_lease = ("--max-hours", "0.014")
    revival_lease = ("--max-hours", "0.025")
    ends_without_service = False
    why_not = staticmethod(why_no_lab)
    fake: FakeVast

    def _start(self, folder: Path) -> FakeVast:
        fake = FakeVast(folder, lab=self.lab)
        fake.haste = HASTE
        return fake

    def _make_saboteur(self) -> Saboteur:
        return Saboteur(self.fake)

    def next_boot(self, boot: Boot) -> None:
        self.fake.life = LIVES[boot]

    def machines(self, tenant: Tenant) -> list[RentedMachine]:
        return [VastMachine(self.fake, one) for one in tenant.pods()]

    def lift_limits(self) -> None:
        self.fake.service.balance, self.fake.service.plenty = 10_000.0, True

    def what_bills(self) -> list[str]:
        return [one.name for one in self.fake.running()]

    def _tenant(self, shell: Laptop) -> Tenant:
        return Tenant(shell, self.fake, self._saboteur)
