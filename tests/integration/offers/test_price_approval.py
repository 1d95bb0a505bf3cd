"""What tests/unit/offers/test_price_approval.py leaves to real processes or sockets."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuops.core.context import Context
from gpuops.offers.lease_limits import BALANCE_RESERVE_S
from tests.conftest import HANG_S
from tests.fakes.provider import Cloud, surroundings
from tests.unit.offers.test_price_approval import H, tells, up


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Cloud, Context]:
    return surroundings(tmp_path, monkeypatch)


@pytest.mark.parametrize(("wish", "hours"), [({}, 3.2), ({"max_hours": 100.0}, 3.2), ({"max_hours": 1.0}, 1.0)])
def test_the_lease_ends_with_the_balance(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch, wish: dict[str, float], hours: float
) -> None:
    cloud, world = there
    cloud.play(real=True)
    tells(monkeypatch, lambda: {"balance": 4.0})
    began = world.clock.now()
    said, error, lease = up(world, **wish)
    assert error is None
    assert lease.hard_end == pytest.approx(began + hours * H - (BALANCE_RESERVE_S if hours > 3 else 0.0), abs=60)
    sentence = "note: the balance of $4.00 lasts 3 h 12 min at $1.25/h: the lease ends shortly before\n"
    assert said.count("the balance") == (hours > 3)
    assert (sentence in said) is (hours > 3)


def broken() -> None:
    raise KeyError("myself")


@pytest.mark.parametrize(
    ("account", "said"),
    [(lambda: {"balance": None}, True), (broken, True), (lambda: {"balance": float("nan")}, True),
     (lambda: {"balance": 1e9}, False)],
)  # fmt: skip
def test_a_balance_that_is_not_told_is_no_reason_to_fail(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch, account: Callable[[], Any], said: bool
) -> None:
    cloud, world = there
    cloud.play(real=True)
    tells(monkeypatch, account)
    words, error, lease = up(world)
    assert error is None
    assert lease.hard_end == pytest.approx(world.ledger.clusters(live=False)[0].ready + 24 * H, abs=1)
    assert ("note: the balance is unknown\n" in words) is said


def test_who_tells_no_balance_is_not_asked_for_it(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    cloud.play(real=True)
    words, error, _ = up(world)
    assert error is None
    assert "balance" not in words


def test_nobody_waits_for_an_account_that_does_not_answer(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud, world = there
    cloud.play(real=True)
    answer = threading.Event()
    tells(monkeypatch, lambda: answer.wait(HANG_S) and {"balance": 0.5}, within_s=0.05)
    try:
        words, error, _ = up(world)
    finally:
        answer.set()
    assert error is None
    assert "note: the balance is unknown\n" in words
