"""Where clocks cannot tell whether a lease is over, its nodes are asked, or their provider."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuops.core.context import Context
from gpuops.core.errors import NodeError
from gpuops.guard import lease_check, lease_time
from gpuops.ledger.store import ClusterRow
from tests.fakes.provider import Scripted, surroundings
from tests.unit.guard.test_lease_time import JumpingClock, add_cluster, read


@pytest.fixture
def clock() -> JumpingClock:
    return JumpingClock()


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: JumpingClock) -> Context:
    monkeypatch.setattr(lease_time, "boot_id", lambda: "b1")
    return surroundings(tmp_path, monkeypatch, clock)[1]


class AnsweringNode:
    """A session with one node whose lease ends in `left_s`; None: it has no end."""

    def __init__(self, clock: JumpingClock, left_s: float | None) -> None:
        wall = None if left_s is None else clock.now() + left_s + 7.0
        self.hellos = [type("Hello", (), {"lease": type("Lease", (), {"hard_wall": wall})}), None]
        self.skews = [-7.0, 0.0]

    def close(self) -> None:
        pass


def expire(
    there: Context,
    clock: JumpingClock,
    monkeypatch: pytest.MonkeyPatch,
    session: Callable[..., Any],
    boot_id: str = "b0",
) -> tuple[ClusterRow, bool]:
    """A computer that starts again (`boot_id`: of before), five hours ahead: whether a lease of four hours is over."""
    row = add_cluster(there, 4 * 3600)
    there.ledger.set_cluster(row.id, state="up", ready=clock.now())
    row = there.ledger.cluster(row.id)
    (there.home / "guards").mkdir()
    lease_time.look(
        there.home,
        row,
        read(clock)._replace(boot_id=boot_id),
        lease_time.see_end(None, row.end, read(clock), is_new=True),
    )
    clock.jump = 5 * 3600.0
    lease_time.look(there.home, row, read(clock), None)
    monkeypatch.setattr(lease_check, "open_session", session)
    return row, lease_check.has_expired(there, row)


def test_after_a_reboot_the_nodes_say_whether_a_lease_is_over(
    there: Context, clock: JumpingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, is_over = expire(there, clock, monkeypatch, lambda *_, **__: AnsweringNode(clock, 3 * 3600.0))
    assert not is_over
    (said,) = [text for _, text in there.ledger.take_notices()]
    assert said == "lab goes on: its lease is over by this computer's clock alone, which is wrong"
    monkeypatch.setattr(lease_check, "open_session", lambda *_, **__: pytest.fail("asked twice"))
    clock.sleep(3 * 3600 - 1)
    assert not lease_check.has_expired(there, row)
    clock.sleep(2)
    assert lease_check.has_expired(there, row)


@pytest.mark.parametrize("left_s", [None, 0.0, -5.0])
def test_a_node_that_knows_no_better_keeps_nothing_from_its_end(
    there: Context, clock: JumpingClock, monkeypatch: pytest.MonkeyPatch, left_s: float | None
) -> None:
    assert expire(there, clock, monkeypatch, lambda *_, **__: AnsweringNode(clock, left_s))[1]


def test_a_node_that_says_it_lives_for_ever_lives_one_lease_longer(
    there: Context, clock: JumpingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, is_over = expire(there, clock, monkeypatch, lambda *_, **__: AnsweringNode(clock, 1e9))
    assert not is_over
    clock.sleep(4 * 3600 + 1)
    assert lease_check.has_expired(there, row)


@pytest.mark.parametrize("error", [OSError("no route"), KeyError("a bug")])
def test_where_no_node_answers_the_clock_counts(
    there: Context, clock: JumpingClock, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    assert expire(there, clock, monkeypatch, fail)[1]


@pytest.mark.parametrize(("ahead_s", "over"), [(5 * 3600.0, False), (0.0, True), (None, True)])
def test_where_no_node_answers_its_provider_is_asked_what_time_it_is(
    there: Context, clock: JumpingClock, monkeypatch: pytest.MonkeyPatch, ahead_s: float | None, over: bool
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise NodeError("node0 is away")

    def tell(_: Scripted) -> float | None:
        return None if ahead_s is None else clock.now() - ahead_s

    monkeypatch.setattr(Scripted, "provider_time", tell, raising=False)
    row, is_over = expire(there, clock, monkeypatch, fail)
    assert is_over is over
    clock.sleep(4 * 3600 + 1)
    assert lease_check.has_expired(there, row)


@pytest.mark.parametrize(("left_s", "over"), [(-5.0, True), (0.0, True), (3 * 3600.0, False), (None, False)])
def test_what_stood_still_while_its_laptop_slept_asks_what_it_has_missed(
    there: Context, clock: JumpingClock, monkeypatch: pytest.MonkeyPatch, left_s: float | None, over: bool
) -> None:
    """Its wall clock is set right then, and is alone in that. Where nobody says so, the time since the boot counts."""
    row, is_over = expire(there, clock, monkeypatch, lambda *_, **__: AnsweringNode(clock, left_s), boot_id="b1")
    assert is_over is over
    if left_s == 3 * 3600.0:
        monkeypatch.setattr(lease_check, "open_session", lambda *_, **__: pytest.fail("asked twice"))
        clock.sleep(left_s - 1)
        assert not lease_check.has_expired(there, row)
        clock.sleep(2)
        assert lease_check.has_expired(there, row)


@pytest.mark.parametrize("state", ["creating", "ending"])
def test_what_is_being_made_or_ended_is_not_asked(
    there: Context, clock: JumpingClock, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.setattr(lease_check, "open_session", lambda *_, **__: pytest.fail("asked"))
    row = add_cluster(there, 4 * 3600)
    there.ledger.set_cluster(row.id, state=state)
    row = there.ledger.cluster(row.id)
    (there.home / "guards").mkdir()
    lease_time.look(there.home, row, read(clock), lease_time.see_end(None, row.end, read(clock), is_new=True))
    clock.jump = 5 * 3600.0
    assert not lease_check.has_expired(there, row)
