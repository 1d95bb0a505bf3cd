"""Who rents: what of theirs costs money, what their ledger says of it, and whether that is over."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpuops.ledger.store import ClusterRow, RunRow
from tests.conftest import Shell, until
from tests.fakes.runpod import FakeRunPod, Pod
from tests.fakes.runpod.faults import UNMAPPED
from tests.system.chaos.hits import Saboteur, guards


@dataclass
class Tenant:
    """Somebody with a home of their own; pods with their mark are theirs."""

    shell: Shell
    fake: FakeRunPod
    saboteur: Saboteur

    @property
    def owner(self) -> str:
        path = self.shell.home / "owner"
        return path.read_text().strip() if path.exists() else "-"

    def pods(self) -> list[Pod]:
        """All that there ever were."""
        return [pod for pod in self.fake.pods.values() if pod.name.startswith(f"gpuops-{self.owner}-")]

    def running(self) -> list[Pod]:
        return [pod for pod in self.pods() if pod.bills]

    def live(self) -> list[str]:
        """Clusters that the ledger calls live."""
        return [row.name for row in self.clusters()]

    def clusters(self) -> list[ClusterRow]:
        return self.shell.read_ledger(lambda ledger: list(ledger.clusters()))

    def runs(self) -> list[RunRow]:
        return self.shell.read_ledger(lambda ledger: list(ledger.runs()))

    def lose_ledger(self) -> None:
        """What a new disk would know: who this is, and with whom it ever rented."""
        for path in self.shell.home.glob("ledger.db*"):
            path.unlink()

    def is_over(self) -> bool:
        return not self.running() and not self.live()

    def most_at_once(self) -> int:
        """How many pods cost money at the same moment."""
        pods = self.pods()
        together = (sum(one.created <= pod.created < (one.ended or pod.created + 1) for one in pods) for pod in pods)
        return max(together, default=0)

    def expect_over(self, hang_s: float, pods_at_once: int = 1) -> None:
        """Nothing bills, no cluster is live, nobody is left who looks after one, and a command says the same."""
        log = self.shell.home / "guard.log"
        until(self.is_over, f"an end, but: {self.running()} {self.live()}", hang_s)
        until(lambda: not guards(self.shell), "the guard leaves", hang_s)
        assert self.most_at_once() <= pods_at_once
        assert self.shell.clusters() == []
        said = log.read_text() if log.exists() else ""
        assert "Traceback" not in said, said


@contextmanager
def alone(folder: Path) -> Iterator[Tenant]:
    """One with a RunPod of their own, whose pods are never ready."""
    (folder / "project").mkdir(parents=True)
    with FakeRunPod(folder / "runpod") as fake:
        fake.life = dataclasses.replace(UNMAPPED, ranked_s=0.0)
        shell = Shell(folder / "home", folder / "project", env={**fake.env, "HOME": str(folder)})
        try:
            yield Tenant(shell, fake, Saboteur(fake))
            assert not shell.processes()
        except BaseException:
            shell.end()
            raise
