"""`run`, `train` and `down` hit at their requests to a provider, with machines behind its answers, and other moments.

Whatever happens, nothing is left that costs money, no cluster that the ledger calls live, and no result is lost that a
run had when it ended. At RunPod every request is hit; at AWS, where tests/system/chaos does that without machines,
those that make and end something. `make proof` counts crashes at RunPod, as many as GPUOPS_PROOF_RUNPOD says (200),
and prints a table.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.system.chaos.hits import KILLS, Hit, Point
from tests.system.chaos.tenant import Tenant
from tests.system.chaos.together import Together, chosen
from tests.system.lab.hosts import Lab
from tests.system.lab.rented import RentedCloud
from tests.system.lab.rented_aws import RentedAws
from tests.system.lab.rented_runpod import RentedRunPod
from tests.system.lab.rented_vast import RentedVast

pytestmark = pytest.mark.timeout(1800)  # who comes first waits for all that run beside it

HOWS = ("before", "after", "cut")
LINES = 40
SCRIPT = f"""
import time
for number in range({LINES}):
    print("line", number, flush=True)
    time.sleep(0.05)
open("made.pt", "w").write("made")
"""
WHOLE = "".join(f"line {number}\n" for number in range(LINES))
HANG_S = 800.0
AT_ONCE = 6
CRASHES = int(os.environ.get("GPUOPS_PROOF_RUNPOD", "200"))
LONGEST_S = 14.0
"""A moment of chance is so late at most: an undisturbed run may be over by then."""
KILLED = -9


@dataclass(frozen=True)
class Case:
    cloud: type[RentedCloud]
    command: str
    hit: Hit | None = None
    seed: int = -1
    """Without a hit it is killed at a moment of chance."""

    def __str__(self) -> str:
        return f"{self.cloud.name}-{self.command}: {self.hit or f'moment {self.seed}'}"

    @property
    def words(self) -> tuple[str, ...]:
        rented = ("--on", self.cloud.name, *self.cloud.machine_flags, "--yes")
        return {
            "run": ("run", *rented, "--", "python3", "work.py"),
            "train": ("train", "single", "work.py", *rented),
            "down": ("down", "lab"),
        }[self.command]


@dataclass(frozen=True)
class Outcome:
    exit_code: int
    started: bool
    home: bool
    """Whether all of its log and its snapshot are here."""
    left: int
    """Machines that cost money."""


# ---- what each provider is asked


class AtRunPod:
    LIST, LOOK, END, LIST_ALL = "GET /pods", "GET /pods/*", "DELETE /pods/*", "GET /clusters"
    GPUS, CREATE = "GET /catalog/gpus", "POST /pods"
    UP = (Point(LIST), Point(GPUS), Point(GPUS, 2), Point(CREATE), Point(LOOK), Point(LOOK, 2))
    DOWN = (Point(LIST), Point(LIST_ALL), Point(END), Point(LIST, 2), Point(LIST_ALL, 2), Point(LOOK, since=END))
    DOWN_AFTER_UP = tuple(Point(point.at, point.nth + (point.at == "GET /pods"), point.since) for point in DOWN)
    """The same where the command has asked for the list before."""

    @classmethod
    def cases(cls, hows: tuple[str, ...]) -> list[Case]:
        rents = (*cls.UP, *cls.DOWN_AFTER_UP)
        return hit_at(RentedRunPod, {"run": rents, "train": rents, "down": cls.DOWN}, hows)

    @classmethod
    def is_first(cls, command: str, hit: Hit) -> bool:
        """Whether it is played every time: `run` at each stage, once where nothing is changed, and by every way as it
        ends; the others where they go ways of their own. tests/system/chaos hits every request, without machines."""
        if command == "train":
            return hit.point == Point(cls.LOOK) and hit.how == "after"
        if command == "down":
            return hit.point == Point(cls.END) and hit.how != "before"
        lives = (Point(cls.CREATE), Point(cls.LOOK))
        killed = (Point(cls.LIST), *lives, Point(cls.LIST, 2), Point(cls.LOOK, since=cls.END))
        return hit.point == Point(cls.END) or hit.point in {"after": killed, "cut": lives}.get(hit.how, ())


class AtAws:
    CREATE, LOOK, END = "RunInstances", "DescribeInstances by id", "TerminateInstances"

    @classmethod
    def cases(cls, hows: tuple[str, ...]) -> list[Case]:
        points = {"run": (Point(cls.CREATE), Point(cls.END)), "train": (Point(cls.LOOK),), "down": (Point(cls.END),)}
        return hit_at(RentedAws, points, hows)

    @classmethod
    def is_first(cls, command: str, hit: Hit) -> bool:
        """Whether it is played every time: where it lives on, and where a run has ended, or there is none yet."""
        if command == "run":
            return hit.how == "cut" or (hit.point.at == cls.END and hit.how == "after")
        return command == "train" and hit.how == "after"


class AtVast:
    CREATE, LOOK, END = "PUT /asks/*", "GET /instances/*", "DELETE /instances/*"

    @classmethod
    def cases(cls, hows: tuple[str, ...]) -> list[Case]:
        points = {"run": (Point(cls.CREATE), Point(cls.END)), "train": (Point(cls.LOOK),), "down": (Point(cls.END),)}
        return hit_at(RentedVast, points, hows)

    @classmethod
    def is_first(cls, command: str, hit: Hit) -> bool:
        """Whether it is played every time: where it lives on a machine of whose making it was not told."""
        return command == "run" and hit.how == "cut" and hit.point.at == cls.CREATE


def hit_at(cloud: type[RentedCloud], points: dict[str, tuple[Point, ...]], hows: tuple[str, ...]) -> list[Case]:
    return [Case(cloud, name, Hit(point, how)) for name, these in points.items() for point in these for how in hows]


# ---- the providers, and who rents there


class Streets:
    """A lab and an account at each provider that is asked for, with as many renters as wanted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._clouds: dict[type[RentedCloud], RentedCloud] = {}
        self._stack = ExitStack()

    def open(self, kind: type[RentedCloud]) -> None:
        if kind not in self._clouds and not kind.why_not():
            own = self._folder / kind.name
            cloud = self._stack.enter_context(kind(own, self._stack.enter_context(Lab(own / "lab"))))
            cloud.lift_limits()
            self._clouds[kind] = cloud

    def play(self, case: Case) -> Outcome:
        with self._clouds[case.cloud].tenant() as tenant:
            tenant.shell.write("work.py", SCRIPT)
            process = down_is_hit(tenant, case) if case.command == "down" else run_is_hit(tenant, case)
            tenant.expect_over(HANG_S)
            return judge(tenant, process)

    def together(self, cases: list[Case]) -> Together[Case, Outcome]:
        for case in cases:
            self.open(case.cloud)
        return Together([case for case in cases if case.cloud in self._clouds], self.play, AT_ONCE)

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="module")
def streets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streets]:
    streets = Streets(tmp_path_factory.mktemp("streets"))
    yield streets
    streets.close()


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, streets: Streets) -> Iterator[Together[Case, Outcome]]:
    together = streets.together(chosen(request, "case"))
    yield together
    together.close()


