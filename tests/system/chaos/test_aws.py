"""`up aws`, `train --on aws`, `down`, `reap` and the guard hit at every request: nothing tagged ours remains anywhere.

No machine ever comes up here, so that every `up` comes to the same end: not ready in time. What is left of one that was
killed is ended by the guard, or where that was killed as well by the one that the next command starts. `make proof`
counts crashes and prints a table.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.aws import Fault
from tests.system.chaos.ec2 import MAKES, TenantOfAws, alone
from tests.system.chaos.hits import Point
from tests.system.chaos.scenes import HANG_S, KILLED, Case, HalfMade, kill_guards, killed, type_one
from tests.system.chaos.together import Together, chosen

pytestmark = pytest.mark.timeout(1800)  # who comes first waits for all that run beside it

COUNT, LIST, LOOK = "DescribeInstances", "DescribeInstances by tag", "DescribeInstances by id"
SPOTS, SPOT_LOOK = "DescribeSpotInstanceRequests by tag", "DescribeSpotInstanceRequests by id"
GROUPS, GROUP_LOOK = "DescribeSecurityGroups by tag", "DescribeSecurityGroups by id"
VOLUMES, CARDS = "DescribeVolumes by tag", "DescribeNetworkInterfaces by tag"
GROUP, OPEN, CREATE = "CreateSecurityGroup", "AuthorizeSecurityGroupIngress", "RunInstances"
END, CANCEL, REMOVE, WHO = (
    "TerminateInstances",
    "CancelSpotInstanceRequests",
    "DeleteSecurityGroup",
    "GetCallerIdentity",
)
LAST_WORDS, REGIONS = "GetConsoleOutput", "DescribeRegions"
ELSEWHERE = "us-west-2"
PREPARING = (
    WHO, "GetAccountPlanState", "GetParameters", "GetProducts", "DescribeInstanceTypes", "DescribeVpcs",
    "DescribeImages", "DescribeSubnets", "DescribeInstanceTypeOfferings", COUNT,
    "DescribeSpotPriceHistory", "GetServiceQuota", "DescribeSpotInstanceRequests",
)  # fmt: skip
MAKING = (Point(GROUP), Point(OPEN), Point(OPEN, 2), Point(CREATE), Point(LOOK), Point(LAST_WORDS))
ENDING = (
    Point(LIST), Point(SPOTS), Point(VOLUMES), Point(CARDS), Point(GROUPS), Point(END), Point(LOOK, since=END),
    Point(SPOT_LOOK), Point(CANCEL), Point(REMOVE), Point(GROUP_LOOK), Point(LIST, 2),
)  # fmt: skip
"""What ends a cluster whose spot requests outlive their machines."""
WANTED = ("--yes", "--gpus", "4", "--gpu-type", "g5.12xlarge", "--spot", "--timeout", "0.03")
UP = ("up", "aws", *WANTED, "--nodes", "2")
TRAIN = ("train", "multigpu", "work.py", "--on", "aws", *WANTED)
WALK = (*UP, "--region", f"us-east-1,{ELSEWHERE}")
COMMANDS = {"up": UP, "train": TRAIN, "walk": WALK}
AT_ONCE = 16
CLOSE_S = 8.0
HALF_MADE = HalfMade("aws-1", UP, LOOK)
NEVER_CLOSES = (CANCEL, SPOT_LOOK)
"""Where one of these is hit nothing closes by itself, be it ever so slow: who ends the machines must ask for it."""


# ---- what is asked


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[set[str]]:
    """Every kind of request that these commands make."""
    with alone(tmp_path_factory.mktemp("calm") / "one") as here:
        here.fake.world.close_s = HANG_S  # by itself never: else who is slow has nothing to cancel
        done = here.shell.run(*UP)
        assert done.returncode == 4, done.stderr
        assert "aws-1 is undone, nothing of it is left" in done.stderr
        assert "error: aws-1 was not ready after" in done.stderr
        assert "AWS is starting it" in done.stderr
        here.expect_over(HANG_S, 2)
        assert here.shell.run("reap", "--yes").returncode == 0
        yield set(here.names())


def test_no_request_is_left_out(undisturbed: set[str]) -> None:
    known = {point.at for point in (*MAKING, *ENDING)} | {*PREPARING, REGIONS}
    assert {one for one in undisturbed if " in " not in one} == known


# ---- each request, and everything that may happen at it


def every_case() -> list[Case]:
    """More than two hundred, each a crash."""
    up = (*(Point(at) for at in PREPARING), *MAKING, *ENDING)
    train = (*MAKING, *ENDING)
    walk = tuple(Point(f"{at} in {ELSEWHERE}") for at in (GROUP, OPEN, CREATE, LOOK, LIST, END, REMOVE))
    walk += (Point(REMOVE), Point(CREATE))
    ending = (Point(WHO), *ENDING)
    reap = (Point(REGIONS), Point(f"{LIST} in {ELSEWHERE}"), Point(END), Point(REMOVE))
    return [
        *killed("up", up),
        *killed("train", train),
        *killed("walk", walk),
        *killed("guard", ending),
        *killed("down", ending),
        *killed("reap", reap),
    ]


MAKES_FIRST = (GROUP, CREATE)
"""What is meant to be made is in the ledger by then: hit before it is made as well."""
AFTER = {
    "up": (GROUP, OPEN, CREATE),
    "down": (END, CANCEL, REMOVE),
    "reap": (REGIONS,),
    "walk": (f"{CREATE} in {ELSEWHERE}", REMOVE),
    "train": (CREATE,),
    "guard": (END,),
}
"""What changes something in the account, hit in the command that asks for it first, and one read: a read leaves the
account as it was, whichever of them is hit. What was not heard left it as the request before did. Of the other
stories what leads to another end than the same request of `up` or `down`."""


def is_first(case: Case) -> bool:
    """Whether it is played every time."""
    point, how = case.hit.point, case.hit.how
    if how == "sent" or point.nth > 1 or point.since:
        return False
    if how == "before":
        return case.story == "up" and point.at in MAKES_FIRST
    return point.at in AFTER.get(case.story, ())


def is_slow(case: Case) -> bool:
    return case.hit.point.at.split()[0] in MAKES


def in_order() -> list[Case]:
    """The ones that take long come first."""
    return sorted(every_case(), key=lambda case: not is_slow(case))


def params() -> list[object]:
    return [pytest.param(case, id=str(case), marks=[pytest.mark.proof] * (not is_first(case))) for case in in_order()]


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Together[Case, str]]:
    counted = any(item.name == "test_crashes_counted" for item in request.session.items)
    cases = in_order() if counted else chosen(request, "case")
    folder = tmp_path_factory.mktemp("aws")
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
        here.shell.write("work.py", "print('worked')\n")
        here.fake.world.close_s = HANG_S if case.hit.point.at in NEVER_CLOSES else CLOSE_S
        if case.story == "walk":
            nowhere_near(here)
        said = command_is_hit(here, case) if case.story in COMMANDS else half_made_is_hit(here, case)
        here.expect_over(HANG_S, 2)
        return said


def nowhere_near(here: TenantOfAws) -> None:
    """One zone of the first region offers the type, and has none; elsewhere one zone has."""
    for region, kept in (("us-east-1", "b"), (ELSEWHERE, "a")):
        for zone in "abcdef":
            if zone != kept:
                here.fake.not_offered.add((f"{region}{zone}", "g5.12xlarge"))
    here.fake.capacity[("us-east-1b", "g5.12xlarge")] = 0
    here.fake.price[("g5.12xlarge", f"{ELSEWHERE}a")] = 5.0  # the dearer one, so that it comes second
    here.fake.price[("g5.12xlarge", "us-east-1b")] = 4.9


def command_is_hit(here: TenantOfAws, case: Case) -> str:
    process = here.saboteur.start(here.shell, case.hit, *COMMANDS[case.story])
    _, err = process.communicate(timeout=HANG_S)
    assert here.saboteur.struck(process), err
    assert process.returncode == KILLED, err
    if case.then != "guard":
        kill_guards(here)
        type_one(here, case.then)
    return err


def half_made_is_hit(here: TenantOfAws, case: Case) -> str:
    if case.story == "guard":
        return HALF_MADE.guard_is_hit(here, case.hit, "status")
    if case.story == "reap":
        return HALF_MADE.reap_is_hit(here, case.hit)
    return HALF_MADE.down_is_hit(here, case.hit, case.then if case.then != "guard" else "status")


# ---- answers that are lost, and commands that live on


def test_every_answer_is_lost_once(undisturbed: set[str], tmp_path: Path) -> None:
    """What is asked is asked again; what makes something is never made twice."""
    with alone(tmp_path / "one") as here:
        here.fake.world.close_s = HANG_S
        actions = dict.fromkeys(one.split()[0] for one in undisturbed)
        here.fake.play(*(Fault(action, what="lost") for action in actions if action != GROUP))
        done = here.shell.run(*UP)
        assert done.returncode == 4, done.stderr
        assert "error: aws-1 was not ready after" in done.stderr
        assert "aws-1 is undone, nothing of it is left" in done.stderr
        here.expect_over(HANG_S, 2)
        assert here.shell.run("reap", "--yes").returncode == 0
        heard = {one.action for one in here.fake.requests if one.lost or (one.fault and one.fault.cuts)}
        assert heard == set(actions) - {GROUP}
        assert len(here.fake.world.instances) == 2


@pytest.mark.proof
def test_crashes_counted(outcomes: Together[Case, str], capsys: pytest.CaptureFixture[str]) -> None:
    """The table of all that is above; each has looked at the whole account when it was over."""
    cases = every_case()
    kinds: dict[str, list[Case]] = {}
    words = {"before": "before a request is heard", "after": "before its answer is sent", "sent": "with its answer"}
    for case in cases:
        kinds.setdefault(f"{case.story}, {words[case.hit.how]}", []).append(case)
    failed = set()
    for case in cases:
        try:
            outcomes[case]
        except Exception:  # its own test tells
            failed.add(case)
    with capsys.disabled():
        print(f"\n\n{time.strftime('%Y-%m-%d')}: crashes while renting at a fake AWS, of which no machine comes up\n")
        print(f"{'KILLED':<34} {'CRASHES':>7} {'NOTHING LEFT':>12}")
        for kind, those in kinds.items():
            print(f"{kind:<34} {len(those):>7} {sum(one not in failed for one in those):>12}")
        print(f"{'in all':<34} {len(cases):>7} {len(cases) - len(failed):>12}")
    assert not failed
    assert len(cases) >= 200
