"""`run --retries 1` whose machine is lost, and killed while it looks for another: nothing is left.

What had come home stays; what a retry had begun is undone by the guard, or where only an answer was lost, goes on.

AWS      takes a spot machine back while its run goes on, and what that had saved is home.
RunPod   has no spot pods: one ends before it was ready.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import until
from tests.fakes.runpod import Life
from tests.system.chaos.hits import KILLS, Hit, Point
from tests.system.chaos.tenant import Tenant
from tests.system.chaos.together import Together, chosen
from tests.system.lab.hosts import Lab
from tests.system.lab.rented import Boot, RentedCloud
from tests.system.lab.rented_aws import AwsMachine, RentedAws
from tests.system.lab.rented_runpod import RentedRunPod, RunpodMachine

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
NOTHING_TO_WAIT_FOR = "open('saved.txt', 'w').write('5')"
SAVED = "runs/python3-1/out/saved.txt"
HANG_S = 500.0
AT_ONCE = 4
KILLED = -9


@dataclass(frozen=True)
class Case:
    cloud: type[RentedCloud]
    hit: Hit

    def __str__(self) -> str:
        return f"{self.cloud.name}-{self.hit}"

    @property
    def is_first(self) -> bool:
        """Whether it is played every time."""
        return self.hit.how in ("after", "cut")


def cases(cloud: type[RentedCloud], create: str, *others: Point) -> list[Case]:
    """The second machine is asked for as the first was: only one of its requests may be answered by nothing."""
    again = Point(create, 2)
    return [Case(cloud, Hit(again, "cut")), *(Case(cloud, Hit(it, how)) for it in (again, *others) for how in KILLS)]


CASES = [
    *cases(RentedAws, "RunInstances", Point("CreateSecurityGroup", 2), Point("DeleteSecurityGroup")),
    *cases(RentedRunPod, "POST /pods", Point("DELETE /pods/*")),
]


class Landlords:
    """AWS for all; at RunPod each has an account of their own, whose next pod is what is said to the service."""

    def __init__(self, folder: Path, kinds: set[type[RentedCloud]]) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._aws = self._open(RentedAws, folder / "aws", self._stack) if RentedAws in kinds else None

    @staticmethod
    def _open(kind: type[RentedCloud], folder: Path, stack: ExitStack) -> RentedCloud:
        cloud = stack.enter_context(kind(folder, stack.enter_context(Lab(folder / "lab"))))
        cloud.lift_limits()
        return cloud

    def play(self, case: Case) -> None:
        with ExitStack() as stack:
            if case.cloud is RentedAws:
                assert self._aws
                loses_machine_of_aws(self._aws, stack.enter_context(self._aws.tenant()), case.hit)
            else:
                cloud = self._open(case.cloud, self._folder / str(CASES.index(case)), stack)
                loses_pod(cloud, stack.enter_context(cloud.tenant()), case.hit)

    def close(self) -> None:
        self._stack.close()


def start(cloud: RentedCloud, here: Tenant, hit: Hit, *flags: str) -> subprocess.Popen[str]:
    rented = ("--on", cloud.name, *cloud.machine_flags, *flags, "--yes", "--retries", "1", "--out", "saved.txt")
    return here.saboteur.start(here.shell, hit, "run", *rented, "--", "python3", "work.py")


def loses_machine_of_aws(cloud: RentedCloud, here: Tenant, hit: Hit) -> None:
    here.shell.write("work.py", WORK)
    process = start(cloud, here, hit, "--spot")
    saved = here.shell.folder / SAVED
    until(lambda: (saved.exists() and saved.read_text()) or process.poll() is not None, "what it saved is home", HANG_S)
    assert process.poll() is None, process.communicate()
    (machine,) = cloud.machines(here)
    assert isinstance(machine, AwsMachine)
    cloud.fake.reclaim(machine.instance.id)
    ends_well(here, hit, process, {"python3-1": "reclaimed"})
    zones = [it.instance.zone for it in cloud.machines(here) if isinstance(it, AwsMachine)]
    assert len(zones) == len(set(zones)) <= 2, "elsewhere, and once"


def loses_pod(cloud: RentedCloud, here: Tenant, hit: Hit) -> None:
    here.shell.write("work.py", NOTHING_TO_WAIT_FOR)
    cloud.next_boot(Boot.UNREACHABLE)
    process = start(cloud, here, hit)
    until(lambda: cloud.machines(here) or process.poll() is not None, "the first pod", HANG_S)
    assert process.poll() is None, process.communicate()
    (machine,) = cloud.machines(here)
    assert isinstance(machine, RunpodMachine)
    cloud.fake.life = Life()
    cloud.fake.end(machine.pod, "EXITED")
    ends_well(here, hit, process, {})
    assert len(cloud.machines(here)) <= 2


def ends_well(here: Tenant, hit: Hit, process: subprocess.Popen[str], before: dict[str, str]) -> None:
    """`before`: how the runs on the lost machine ended. Where only an answer was lost, one more was done."""
    _, err = process.communicate(timeout=HANG_S)
    assert here.saboteur.struck(process), err
    until(here.is_over, f"an end, but: {here.running()} {here.live()}", HANG_S)
    lives = hit.how == "cut"
    assert process.returncode == (0 if lives else KILLED), err
    verdicts = {run.name: (run.verdict or {}).get("outcome") for run in here.runs()}
    assert verdicts == {**before, **({f"python3-{len(before) + 1}": "done"} if lives else {})}
    saved = here.shell.folder / SAVED
    assert (saved.read_text() if saved.exists() else "") == ("5" if verdicts else "")
    assert here.shell.clusters() == []


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Together[Case, None]]:
    wanted = [case for case in chosen(request, "case") if not case.cloud.why_not()]
    landlords = Landlords(tmp_path_factory.mktemp("landlords"), {case.cloud for case in wanted})
    together = Together(wanted, landlords.play, AT_ONCE)
    yield together
    together.close()
    landlords.close()


@pytest.mark.timeout(1200)  # who comes first waits for all that run beside it
@pytest.mark.parametrize(
    "case", [pytest.param(one, id=str(one), marks=[pytest.mark.proof] * (not one.is_first)) for one in CASES]
)
def test_killed_while_it_looks_for_another_machine(outcomes: Together[Case, None], case: Case) -> None:
    if reason := case.cloud.why_not():
        pytest.skip(reason)
    outcomes[case]