def params() -> list[object]:
    """The ones that take long come first."""
    cases = [(case, AtRunPod.is_first) for case in AtRunPod.cases(HOWS)]
    cases += [(case, AtAws.is_first) for case in AtAws.cases(HOWS)]
    cases += [(case, AtVast.is_first) for case in AtVast.cases(HOWS)]
    creates = (AtRunPod.CREATE, AtAws.CREATE, AtVast.CREATE)
    cases.sort(key=lambda it: it[0].hit is None or it[0].hit.point.at not in creates)
    return [
        pytest.param(case, id=str(case), marks=[pytest.mark.proof] * (not is_first(case.command, case.hit)))
        for case, is_first in cases
        if case.hit
    ]


@pytest.mark.parametrize("case", params())
def test_a_hit_at_a_request(outcomes: Together[Case, Outcome], case: Case) -> None:
    if reason := case.cloud.why_not():
        pytest.skip(reason)
    outcomes[case]


def run_is_hit(tenant: Tenant, case: Case) -> subprocess.Popen[str]:
    process = tenant.saboteur.start(tenant.shell, case.hit, *case.words)
    if case.hit is None:
        try:
            process.wait(timeout=random.Random(case.seed).uniform(0.3, LONGEST_S))
        except subprocess.TimeoutExpired:
            process.kill()
        tenant.shell.run("status")  # it may have died before it had a guard
    return ended(tenant, case, process)


