"""RunPod in a lab: pods with namespaces and an sshd of their own, for the scenarios of rented.py."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from provisioners.kit.boot_watch import FOLDER
from tests.conftest import until
from tests.fakes.runpod import FakeRunPod, Life, Pod
from tests.fakes.runpod.container import Container
from tests.fakes.runpod.faults import DEAF
from tests.system.chaos.hits import Saboteur
from tests.system.chaos.tenant import Tenant
from tests.system.lab.available import why_no_lab
from tests.system.lab.laptop import Laptop
from tests.system.lab.rented import Boot, RentedCloud, RentedMachine

LIVES = {Boot.UNREACHABLE: DEAF, Boot.NEVER: Life(pull_s=None)}


class RunpodMachine(RentedMachine):
    watch_folder = FOLDER

    def __init__(self, fake: FakeRunPod, pod: Pod) -> None:
        body: Any = pod.body
        assert isinstance(body, Container)
        self._fake = fake
        self.pod = pod
        self._container = body

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
        return self.pod.bills

    @property
    def bill_ended(self) -> float:
        assert self.pod.ended
        return self.pod.ended

    @property
    def has_booted(self) -> bool:
        return self._container.up and self.run(["test", "-s", self.end_file]).returncode == 0

    @property
    def known_to_provider(self) -> str:
        return f"{self.pod.env} {self.pod.args}"

    @property
    def console(self) -> str:
        return "".join(line for _, _, line in self.pod.log)

    @property
    def first_host_key(self) -> str:
        return self.pod.env["GPUOPS_HOST_PUBLIC"]

    def run(self, argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return self._container.run(argv, **options)

    def processes(self) -> list[str]:
        return self._container.processes()

    def restart(self) -> None:
        """Its container ends, and the service starts it again."""
        before, first = self._container.starts, self._container.pid
        assert first, "its end came first"
        os.kill(first, signal.SIGKILL)
        until(
            lambda: not self.bills or (self._container.starts > before and self._container.up),
            "its container starts again",
        )

    def end_boot_watch(self) -> None:
        self.run(["sh", "-c", f"kill -9 $(cat {self.watch_folder}/pid)"], check=True)


class RentedRunPod(RentedCloud):
    name = "runpod"
    machine_flags = ()
    boot_lease = ("--max-cost", "0.006")
    node_lease = ("--max-hours", "0.014")
    revival_lease = ("--max-hours", "0.025")
    ends_without_service = False
    why_not = staticmethod(why_no_lab)
    fake: FakeRunPod

    def _start(self, folder: Path) -> FakeRunPod:
        return FakeRunPod(folder, lab=self.lab)

    def _make_saboteur(self) -> Saboteur:
        return Saboteur(self.fake)

    def next_boot(self, boot: Boot) -> None:
        self.fake.life = LIVES[boot]

    def machines(self, tenant: Tenant) -> list[RentedMachine]:
        return [RunpodMachine(self.fake, pod) for pod in tenant.pods()]

    def lift_limits(self) -> None:
        self.fake.balance, self.fake.spend_limit = 10_000.0, 1000.0

    def what_bills(self) -> list[str]:
        return [pod.name for pod in self.fake.running()]

    def _tenant(self, shell: Laptop) -> Tenant:
        return Tenant(shell, self.fake, self._saboteur)
