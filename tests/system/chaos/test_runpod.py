"""`up runpod` hit at every request it makes: nothing goes on costing money, and the ledger knows of nothing.

Nothing is behind these pods, so that every `up` comes to the same end: not ready in time. What is left of one that was
killed is ended by the guard, or where that was killed as well by the one that the next command starts.
"""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import until
from tests.fakes.runpod import Fault, Request
from tests.fakes.runpod.faults import SLOW
from tests.system.chaos.hits import KILLS, LIVES, SIGNALS, Hit, Point
from tests.system.chaos.scenes import HANG_S, KILLED, THEN, Case, HalfMade, kill_guards, killed, type_one
from tests.system.chaos.tenant import Tenant, alone
from tests.system.chaos.together import Together, chosen

pytestmark = pytest.mark.timeout(1800)  # who comes first waits for all that run beside it

LIST, LOOK, LOG, END = "GET /pods", "GET /pods/*", "GET /pods/*/logs", "DELETE /pods/*"
GPUS, CREATE = "GET /catalog/gpus", "POST /pods"
CREATE_ALL, MEMBERS, END_ALL = "POST /clusters", "GET /clusters/*/pods", "DELETE /clusters/*"
LIST_ALL, LOOK_ALL = "GET /clusters", "GET /clusters/*"
NEVER = ((LOG, "sent"),)
"""It never ends."""
SHAPES = (LIST, LOOK, LOG, END, GPUS, CREATE, CREATE_ALL, MEMBERS, END_ALL, LIST_ALL, LOOK_ALL)
AT_ONCE = 12


@dataclass(frozen=True)
class Story:
    """What is typed, and what an undisturbed one asks; it looks more often, as long as nothing is ready."""

    argv: tuple[str, ...]
    requests: tuple[Point, ...]
    create: str
    undoing: int
    """How many of the requests come when it is an end already."""
    pods: int = 1


POD = Story(
    ("up", "runpod", "--yes", "--timeout", "0.04"),
    (
        Point(LIST),
        Point(GPUS),
        Point(GPUS, 2),
        Point(CREATE),
        Point(LOOK),
        Point(LOOK, 2),
        Point(LOG),
        Point(LIST, 2),
        Point(LIST_ALL),
        Point(END),
        Point(LIST, 3),
        Point(LIST_ALL, 2),
        Point(LOOK, since=END),
    ),
    CREATE,
    undoing=6,
)
CLUSTER = Story(
    ("up", "runpod", "--yes", "--timeout", "0.04", "--nodes", "2", "--gpus", "8", "--gpu-type", "H100 SXM"),
    (
        Point(LIST),
        Point(GPUS),
        Point(GPUS, 2),
        Point(CREATE_ALL),
        Point(MEMBERS),
        Point(LOOK),
        Point(LOOK, 2),
        Point(LOG),
        Point(LIST, 2),
        Point(LIST_ALL),
        Point(END_ALL),
        Point(END),
        Point(END, 2),
        Point(LIST, 3),
        Point(LIST_ALL, 2),
        Point(LOOK_ALL),
        Point(LOOK, since=END),
        Point(LOOK, 2, since=END),
    ),
    CREATE_ALL,
    undoing=10,
    pods=2,
)
STORIES = {"pod": POD, "cluster": CLUSTER}
ENDING = (Point(LIST), Point(LIST_ALL), Point(END), Point(LIST, 2), Point(LIST_ALL, 2), Point(LOOK, since=END))
"""What ends the one pod of a cluster that is half-made."""
READS = {"after": (Point(LOOK), Point(LIST, 2)), "cut": (Point(LIST), Point(LOOK, since=END))}
"""One of each stage: before anything is made, while it starts, while it is ended, and after that. What was not heard
left nothing else, so that each is hit in one way."""
PLAYED_AT_END = ("before", "after", "sent", "cut", "broken", "HUP")
"""The rest of what may happen to a command is played at the request that makes the machine."""
HALF_MADE = HalfMade("runpod-1", POD.argv, LOOK)


def asked(requests: list[Request]) -> set[Point]:
    """The requests as points; of the looks at a pod that is not ready the first two."""
    points: list[Point] = []
    for request in requests:
        at = next(at for at in SHAPES if Fault(at).fits(request.method, request.path, {}))
        since = END if at == LOOK and Point(END) in points else ""
        same = [one for one in points if (one.at, one.since) == (at, since)]
        if at != LOOK or since or len(same) < 2:
            points.append(Point(at, len(same) + 1, since))
    return set(points)


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_the_requests_are_known(story: Story, tmp_path: Path) -> None:
    with alone(tmp_path) as here:
        process = here.shell.start(*story.argv)
        _, err = process.communicate()
        assert process.returncode == 4, err
        assert "runpod-1 is undone, nothing of it is left" in err
        assert "error: runpod-1 was not ready after" in err
        assert "waiting for its SSH port" in err
        assert here.is_over()
        found = asked([one for one in here.fake.requests if one.path != "/graphql"])
        assert found | {Point(LOOK, 2)} == set(story.requests), "a second look where there is time for it"
        here.expect_over(HANG_S, story.pods)


# ---- each request, and everything that may happen at it


def every_case() -> list[Case]:
    cases = []
    for name, story in STORIES.items():
        for case in killed(name, story.requests, NEVER):
            cases += [dataclasses.replace(case, then=then) for then in THEN]
        cases += [Case(name, Hit(point, how)) for point in story.requests for how in (*LIVES, *SIGNALS)]
    for name in ("guard", "down"):
        cases += [dataclasses.replace(case, then="status") for case in killed(name, ENDING)]
    return cases


