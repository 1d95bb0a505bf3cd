"""Renting at RunPod, with machines behind the pods: every request of `run`, `train` and `down` hit, and other moments.

Whatever happens, no pod is left that costs money, no cluster that the ledger calls live, and no result is lost that a
run had when it ended. `make proof` counts crashes, as many as GPUOPS_PROOF_RUNPOD says (200), and prints a table.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pytest

from tests.fakes.runpod import FakeRunPod
from tests.system.chaos.hits import KILLS, Hit, Point
from tests.system.chaos.tenant import Tenant
from tests.system.chaos.together import Together, chosen
from tests.system.lab.available import why_no_lab
from tests.system.lab.hosts import Lab
from tests.system.lab.rented import Street

pytestmark = pytest.mark.timeout(1800)  # who comes first waits for all that run beside it

LIST, LOOK, END, LIST_ALL = "GET /pods", "GET /pods/*", "DELETE /pods/*", "GET /clusters"
GPUS, CREATE = "GET /catalog/gpus", "POST /pods"
UP = (Point(LIST), Point(GPUS), Point(GPUS, 2), Point(CREATE), Point(LOOK), Point(LOOK, 2))
DOWN = (Point(LIST), Point(LIST_ALL), Point(END), Point(LIST, 2), Point(LIST_ALL, 2), Point(LOOK, since=END))
AFTER_UP = tuple(Point(one.at, one.nth + (one.at == LIST), one.since) for one in DOWN)
"""The same where the command has asked for the list before."""
LINES = 40
SCRIPT = f"""
import time
for number in range({LINES}):
    print("line", number, flush=True)
    time.sleep(0.05)
