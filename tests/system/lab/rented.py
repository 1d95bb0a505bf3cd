"""Renters in one lab: each with a home of their own, all with the same service and the same account."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fakes.runpod import FakeRunPod, Pod
from tests.system.chaos.hits import Saboteur
from tests.system.chaos.tenant import Tenant
from tests.system.lab.hosts import Lab
from tests.system.lab.laptop import Laptop


class Street:
    """`with street.tenant() as one:` as often as wanted, at the same time, too."""

    def __init__(self, folder: Path, lab: Lab, fake: FakeRunPod) -> None:
        self._folder = folder
        self._lab = lab
        self._fake = fake
        self._saboteur = Saboteur(fake)
        self._numbers = itertools.count()

    def running(self) -> list[Pod]:
        return self._fake.running()

    @contextmanager
    def tenant(self) -> Iterator[Tenant]:
        project = self._folder / f"tenant{next(self._numbers)}"
        project.mkdir()
        home = Path(tempfile.mkdtemp(prefix="gpuops-"))  # short: sockets lie in it
        env = {**self._fake.env, "HOME": str(home)}
        shell = Laptop(home, project, env=env, prefix=self._lab.enter, lab=self._lab)
        try:
            yield Tenant(shell, self._fake, self._saboteur)
        finally:
            shell.end()
            shutil.rmtree(home, ignore_errors=True)
