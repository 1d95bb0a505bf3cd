"""RunPod in a lab: pods with namespaces and an sshd of their own, for the scenarios of rented.py."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from tests.fakes.runpod import FakeRunPod, Life
from tests.fakes.runpod.faults import DEAF
from tests.system.lab.rented import Boot
from tests.system.lab.rented_container import ContainerMachine, RentedContainers

LIVES = {Boot.UNREACHABLE: DEAF, Boot.NEVER: Life(pull_s=None)}


class RunpodMachine(ContainerMachine):
    @property
    def known_to_provider(self) -> str:
        return f"{self.record.env} {self.record.args}"

    def _end_container(self) -> None:
        """The service starts it again."""
        assert self._container.pid, "its end came first"
        os.kill(self._container.pid, signal.SIGKILL)


class RentedRunPod(RentedContainers):
    name = "runpod"
    lives = LIVES
    fake: FakeRunPod

    def _start(self, folder: Path) -> FakeRunPod:
        return FakeRunPod(folder, lab=self.lab)

    def _machine(self, record: Any) -> RunpodMachine:
        return RunpodMachine(self.fake, record)

    def lift_limits(self) -> None:
        self.fake.balance, self.fake.spend_limit = 10_000.0, 1000.0
