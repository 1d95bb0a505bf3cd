"""What the account can pay, what is offered at which price, and what may be taken without anybody being asked."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.cli.terminal.output import Output
from gpuops.clusters import creation
from gpuops.clusters.teardown import tear_down
from gpuops.core.context import Context
from gpuops.core.errors import GpuopsError, NoCapacity, QuotaExceeded, UsageError
from gpuops.core.format import clock_time
from gpuops.core.models import Lease, Offer, Price, Request
from gpuops.core.polling import Clock
from gpuops.offers import lease_limits, offer_table, price_approval
from gpuops.offers.lease_limits import (
    BALANCE_RESERVE_S,
    MIN_LEASE_S,
    EndedBy,
    Funds,
    LeaseLimits,
    balance_ends_first,
    balance_warning,
    cut_to_balance,
    describe_bill,
    describe_how_to_end,
    explain_spend_limit,
    money_spent,
)
from provisioners.checked_provisioner import CheckedProvisioner
from tests.conftest import HANG_S
from tests.fakes.provider import NAME, PRICE, Cloud, Fault, Scripted, surroundings

NOW = 1_800_000_000.0
H = 3600.0
SHORTLY = "the lease ends shortly before"
DAY = Lease(NOW + 24 * H, 1800.0)
ONE = Request(NAME, timeout_min=1.0)


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Cloud, Context]:
    return surroundings(tmp_path, monkeypatch)


# -- decisions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lease", "funds", "hours", "said"),
    [
        (DAY, Funds(11.2, asked=NOW), 4 + 40 / 60,
         "the balance of $11.20 lasts 4 h 40 min at $2.40/h: the lease ends shortly before"),
        (DAY, Funds(11.2, 2.4, asked=NOW), 2 + 20 / 60,
         f"the balance of $11.20 lasts 2 h 20 min at $2.40/h beside $2.40/h that are spent already: {SHORTLY}"),
        (Lease(NOW + 48 * H), Funds(60.0, asked=NOW), 25.0,
         "the balance of $60.00 lasts 25 h 00 min at $2.40/h: the lease ends shortly before"),
        (DAY, Funds(60.0, asked=NOW), None, ""),
        (Lease(NOW + 48 * H, None, NOW + 2 * H), Funds(11.2, asked=NOW), None, ""),
        (DAY, Funds(asked=NOW), None, ""),
        (DAY, Funds(0.0, asked=NOW), None, ""),
        (DAY, Funds(-3.0, asked=NOW), None, ""),
    ],
)  # fmt: skip
def test_no_lease_is_longer_than_the_balance_lasts(lease: Lease, funds: Funds, hours: float | None, said: str) -> None:
    ends = lease.hard_end if hours is None else NOW + hours * H - BALANCE_RESERVE_S
    shorter, why = cut_to_balance(lease, funds, 2.4, NOW)
    assert (shorter.hard_end, why) == (pytest.approx(ends), said)
    assert (shorter.idle_s, shorter.money_end) == (lease.idle_s, lease.money_end)


def test_machines_without_an_end_have_one_when_the_money_does() -> None:
    assert cut_to_balance(Lease(), Funds(2.4, asked=NOW), 2.4, NOW)[0].hard_end == NOW + H - BALANCE_RESERVE_S


def test_a_balance_that_is_used_up_while_the_nodes_boot_leaves_time_to_look() -> None:
    assert cut_to_balance(DAY, Funds(0.04, asked=NOW - 600), 2.4, NOW)[0].hard_end == NOW + MIN_LEASE_S


@given(st.floats(0.01, 1e6), st.floats(0.0, 1e3), st.floats(0.01, 1e3))
def test_what_is_left_is_never_overdrawn_but_for_the_least(balance: float, others: float, per_hour: float) -> None:
    lease, _ = cut_to_balance(DAY, Funds(balance, others, asked=NOW), per_hour, NOW)
    assert lease.hard_end is not None
    assert (lease.hard_end - NOW) / H * (per_hour + others) <= balance * 1.0001 or lease.hard_end == NOW + MIN_LEASE_S


@pytest.mark.parametrize(
    ("funds", "said"),
    [
        (Funds(), "the balance is unknown"),
        (Funds(0.0), "the balance is $0.00: the provider may refuse, or end it all at any time"),
        (Funds(1.1), "the balance of $1.10 lasts 27:30 min at $2.40/h: some providers rent for an hour at least"),
        (Funds(2.4), ""),
    ],
)
def test_what_is_doubtful_about_the_balance(funds: Funds, said: str) -> None:
    assert balance_warning(funds, 2.4) == said


def test_the_limit_of_the_account() -> None:
    said = "$2.40/h is too much: the account may spend $80.00/h and spends $78.00/h already"
    assert explain_spend_limit(Funds(spend_per_hr=78.0, spend_limit=80.0), 2.4) == said
    assert explain_spend_limit(Funds(spend_limit=2.0), 2.4) == "$2.40/h is too much: the account may spend $2.00/h"
    for enough in (
        Funds(),
        Funds(spend_limit=2.4),
        Funds(spend_per_hr=77.0, spend_limit=80.0),
        Funds(spend_per_hr=1e6),
    ):
        assert explain_spend_limit(enough, 2.4) == ""


@pytest.mark.parametrize(
    ("funds", "said"),
    [
        (Funds(24.0, asked=NOW), True),
        (Funds(48.0, 4.8, asked=NOW), True),
        (Funds(0.0, asked=NOW), True),
        (Funds(60.0, asked=NOW), False),
        (Funds(48.0, 1.2, asked=NOW), False),
        (Funds(asked=NOW), False),
    ],
)
def test_a_lease_that_the_balance_does_not_last_for(funds: Funds, said: bool) -> None:
    why = balance_ends_first(DAY, funds, 2.4, NOW)
    assert ("lasts until" in why) is said
    assert balance_ends_first(Lease(None, 60.0), funds, 2.4, NOW) == ""
    if funds.balance == 24.0:
        until = clock_time(NOW + 10 * H, NOW)
        assert why == f"the balance of $24.00 lasts until {until} at $2.40/h, which is sooner"


def test_money_so_far() -> None:
    assert money_spent(2.4, NOW - 45.0, NOW) == pytest.approx(0.03)
    assert money_spent(2.4, NOW + 45.0, NOW) == 0.0, "a clock that was set back earns nothing"


def test_a_moment_as_the_clock_on_the_wall_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    __import__("time").tzset()
    try:
        assert clock_time(NOW, NOW - 60) == "08:00"
        assert clock_time(NOW + 20 * H, NOW) == "Sat 16 Jan 04:00"
        for by, say in (
            (EndedBy.MACHINES, "it ends by itself at 09:00"),
            (EndedBy.GUARD, "the guard on this computer ends it at 09:00, while this computer is on"),
            (
                EndedBy.NOBODY,
                "nothing else does when its lease is over, at 09:00: neither these machines nor the guard can",
            ),
        ):
            assert describe_how_to_end("lab", Lease(NOW + H), NOW, by) == f"`gpuops down lab` ends it; {say}"
            assert describe_how_to_end("lab", Lease(), NOW, by) == "`gpuops down lab` ends it"
    finally:
        monkeypatch.undo()
        __import__("time").tzset()


def offer(index: int, price: float, **data: Any) -> Offer:
    return Offer(NAME, f"o{index}", f"machine {index}", 1, 2, "moon", (Price("m", price),), data)


def test_offers_are_a_table_in_the_order_of_trying() -> None:
    assert offer_table.format_offers([offer(0, 1.0), offer(1, 2.5)]) == [
        "OFFER      GPUS  REGION  $/H",
        "machine 0  2     moon    $1.00",
        "machine 1  2     moon    $2.50",
    ]
    own = {"gpu": "H100 80GB", "memory": "251 GB", "$/h": "$2.39"}
    assert offer_table.format_offers([offer(0, 2.39, columns=own)]) == [
        "GPU        MEMORY  $/H",
        "H100 80GB  251 GB  $2.39",
    ]
    assert offer_table.format_offers([offer(0, 1.0)]) == [], "one that says no more than its sentence"
    many = [offer(index, 1.0, columns={"gpu": f"g{index}"}) for index in range(40)]
    assert offer_table.format_offers(many)[-2:] == ["g11  $1.00", "and 28 more"]


def test_the_choice_is_explained() -> None:
    after = "; the next ones follow where it cannot be had"
    assert (
        offer_table.explain_choice([offer(0, 1.0), offer(1, 2.0)]) == f"the top one is tried first: the cheapest{after}"
    )
    assert (
        offer_table.explain_choice([offer(0, 3.0), offer(1, 2.0)])
        == f"the top one is tried first: what scripted puts first{after}"
    )
    told = offer_table.explain_choice([offer(0, 3.0, why="the last with NVLink"), offer(1, 2.0)])
    assert told == f"the top one is tried first: the last with NVLink{after}"
    assert offer_table.explain_choice([offer(0, 1.0)]) == ""


def test_the_price_that_allows_an_offer_is_never_below_it() -> None:
    assert [price_approval.max_price_flag(price) for price in (2.4, 2.401, 0.1 + 0.2)] == [
        "--max-price 2.40", "--max-price 2.41", "--max-price 0.30",
    ]  # fmt: skip


# -- as a story ---------------------------------------------------------------------------------


def tells(monkeypatch: pytest.MonkeyPatch, account: Callable[[], Any], within_s: float = HANG_S) -> None:
    for place in ("gpuops.offers.search.ACCOUNT_WAIT_FOR_OFFERS_S", "gpuops.offers.price_terms.ACCOUNT_WAIT_S"):
        monkeypatch.setattr(place, within_s)
    monkeypatch.setattr(Scripted, "account", lambda _: account(), raising=False)


def up(world: Context, request: Request = ONE, **wish: float) -> tuple[str, BaseException | None, Lease]:
    """Bring it up, as far as it comes: what was said, what ended it, its lease."""
    world.out = Output(err=(said := io.StringIO()))
    try:
        live = creation.bring_up(world, request, name="lab", ephemeral=False, wish=LeaseLimits(**wish))
    except GpuopsError as error:
        (*_, row) = world.ledger.clusters(live=False) or [None]
        return said.getvalue(), error, row.lease if row else Lease()
    live.close()
    lease = world.ledger.cluster(live.row.id).lease
    world.clock = Clock()  # real nodes take real time to end
    tear_down(world, live.row.id, "the test's end")
    return said.getvalue(), None, lease


def test_what_the_account_may_not_spend_is_not_asked_for(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud, world = there
    cloud.play(offers_at=[3.0, 2.0])
    tells(monkeypatch, lambda: {"spend_per_hr": 78.5, "spend_limit": 80.0})
    _, error, _ = up(world)
    assert isinstance(error, QuotaExceeded)
    assert error.message == "$2.00/h is too much: the account may spend $80.00/h and spends $78.50/h already"
    assert error.hint
    assert cloud.calls() == ["preflight", "offers"]
    assert world.ledger.clusters(live=False) == []


def test_a_cheaper_one_within_the_limit_is_taken(there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch) -> None:
    cloud, world = there
    cloud.play(offers_at=[3.0, 1.0], create=[Fault("AuthFailed", made=0)])
    tells(monkeypatch, lambda: {"spend_per_hr": 78.5, "spend_limit": 80.0})
    words, _, _ = up(world)
    assert "offer 1, $1.00/h; until " in words
    assert words.count("offer 1") == 1
    assert "offer 0" not in words


def test_without_anybody_to_ask_half_as_dear_again_is_the_most(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    cloud.play(offers_at=[2.0, 3.0, 3.01, 2.5], create_always=[Fault("NoCapacity", made=0)])
    _, error, _ = up(world)
    assert isinstance(error, NoCapacity)
    assert error.message == (
        "none of 3 offers could be had: the provider said NoCapacity; "
        "the next offer is offer 2 at $3.01/h, more than 1.5 times $2.00/h"
    )
    assert error.hint == "allow it: --max-price 3.01; or do something about it"
    assert cloud.calls().count("create") == 3


def test_a_price_that_was_named_is_the_limit(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    cloud.play(offers_at=[2.0, 9.0, 11.0], create_always=[Fault("NoCapacity", made=0)])
    _, error, _ = up(world, dataclasses.replace(ONE, max_price=10.0))
    assert error is not None
    assert error.message == "none of 2 offers could be had: the provider said NoCapacity"
    assert error.hint == "do something about it"  # what all of them said


class Somebody(Output):
    """Who says yes to everything."""

    interactive = True  # type: ignore[assignment]

    def __init__(self, err: io.StringIO) -> None:
        super().__init__(err=err)
        self.asked: list[str] = []

    def confirm(self, question: str) -> bool:
        self.asked.append(question)
        return True


def test_what_there_is_is_shown_before_the_one_question(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    cloud.play(offers_at=[2.0, 2.0], create=[Fault("AuthFailed", made=0)])
    world.yes = False
    world.out = out = Somebody(io.StringIO())
    with pytest.raises(GpuopsError, match="AuthFailed"):
        creation.bring_up(world, ONE, name="lab", ephemeral=False, wish=LeaseLimits())
    (asked,) = out.asked
    assert asked.startswith("offer 0, $2.00/h; until ")
    assert out.err.getvalue().splitlines()[:4] == [  # type: ignore[attr-defined]
        "OFFER    $/H",
        "offer 0  $2.00",
        "offer 1  $2.00",
        "the top one is tried first: the cheapest; the next ones follow where it cannot be had",
    ]


@pytest.mark.parametrize(
    ("wish", "wait_s", "until_h", "most"),
    [
        ({}, 0.0, 24.1, "$48.20"),
        ({"max_hours": 3.0}, 0.0, 3.1, "$6.20"),
        ({"max_hours": 3.0}, 7200.0, 5.1, "$6.20"),
        ({"max_cost": 5.0}, 0.0, 2.5, "$5.00"),
        ({"max_cost": 5.0, "max_hours": 1.0}, 0.0, 1.1, "$2.20"),
    ],
)
def test_the_question_tells_the_end_and_the_most_it_can_cost(
    there: tuple[Cloud, Context], wish: dict[str, float], wait_s: float, until_h: float, most: str
) -> None:
    cloud, world = there
    cloud.play(offers_at=[2.0], create=[Fault("AuthFailed", made=0)])
    world.yes = False
    world.out = out = Somebody(io.StringIO())
    latest = clock_time(world.clock.now() + until_h * H, world.clock.now())
    request = dataclasses.replace(ONE, timeout_min=6.0, wait_s=wait_s)
    with pytest.raises(GpuopsError, match="AuthFailed"):
        creation.bring_up(world, request, name="lab", ephemeral=False, wish=LeaseLimits(**wish))
    assert out.asked[-1] == f"offer 0, $2.00/h; until {latest} at the latest, {most} at most: go?"
    assert out.err.getvalue().count("offer 0") == 0, "a single one is told once"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("lease", "says"),
    [
        (Lease(NOW + H, 1800.0), f"it ends by itself at {clock_time(NOW + H, NOW)}, or after 30 min without use"),
        (Lease(None, 1800.0), "it ends after 30 min without use"),
        (Lease(NOW + H), f"it ends by itself at {clock_time(NOW + H, NOW)}"),
    ],
)
def test_what_goes_on_and_bills_says_until_when(lease: Lease, says: str) -> None:
    bill = describe_bill("lab", 1.09, lease, NOW, EndedBy.MACHINES)
    assert bill == f"lab goes on at $1.09/h: `gpuops down lab` ends it; {says}"


def test_nobody_is_there_to_be_asked(there: tuple[Cloud, Context]) -> None:
    _, world = there
    world.yes = False
    _, error, _ = up(world)
    assert isinstance(error, UsageError)
    assert error.hint == "add --yes"


def test_of_an_account_only_what_can_be_reckoned_with_is_passed_on(there: tuple[Cloud, Context]) -> None:
    _, world = there
    inner = world.provisioner(NAME).inner  # type: ignore[attr-defined]
    assert CheckedProvisioner(inner).account() is None
    inner.balance = lambda: 3
    assert CheckedProvisioner(inner).account() == {"balance": 3.0}
    inner.balance = lambda: None
    assert CheckedProvisioner(inner).account() == {}
    inner.account = lambda: {"balance": float("inf"), "spend_per_hr": None, "spend_limit": 80}
    assert CheckedProvisioner(inner).account() == {"spend_limit": 80.0}


def test_the_words_of_the_lease_are_those_of_the_table() -> None:
    assert lease_limits.describe_lease(DAY, NOW).startswith(
        f"ends in 24 h 00 min (at {clock_time(NOW + 24 * H, NOW)}), or after"
    )
    assert PRICE == 1.25