def down_is_hit(tenant: Tenant, case: Case) -> subprocess.Popen[str]:
    up = tenant.shell.run("up", case.cloud.name, *case.cloud.machine_flags, "--name", "lab", "--yes")
    assert up.returncode == 0, up.stderr
    process = ended(tenant, case, tenant.saboteur.start(tenant.shell, case.hit, *case.words))
    if process.returncode:
        tenant.shell.run("status")  # whoever types next has a guard again
    return process


def ended(tenant: Tenant, case: Case, process: subprocess.Popen[str]) -> subprocess.Popen[str]:
    out, err = process.communicate(timeout=HANG_S)
    if case.hit is not None:
        assert tenant.saboteur.struck(process), err
        assert process.returncode == (KILLED if case.hit.how in KILLS else 0), f"{out}\n{err}"
    return process


def judge(tenant: Tenant, process: subprocess.Popen[str]) -> Outcome:
    """No run is left unfinished, and what one had when it ended is here."""
    runs = tenant.runs()
    assert all(run.state == "home" for run in runs), runs
    logs = "".join(path.read_text() for path in tenant.shell.folder.glob("runs/*/logs/node0/*.out"))
    made = [path.read_text() for path in tenant.shell.folder.glob("runs/*/out/**/made.pt")]
    verdicts = [run.verdict and run.verdict.outcome for run in runs if run.started]
    home = made == ["made"] and WHOLE in logs
    assert home == (verdicts == ["done"]), (verdicts, made, logs)
    assert verdicts in ([], ["done"]), verdicts  # nothing keeps one that was started from its end
    return Outcome(process.returncode, bool(verdicts), home, len(tenant.running()))


# ---- the count


@pytest.mark.proof
@pytest.mark.timeout(7200)
def test_crashes_counted(streets: Streets, capsys: pytest.CaptureFixture[str]) -> None:
    """As many as are asked for: at every request of every command, then at moments of chance."""
    if reason := RentedRunPod.why_not():
        pytest.skip(reason)
    outcomes: dict[Case, Outcome] = {}
    cases = AtRunPod.cases(KILLS)[:CRASHES]
    seeds = itertools.count()
    while cases:
        together = streets.together(cases)
        outcomes |= {case: together[case] for case in cases}
        together.close()
        missing = CRASHES - sum(
            outcome.exit_code == KILLED for outcome in outcomes.values()
        )  # some end before their moment
        cases = [Case(RentedRunPod, ("run", "train")[seed % 2], seed=seed) for seed in itertools.islice(seeds, missing)]
    with capsys.disabled():
        print(f"\n\n{time.strftime('%Y-%m-%d')}: crashes while renting at a fake RunPod, its pods being machines\n")
        print(f"{'KILLED':<34} {'CRASHES':>7} {'RUNS STARTED':>12} {'ALL HOME':>8} {'LEFT RUNNING':>12}")
        for kind, some in grouped(outcomes).items():
            these = [outcomes[case] for case in some]
            crashed = sum(one.exit_code == KILLED for one in these)
            print(f"{kind:<34} {crashed:>7} {sum(one.started for one in these):>12} "
                  f"{sum(one.home for one in these):>8} {sum(one.left for one in these):>12}")  # fmt: skip
    assert sum(one.left for one in outcomes.values()) == 0


def grouped(cases: Iterable[Case]) -> dict[str, list[Case]]:
    """By what the table calls them."""
    words = {"before": "before a request is heard", "after": "before its answer is sent", "sent": "with its answer"}
    kinds: dict[str, list[Case]] = {}
    for case in cases:
        where = words[case.hit.how] if case.hit else "at a moment of chance"
        kinds.setdefault(f"{case.command}, {where}", []).append(case)
    return kinds