def is_first(case: Case) -> bool:
    """Whether it is played every time: what costs money by every way, what ends that by most; of the rest some."""
    point, how = case.hit.point, case.hit.how
    if case.story in ("guard", "down"):
        return how == "after" and point.at == END
    first = case in killed(case.story, STORIES[case.story].requests, NEVER) or how not in KILLS
    if case.story == "cluster":
        changes = point.at in (CREATE_ALL, END_ALL) and how in ("before", "after", "cut")
        return first and (changes or (point.at == MEMBERS and how == "after"))
    if point.at == CREATE:
        return first and how != "HUP"
    if point.at == END:
        return first and how in PLAYED_AT_END
    return first and point in READS.get(how, ())


def params() -> list[object]:
    """The ones that take long come first."""
    cases = sorted(every_case(), key=lambda case: case.hit.point.at not in (CREATE, CREATE_ALL))
    return [pytest.param(case, id=str(case), marks=[pytest.mark.proof] * (not is_first(case))) for case in cases]


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Together[Case, str]]:
    cases = chosen(request, "case")
    folder = tmp_path_factory.mktemp("runpod")
    numbers = itertools.count()
    together = Together(cases, lambda case: play(case, folder / str(next(numbers))), AT_ONCE)
    yield together
    together.close()


@pytest.mark.parametrize("case", params())
def test_a_hit_at_a_request(outcomes: Together[Case, str], case: Case) -> None:
    outcomes[case]


def play(case: Case, folder: Path) -> str:
    """What the command said at last."""
    with alone(folder) as here:
        if case.story in STORIES:
            said = up_is_hit(here, case)
        else:
            scene = {"guard": HALF_MADE.guard_is_hit, "down": HALF_MADE.down_is_hit}[case.story]
            said = scene(here, case.hit, case.then)
        here.expect_over(HANG_S, STORIES.get(case.story, POD).pods)
        return said


def up_is_hit(here: Tenant, case: Case) -> str:
    process = here.saboteur.start(here.shell, case.hit, *STORIES[case.story].argv)
    _, err = process.communicate(timeout=HANG_S)
    assert here.saboteur.struck(process), err
    if case.hit.how in KILLS:
        assert process.returncode == KILLED, err
        if case.then != "guard":
            kill_guards(here)
            type_one(here, case.then)
        return err
    assert process.returncode == exit_code(case), err
    assert here.is_over(), err
    assert "Traceback" not in err
    return err


def exit_code(case: Case) -> int:
    """Of a command that lived on."""
    story, hit = STORIES[case.story], case.hit
    if hit.how in SIGNALS:
        return 4 if hit.point in story.requests[-story.undoing :] else 130
    if hit.how == "silent" and hit.point in story.requests[:3]:
        return 3  # it could not be asked, and nothing was made
    return 3 if hit == Hit(Point(story.create), "dropped") else 4


# ---- several commands at once


def waiting(here: Tenant, *more: str) -> subprocess.Popen[str]:
    """An `up` that waits for a pod that pulls its image for ever."""
    here.fake.life = SLOW
    process = here.shell.start("up", "runpod", "--yes", "--timeout", "5", *more)
    until(lambda: here.fake.asked("GET", LOOK.split()[1]), "it waits for its pod")
    return process


def test_down_while_up_waits(tmp_path: Path) -> None:
    with alone(tmp_path) as here:
        process = waiting(here)
        done = here.shell.run("down", "runpod-1")
        assert done.returncode == 0, done.stderr
        assert here.fake.running() == []
        _, err = process.communicate(timeout=HANG_S)
        assert process.returncode in (4, 130), err
        assert "runpod-1 is undone" in err
        here.expect_over(HANG_S)


def test_two_at_once_have_a_pod_each(tmp_path: Path) -> None:
    with alone(tmp_path) as here:
        both = [here.shell.start(*POD.argv) for _ in range(2)]
        for process in both:
            _, err = process.communicate(timeout=HANG_S)
            assert process.returncode == 4, err
            assert "is undone, nothing of it is left" in err
        assert len(here.fake.pods) == 2
        here.expect_over(HANG_S, 2)


def test_two_of_one_name_at_once(tmp_path: Path) -> None:
    """One of them has the name, be the other one ever so late; that one rents nothing."""
    with alone(tmp_path) as here:
        here.fake.life = SLOW
        both = [here.shell.start("up", "runpod", "--yes", "--timeout", "5", "--name", "lab") for _ in range(2)]
        until(lambda: here.fake.pods and any(process.poll() is not None for process in both), "a name that is taken")
        down = here.shell.run("down", "lab")
        assert down.returncode == 0, down.stderr
        for process in both:
            process.communicate(timeout=HANG_S)
        assert sorted(process.returncode for process in both) in ([2, 4], [2, 130])
        assert len(here.fake.pods) == 1
        here.expect_over(HANG_S)


def test_one_is_killed_while_another_of_the_same_home_waits(tmp_path: Path) -> None:
    """What is undone is what the dead one made."""
    with alone(tmp_path) as here:
        stays = waiting(here, "--name", "stays")
        dies = here.saboteur.start(
            here.shell, Hit(Point(LOOK), "after"), "up", "runpod", "--yes", "--name", "dies", "--timeout", "5"
        )
        dies.communicate(timeout=HANG_S)
        assert dies.returncode == -9
        until(lambda: here.live() == ["stays"], "the dead one's is undone", HANG_S)
        (pod,) = here.fake.running()
        assert "-stays-" in pod.name
        assert here.shell.run("down", "stays").returncode == 0
        stays.communicate(timeout=HANG_S)
        here.expect_over(HANG_S, 2)
