"""Providers in a lab that rent containers with an sshd of their own, for the scenarios of rented.py: what RunPod's and
Vast.ai's have alike."""

from __future__ import annotations

import subprocess
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from provisioners.kit.container_boot import FOLDER, HOST_PUBLIC
from tests.conftest import until
from tests.fakes.runpod.container import Container
from tests.system.chaos.hits import Saboteur
from tests.system.chaos.tenant import Tenant
from tests.system.lab.available import why_no_lab
from tests.system.lab.laptop import Laptop
from tests.system.lab.rented import Boot, RentedCloud, RentedMachine


class ContainerMachine(RentedMachine):
    """record  the fake's own of this machine"""

    watch_folder = FOLDER

    def __init__(self, fake: Any, record: Any) -> None:
        assert isinstance(record.body, Container)
        self._fake = fake
        self.record = record
        self._container = record.body

    @property
    def place(self) -> Container:
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
        return bool(self.record.bills)

    @property
    def bill_ended(self) -> float:
        assert self.record.ended
        return float(self.record.ended)

    @property
    def has_booted(self) -> bool:
        return self._container.up and self.run(["test", "-s", self.end_file]).returncode == 0

    @property
    def console(self) -> str:
        return "".join(line for _, _, line in self.record.log)

    @property
    def first_host_key(self) -> str:
        return str(self.record.env[HOST_PUBLIC])

    def run(self, argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return self._container.run(argv, **options)

    def processes(self) -> list[str]:
        return self._container.processes()

    def restart(self) -> None:
        before = self._container.starts
        self._end_container()
        until(
            lambda: not self.bills or (self._container.starts > before and self._container.up),
            "its container starts again",
        )

    @abstractmethod
    def _end_container(self) -> None:
        """It is started again."""

    def end_boot_watch(self) -> None:
        self.run(["sh", "-c", f"kill -9 $(cat {self.watch_folder}/pid)"], check=True)


class RentedContainers(RentedCloud):
    machine_flags = ()
    boot_lease = ("--max-cost", "0.006")
    node_lease = ("--max-hours", "0.014")
    revival_lease = ("--max-hours", "0.025")
    ends_without_service = False
    why_not = staticmethod(why_no_lab)
    lives: ClassVar[Mapping[Boot, Any]]

    @abstractmethod
    def _machine(self, record: Any) -> ContainerMachine: ...

    def _make_saboteur(self) -> Saboteur:
        return Saboteur(self.fake)

    def next_boot(self, boot: Boot) -> None:
        self.fake.life = self.lives[boot]

    def machines(self, tenant: Tenant) -> list[RentedMachine]:
        return [self._machine(record) for record in tenant.pods()]

    def what_bills(self) -> list[str]:
        return [record.name for record in self.fake.running()]

    def _tenant(self, shell: Laptop) -> Tenant:
        return Tenant(shell, self.fake, self._saboteur)