open("made.pt", "w").write("made")
"""
WHOLE = "".join(f"line {number}\n" for number in range(LINES))
COMMANDS = {
    "run": ("run", "--on", "runpod", "--yes", "--", "python3", "work.py"),
    "train": ("train", "single", "work.py", "--on", "runpod", "--yes"),
}
HANG_S = 800.0
AT_ONCE = 6
CRASHES = int(os.environ.get("GPUOPS_PROOF_RUNPOD", "200"))
LONGEST_S = 14.0
"""A moment of chance is so late at most: an undisturbed run may be over by then."""
KILLED = -9


@dataclass(frozen=True)
class Case:
    command: str
    hit: Hit | None = None
    seed: int = -1
    """Without a hit it is killed at a moment of chance."""

    def __str__(self) -> str:
        return f"{self.command}: {self.hit or f'moment {self.seed}'}"


@dataclass(frozen=True)
class Came:
    """What a case came to."""

    exit_code: int
    started: bool
    home: bool
    """Whether all of its log and its snapshot are here."""
    left: int
    """Pods that cost money."""


def every_hit(hows: tuple[str, ...]) -> list[Case]:
    points = {"run": (*UP, *AFTER_UP), "train": (*UP, *AFTER_UP), "down": DOWN}
    return [Case(name, Hit(point, how)) for name, those in points.items() for point in those for how in hows]


def is_first(case: Case) -> bool:
    """Whether it is played every time; what is asked again at the same stage once."""
    point, how = (case.hit.point, case.hit.how) if case.hit else (None, "")
    if case.command == "train":
        return point == Point(LOOK) and how == "after"
    if case.command == "run":
        again = (Point(LOOK, 2), Point(LIST_ALL, 2))
        return point not in (Point(GPUS), Point(GPUS, 2), Point(LIST_ALL), *again)
    return point in (Point(LIST), Point(END))


HITS = every_hit(("before", "after", "cut"))


@pytest.fixture(scope="module")
def street(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Street]:
    if reason := why_no_lab():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("street")
    with Lab(folder / "lab") as lab, FakeRunPod(folder / "runpod", lab=lab) as fake:
        fake.balance, fake.spend_limit = 10_000.0, 1000.0
        yield Street(folder, lab, fake)
        assert fake.running() == []


def hosting(street: Street, cases: list[Case]) -> Together[Case, Came]:
    return Together(cases, lambda case: play(street, case), AT_ONCE)


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, street: Street) -> Iterator[Together[Case, Came]]:
    cases = chosen(request, "case")
    together = hosting(street, cases)
    yield together
    together.close()


def params() -> list[object]:
    """The ones that take long come first."""
    cases = sorted(HITS, key=lambda case: case.hit is None or case.hit.point.at != CREATE)
    return [pytest.param(case, id=str(case), marks=[pytest.mark.proof] * (not is_first(case))) for case in cases]


@pytest.mark.parametrize("case", params())
def test_a_hit_at_a_request(outcomes: Together[Case, Came], case: Case) -> None:
    outcomes[case]


def play(street: Street, case: Case) -> Came:
    with street.tenant() as here:
        here.shell.write("work.py", SCRIPT)
        process = down_is_hit(here, case) if case.command == "down" else run_is_hit(here, case)
        here.expect_over(HANG_S)
        return come(here, process)


def run_is_hit(here: Tenant, case: Case) -> subprocess.Popen[str]:
    process = here.saboteur.start(here.shell, case.hit, *COMMANDS[case.command])
    if case.hit is None:
        try:
            process.wait(timeout=random.Random(case.seed).uniform(0.3, LONGEST_S))
        except subprocess.TimeoutExpired:
            process.kill()
        here.shell.run("status")  # it may have died before it had a guard
    return ended(here, case, process)


def down_is_hit(here: Tenant, case: Case) -> subprocess.Popen[str]:
    up = here.shell.run("up", "runpod", "--name", "lab", "--yes")
    assert up.returncode == 0, up.stderr
    process = ended(here, case, here.saboteur.start(here.shell, case.hit, "down", "lab"))
    if process.returncode:
        here.shell.run("status")  # whoever types next has a guard again
    return process


def ended(here: Tenant, case: Case, process: subprocess.Popen[str]) -> subprocess.Popen[str]:
    out, err = process.communicate(timeout=HANG_S)
    if case.hit is not None:
        assert here.saboteur.struck(process), err
        assert process.returncode == (KILLED if case.hit.how in KILLS else 0), f"{out}\n{err}"
    return process


def come(here: Tenant, process: subprocess.Popen[str]) -> Came:
    """No run is left unfinished, and what one had when it ended is here."""
    runs = here.runs()
    assert all(run.state == "home" for run in runs), runs
    logs = "".join(path.read_text() for path in here.shell.folder.glob("runs/*/logs/node0/*.out"))
    made = [path.read_text() for path in here.shell.folder.glob("runs/*/out/**/made.pt")]
    outcomes = [(run.verdict or {}).get("outcome") for run in runs if run.started]
    home = made == ["made"] and WHOLE in logs
    assert home == (outcomes == ["done"]), (outcomes, made, logs)
    assert outcomes in ([], ["done"]), outcomes  # nothing keeps one that was started from its end
    return Came(process.returncode, bool(outcomes), home, len(here.running()))


@pytest.mark.proof
@pytest.mark.timeout(7200)
def test_crashes_counted(street: Street, capsys: pytest.CaptureFixture[str]) -> None:
    """As many as are asked for: at every request of every command, then at moments of chance."""
    came: dict[Case, Came] = {}
    cases = every_hit(KILLS)[:CRASHES]
    seeds = itertools.count()
    while cases:
        together = hosting(street, cases)
        came |= {case: together[case] for case in cases}
        together.close()
        more = CRASHES - sum(one.exit_code == KILLED for one in came.values())  # some are over before their moment
        cases = [Case(("run", "train")[seed % 2], seed=seed) for seed in itertools.islice(seeds, more)]
    with capsys.disabled():
        print(f"\n\n{time.strftime('%Y-%m-%d')}: crashes while renting at a fake RunPod, its pods being machines\n")
        print(f"{'KILLED':<34} {'CRASHES':>7} {'RUNS STARTED':>12} {'ALL HOME':>8} {'LEFT RUNNING':>12}")
        for kind, these in grouped(came).items():
            found = [came[case] for case in these]
            crashed = sum(one.exit_code == KILLED for one in found)
            print(f"{kind:<34} {crashed:>7} {sum(one.started for one in found):>12} "
                  f"{sum(one.home for one in found):>8} {sum(one.left for one in found):>12}")  # fmt: skip
    assert street.running() == []


def grouped(cases: Iterable[Case]) -> dict[str, list[Case]]:
    """By what the table calls them."""
    words = {"before": "before a request is heard", "after": "before its answer is sent", "sent": "with its answer"}
    kinds: dict[str, list[Case]] = {}
    for case in cases:
        where = words[case.hit.how] if case.hit else "at a moment of chance"
        kinds.setdefault(f"{case.command}, {where}", []).append(case)
    return kinds
