"""`run --on aws --retries 1` whose machine is taken back, and killed while it looks for another: nothing is left.

What had come home stays; what a retry had begun is undone by the guard, or where only an answer was lost, goes on.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import until
from tests.fakes.aws import FakeAWS, Instance
from tests.system.chaos.ec2 import SaboteurAtAws, TenantOfAws
from tests.system.chaos.hits import KILLS, Hit, Point
from tests.system.chaos.together import Together, chosen
from tests.system.lab.available import why_no_machines
from tests.system.lab.hosts import Lab
from tests.system.lab.laptop import Laptop

GROUP, CREATE, END, REMOVE = "CreateSecurityGroup", "RunInstances", "TerminateInstances", "DeleteSecurityGroup"
WORK = """
import pathlib, sys, time
saved = pathlib.Path("saved.txt")
if saved.exists():
    print("goes on from", saved.read_text(), flush=True)
    sys.exit(0)
saved.write_text("5")
print("waits", flush=True)
time.sleep(600)
"""
COMMAND = (
    "run", "--on", "aws", "--gpu-type", "t4", "--gpus", "1", "--spot", "--yes", "--retries", "1", "--out", "saved.txt",
    "--", "python3", "work.py",
)  # fmt: skip
HANG_S = 500.0
AT_ONCE = 4
KILLED = -9


def hits() -> list[Hit]:
    points = [Point(GROUP, 2), Point(CREATE, 2), Point(REMOVE)]
    return [Hit(Point(CREATE, 2), "cut"), *(Hit(point, how) for point in points for how in KILLS)]


def is_first(hit: Hit) -> bool:
    return hit.how in ("after", "cut")


@dataclass
class Renter(TenantOfAws):
    """One of several in an account."""

    def mine(self) -> list[Instance]:
        return [one for one in self.fake.instances() if one.tags.get("gpuops:owner") == self.owner]

    def running(self) -> list[str]:
        """What the whole account still has with their mark."""
        groups = [line for line in self.fake.left() if f"gpuops-{self.owner}-" in line]
        return [*map(str, self.mine()), *groups]

    def record(self, run: str) -> dict[str, object]:
        found: dict[str, object] = json.loads((self.shell.folder / "runs" / run / "run.json").read_text())
        return found


class Street:
    """Renters in one lab and one account, each with a home of their own."""

    def __init__(self, folder: Path, lab: Lab, fake: FakeAWS) -> None:
        self._folder, self._lab, self._fake = folder, lab, fake
        self._saboteur = SaboteurAtAws(fake)

    def play(self, hit: Hit) -> None:
        project = Path(tempfile.mkdtemp(dir=self._folder))
        home = Path(tempfile.mkdtemp(prefix="gpuops-"))  # short: sockets lie in it
        env = {**self._fake.env, "HOME": str(home)}
        shell = Laptop(home, project, env=env, prefix=self._lab.enter, lab=self._lab)
        try:
            is_hit(Renter(shell, self._fake, self._saboteur), hit)  # type: ignore[arg-type]
        finally:
            shell.end()
            shutil.rmtree(home, ignore_errors=True)


def is_hit(here: Renter, hit: Hit) -> None:
    here.shell.write("work.py", WORK)
    process = here.saboteur.start(here.shell, hit, *COMMAND)
    saved = here.shell.folder / "runs/python3-1/out/saved.txt"
    until(lambda: (saved.exists() and saved.read_text()) or process.poll() is not None, "what it saved is home", HANG_S)
    assert process.poll() is None, process.communicate()
    (one,) = here.mine()
    here.fake.reclaim(one.id)
    _, err = process.communicate(timeout=HANG_S)
    assert here.saboteur.struck(process), err
    until(here.is_over, f"an end, but: {here.running()} {here.live()}", HANG_S)
    verdicts = {run.name: (run.verdict or {}).get("outcome") for run in here.runs()}
    if hit.how == "cut":
        assert process.returncode == 0, err
        assert verdicts == {"python3-1": "reclaimed", "python3-2": "done"}
    else:
        assert process.returncode == KILLED, err
        assert verdicts == {"python3-1": "reclaimed"}
    assert saved.read_text() == "5"
    assert here.shell.clusters() == []
    zones = [it.zone for it in here.fake.world.instances.values() if it.tags["gpuops:owner"] == here.owner]
    assert len(zones) == len(set(zones)) <= 2, "elsewhere, and once"


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Together[Hit, None]]:
    if reason := why_no_machines():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("street")
    with Lab(folder / "lab") as lab, FakeAWS(folder / "aws", lab=lab) as fake:
        fake.ending_s = 0.1  # who asked for the end sees all of it
        fake.dry_s = 0.0  # they share an account, and one's loss shall not keep another from its first machine
        street = Street(folder, lab, fake)
        together = Together(chosen(request, "hit"), street.play, AT_ONCE)
        yield together
        together.close()
        assert fake.left() == []


@pytest.mark.timeout(1200)  # who comes first waits for all that run beside it
@pytest.mark.parametrize(
    "hit", [pytest.param(one, id=str(one), marks=[pytest.mark.proof] * (not is_first(one))) for one in hits()]
)
def test_killed_while_it_looks_for_another_machine(outcomes: Together[Hit, None], hit: Hit) -> None:
    outcomes[hit]
