"""`--wait`: while nothing can be had it is asked for again; what waits is neither forgotten nor undone too early."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuops.cli.terminal.output import Output
from gpuops.clusters import creation
from gpuops.core.context import Context
from gpuops.core.errors import AuthFailed, Interrupted, NoCapacity, Unknown, UsageError
from gpuops.core.format import clock_time
from gpuops.core.models import Offer, Price, Request
from gpuops.guard import schedule
from gpuops.guard.services import WITHOUT_GUARD
from gpuops.nodes.session import ClusterSession
from gpuops.offers.lease_limits import LeaseLimits
from tests.fakes.provider import NAME, Cloud, FakeClock, Fault, Scripted, surroundings

HOURS = 3600.0
WAITS = Request(NAME, timeout_min=1.0, wait_s=2 * HOURS)
NOTHING = Fault("NoCapacity", made=0)


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Cloud, Context]:
    cloud, world = surroundings(tmp_path, monkeypatch)
    world.out = Output(err=io.StringIO())
    return cloud, world


def up(world: Context, request: Request = WAITS, **wish: float) -> ClusterSession:
    return creation.bring_up(world, request, name="lab", ephemeral=False, wish=LeaseLimits(**wish))


def said(world: Context) -> str:
    return world.out.err.getvalue()  # type: ignore[attr-defined, no-any-return]


def offered(monkeypatch: pytest.MonkeyPatch, *rounds: list[float]) -> None:
    """What is on offer, look after look, at which prices; the last for ever."""
    looks: list[int] = []

    def offers(_: Any, request: Request) -> list[Offer]:
        looks.append(0)
        prices = rounds[min(len(looks), len(rounds)) - 1]
        if not prices:
            raise NoCapacity("all are taken", "wait")
        return [
            Offer(NAME, f"o{price}", "a machine", request.nodes, 0, prices=(Price("m", price),)) for price in prices
        ]

    monkeypatch.setattr(Scripted, "offers", offers)


def test_at_the_end_of_its_patience_it_says_what_it_has_tried(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    cloud.play(create_always=[NOTHING])
    began = world.clock.monotonic()
    with pytest.raises(NoCapacity) as caught:
        up(world, dataclasses.replace(WAITS, wait_s=600.0))
    assert caught.value.message == "the provider said NoCapacity; asked 8 times in 10 min"
    assert 600.0 <= world.clock.monotonic() - began < 610.0
    assert cloud.calls().count("create") == 8
    assert world.ledger.clusters() == []


def test_without_it_nothing_is_asked_twice(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    cloud.play(offers=[NOTHING])
    with pytest.raises(NoCapacity, match=r"^the provider said NoCapacity$"):
        up(world, dataclasses.replace(WAITS, wait_s=0.0))
    assert cloud.calls().count("offers") == 1


class Watched(FakeClock):
    """A clock at which somebody looks whenever time passes."""

    def __init__(self, look: Callable[[float], None]) -> None:
        super().__init__()
        self.look = look

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.look(self.now())


def test_the_guard_lets_it_wait_and_undoes_it_when_it_is_killed(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    cloud.play(create_always=[NOTHING])
    seen = []

    def look(now: float) -> None:
        for row in world.ledger.clusters():
            seen.append(row)
            assert not row.is_overdue(now)
            assert row.owner_process is not None
            killed = dataclasses.replace(
                row, owner_process=dataclasses.replace(row.owner_process, start=row.owner_process.start - 5.0)
            )
            assert not schedule.needs_tending(row, [], now, schedule.NODE_CHECK_INTERVAL_S), "its owner lives"
            assert schedule.needs_tending(killed, [], now, 0.0), "its owner is dead"

    world.clock = Watched(look)
    with pytest.raises(NoCapacity):
        up(world)
    assert len(seen) > 50
    assert len({row.boot_deadline for row in seen}) > 50


def test_a_guard_works_whenever_something_is_asked_for(there: tuple[Cloud, Context]) -> None:
    """One that has died while nothing was to be had, perhaps for hours, is replaced before anything is rented."""
    cloud, world = there
    cloud.play(create=[NOTHING, NOTHING, Fault("AuthFailed", made=0)])
    asked_before: list[int] = []
    world.services = dataclasses.replace(
        WITHOUT_GUARD, ensure_guard=lambda *_: asked_before.append(cloud.calls().count("create"))
    )
    with pytest.raises(AuthFailed):
        up(world)
    assert asked_before == [0, 1, 2]


@pytest.mark.parametrize("how", ["ending", "gone"])
def test_another_command_may_end_what_waits(there: tuple[Cloud, Context], how: str) -> None:
    cloud, world = there
    cloud.play(create_always=[NOTHING])

    def look(_: float) -> None:
        for row in world.ledger.clusters():
            world.ledger.begin_end(row.id)
            if how == "gone":
                world.ledger.mark_gone(row.id, 0.0, "down")

    world.clock = Watched(look)
    with pytest.raises(Interrupted, match="another command ends lab while it waits"):
        up(world)
    assert world.ledger.clusters() == []
    assert cloud.calls().count("create") == 1


@pytest.mark.parametrize("script", [{"offers": [NOTHING]}, {"create": [NOTHING]}])
def test_ctrl_c_ends_the_wait(there: tuple[Cloud, Context], script: dict[str, Any]) -> None:
    cloud, world = there
    cloud.play(**script)

    def look(_: float) -> None:
        raise Interrupted("interrupted", "")

    world.clock = Watched(look)
    with pytest.raises(Interrupted, match=r"^interrupted$"):
        up(world)
    assert world.ledger.clusters() == []


@pytest.mark.parametrize("error", ["RateLimited", "Unknown"])
def test_one_bad_look_does_not_end_a_long_wait(there: tuple[Cloud, Context], error: str) -> None:
    cloud, world = there
    cloud.play(offers=[NOTHING, Fault(error, retry_after=200.0)], create=[Fault("AuthFailed", made=0)])
    with pytest.raises(AuthFailed):
        up(world)
    pauses = world.clock.slept[:2]  # type: ignore[attr-defined]
    assert pauses == [60.0, 120.0 if error == "RateLimited" else 60.0]  # no single pause is longer


def test_the_first_look_must_be_a_good_one(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    cloud.play(offers=[Fault("Unknown")])
    with pytest.raises(Unknown):
        up(world)
    assert world.clock.slept == []  # type: ignore[attr-defined]


# -- one question ---------------------------------------------------------------------------------


class Somebody(Output):
    """Who says yes, and then goes away."""

    interactive = True  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__(err=io.StringIO())
        self.asked: list[str] = []

    def confirm(self, question: str) -> bool:
        self.asked.append(question)
        assert len(self.asked) == 1, "nobody is there any more"
        return True


@pytest.fixture
def somebody(there: tuple[Cloud, Context]) -> tuple[Cloud, Context, Somebody]:
    cloud, world = there
    cloud.play(create=[Fault("NoCapacity", made=0)] * 2 + [Fault("AuthFailed", made=0)])
    world.yes = False
    world.out = out = Somebody()
    return cloud, world, out


def test_the_agreed_price_holds(somebody: tuple[Cloud, Context, Somebody], monkeypatch: pytest.MonkeyPatch) -> None:
    """A dearer one that comes up later is not taken, and nobody is asked in the middle of the night."""
    cloud, world, out = somebody
    offered(monkeypatch, [2.0], [2.5, 3.0], [2.5, 1.5], [2.0])
    with pytest.raises(AuthFailed):
        up(world)
    assert [question.partition(";")[0] for question in out.asked] == ["a machine, $2.00/h"]
    tried = [one for one in cloud.calls() if one == "create"]
    assert len(tried) == 3, "at $2.00, at $1.50, at $2.00"
    assert len(world.clock.slept) >= 3  # type: ignore[attr-defined]


def test_it_is_told_what_a_wait_has_passed_by(
    somebody: tuple[Cloud, Context, Somebody], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, world, _ = somebody
    offered(monkeypatch, [2.0], [2.5])
    with pytest.raises(NoCapacity) as caught:
        up(world, dataclasses.replace(WAITS, wait_s=60.0))
    assert caught.value.message.startswith("a machine costs $2.50/h, and $2.00/h was agreed to; asked 2 times")
    assert caught.value.hint == "allow it: --max-price 2.50"


def test_where_a_limit_is_named_it_is_agreed_to_at_once(
    somebody: tuple[Cloud, Context, Somebody], monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud, world, out = somebody
    offered(monkeypatch, [], [2.0, 2.9])
    cloud.play(create=[Fault("NoCapacity", made=0), Fault("AuthFailed", made=0)])
    now = world.clock.now()
    with pytest.raises(AuthFailed):
        up(world, dataclasses.replace(WAITS, max_price=3.0), max_hours=1.0)
    latest = clock_time(now + 2 * HOURS + 60.0 + HOURS, now)
    wait = "wait for 2 h 00 min at most, then rent for up to $3.00/h"
    assert out.asked == [f"{wait}; until {latest} at the latest, $3.05 at most: go?"]


def test_without_a_limit_there_is_nothing_to_agree_to_yet(
    somebody: tuple[Cloud, Context, Somebody], monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud, world, out = somebody
    offered(monkeypatch, [], [], [2.0])
    cloud.play(create=[Fault("AuthFailed", made=0)])
    with pytest.raises(AuthFailed):
        up(world)
    assert [question.partition(";")[0] for question in out.asked] == ["a machine, $2.00/h"]
    assert "note: stay near" in said(world)


def test_who_cannot_be_asked_does_not_wait_first(there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch) -> None:
    _, world = there
    world.yes = False
    offered(monkeypatch, [])
    with pytest.raises(UsageError, match="cannot ask for confirmation"):
        up(world)
    assert world.clock.slept == []  # type: ignore[attr-defined]
