"""`run --retries 1` whose machine is lost, and killed while it looks for another: nothing is left.

What had come home stays; what a retry had begun is undone by the guard, or where only an answer was lost, goes on.

AWS      takes a spot machine back while its run goes on, and what that had saved is home.
RunPod   has no spot pods: one ends before it was ready.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
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
        """Whether it is played every time: the retry by either way, once; at AWS what is asked there alone, and where
        it lives, since zones are changed there."""
        if self.cloud is RentedAws and self.hit.how == "after":
            return self.hit.point.at == "DeleteSecurityGroup"
        return self.hit.how in ("after", "cut")


def cases_at(cloud: type[RentedCloud], create: str, *others: Point) -> list[Case]:
    """Killed at each of these requests of a retry; or it lives, and no answer tells of the machine made."""
    again = Point(create, 2)
    return [
        Case(cloud, Hit(again, "cut")),
        *(Case(cloud, Hit(point, how)) for point in (again, *others) for how in KILLS),
    ]


CASES = [
    *cases_at(RentedAws, "RunInstances", Point("CreateSecurityGroup", 2), Point("DeleteSecurityGroup")),
    *cases_at(RentedRunPod, "POST /pods", Point("DELETE /pods/*")),
]


def play(folder: Path, case: Case) -> None:
    """With an account of their own each: one's loss says what becomes of another's next machine."""
    own = folder / str(CASES.index(case))
    with Lab(own / "lab") as lab, case.cloud(own, lab) as cloud, cloud.tenant() as tenant:
        cloud.lift_limits()
        if case.cloud is RentedAws:
            lose_instance(cloud, tenant, case.hit)
        else:
            lose_pod(cloud, tenant, case.hit)


def start(cloud: RentedCloud, tenant: Tenant, hit: Hit, *flags: str) -> subprocess.Popen[str]:
    rented = ("--on", cloud.name, *cloud.machine_flags, *flags, "--yes", "--retries", "1", "--out", "saved.txt")
    return tenant.saboteur.start(tenant.shell, hit, "run", *rented, "--", "python3", "work.py")


def lose_instance(cloud: RentedCloud, tenant: Tenant, hit: Hit) -> None:
    tenant.shell.write("work.py", WORK)
    process = start(cloud, tenant, hit, "--spot")
    saved = tenant.shell.folder / SAVED
    until(lambda: (saved.exists() and saved.read_text()) or process.poll() is not None, "what it saved is home", HANG_S)
    assert process.poll() is None, process.communicate()
    (machine,) = cloud.machines(tenant)
    assert isinstance(machine, AwsMachine)
    cloud.fake.reclaim(machine.instance.id)
    expect_end(tenant, hit, process, {"python3-1": "reclaimed"})
    zones = [other.instance.zone for other in cloud.machines(tenant) if isinstance(other, AwsMachine)]
    assert len(zones) == len(set(zones)) <= 2, "elsewhere, and once"


def lose_pod(cloud: RentedCloud, tenant: Tenant, hit: Hit) -> None:
    tenant.shell.write("work.py", NOTHING_TO_WAIT_FOR)
    cloud.next_boot(Boot.UNREACHABLE)
    process = start(cloud, tenant, hit)
    until(lambda: cloud.machines(tenant) or process.poll() is not None, "the first pod", HANG_S)
    assert process.poll() is None, process.communicate()
    (machine,) = cloud.machines(tenant)
    assert isinstance(machine, RunpodMachine)
    cloud.fake.life = Life()
    cloud.fake.end(machine.record, "EXITED")
    expect_end(tenant, hit, process, {})
    assert len(cloud.machines(tenant)) <= 2


def expect_end(tenant: Tenant, hit: Hit, process: subprocess.Popen[str], before: dict[str, str]) -> None:
    """`before`: how the runs on the lost machine ended. Where only an answer was lost, one more was done."""
    _, err = process.communicate(timeout=HANG_S)
    assert tenant.saboteur.struck(process), err
    until(tenant.is_over, f"an end, but: {tenant.running()} {tenant.live()}", HANG_S)
    lives = hit.how == "cut"
    assert process.returncode == (0 if lives else KILLED), err
    verdicts = {run.name: run.verdict and run.verdict.outcome for run in tenant.runs()}
    assert verdicts == {**before, **({f"python3-{len(before) + 1}": "done"} if lives else {})}
    saved = tenant.shell.folder / SAVED
    assert (saved.read_text() if saved.exists() else "") == ("5" if verdicts else "")
    assert tenant.shell.clusters() == []


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Together[Case, None]]:
    cases = [case for case in chosen(request, "case") if not case.cloud.why_not()]
    together = Together(cases, partial(play, tmp_path_factory.mktemp("replaced")), AT_ONCE)
    yield together
    together.close()


@pytest.mark.timeout(1200)  # who comes first waits for all that run beside it
@pytest.mark.parametrize(
    "case", [pytest.param(case, id=str(case), marks=[pytest.mark.proof] * (not case.is_first)) for case in CASES]
)
def test_killed_while_it_looks_for_another_machine(outcomes: Together[Case, None], case: Case) -> None:
    if reason := case.cloud.why_not():
        pytest.skip(reason)
    outcomes[case]
