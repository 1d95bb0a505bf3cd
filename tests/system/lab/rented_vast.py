"""Vast.ai in a lab: instances with namespaces and Vast.ai's own sshd, for the scenarios of rented.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.fakes.vast import FakeVast
from tests.fakes.vast.records import NEVER, UNREACHABLE
from tests.system.lab.rented import Boot
from tests.system.lab.rented_container import ContainerMachine, RentedContainers

LIVES = {Boot.UNREACHABLE: UNREACHABLE, Boot.NEVER: NEVER}
HASTE = float("inf")
"""Many rent at once by one key, and none of them waits for another."""


class VastMachine(ContainerMachine):
    @property
    def known_to_provider(self) -> str:
        return str(self.record.request)

    def _end_container(self) -> None:
        """Its renter reboots it elsewhere."""
        with self._fake.service.lock:
            self._fake.service.reboot(self.record)


class RentedVast(RentedContainers):
    name = "vast"
    lives = LIVES
    fake: FakeVast

    def _start(self, folder: Path) -> FakeVast:
        fake = FakeVast(folder, lab=self.lab)
        fake.haste = HASTE
        return fake

    def _machine(self, record: Any) -> VastMachine:
        return VastMachine(self.fake, record)

    def lift_limits(self) -> None:
        self.fake.service.balance, self.fake.service.plenty = 10_000.0, True
