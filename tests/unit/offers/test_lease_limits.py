"""Until when a cluster may live: arithmetic, and the words for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.core.errors import UsageError
from gpuops.core.format import clock_time
from gpuops.core.models import MACHINE, Lease, Offer, Resource
from gpuops.offers.lease_limits import (
    LeaseLimits,
    describe_lease,
    extend_lease,
    machines_end,
    new_lease,
    parse_span,
    within_life,
    within_offer,
)

NOW = 1_800_000_000.0


def at(later: float) -> str:
    return clock_time(NOW + later, NOW)


def test_rented_machines_end_by_themselves_and_own_ones_do_not() -> None:
    assert new_lease(LeaseLimits(), rented=True, per_hour=2.0, now=NOW) == Lease(NOW + 24 * 3600, 1800.0, None)
    assert new_lease(LeaseLimits(), rented=False, per_hour=0.0, now=NOW) == Lease()


def test_flags_come_before_defaults() -> None:
    assert new_lease(LeaseLimits(max_hours=3, idle_min=5), rented=True, per_hour=2.0, now=NOW) == Lease(
        NOW + 10800, 300.0, None
    )
    assert new_lease(LeaseLimits(max_hours=1), rented=False, per_hour=0.0, now=NOW) == Lease(NOW + 3600, None, None)


def test_money_is_time_at_the_present_price() -> None:
    lease = new_lease(LeaseLimits(max_cost=5.0), rented=True, per_hour=2.0, now=NOW)
    assert lease.money_end == NOW + 2.5 * 3600
    assert lease.end == lease.money_end, "the earlier end counts"
    assert new_lease(LeaseLimits(max_cost=5.0), rented=True, per_hour=0.0, now=NOW).money_end is None, (
        "what is free costs nothing"
    )
    late = new_lease(LeaseLimits(max_cost=5.0), rented=True, per_hour=2.0, now=NOW + 600, since=NOW)
    assert (late.hard_end, late.money_end) == (NOW + 600 + 24 * 3600, lease.money_end), "what boots costs, too"


@given(st.floats(0.01, 1e4), st.floats(0.01, 1e5), st.floats(0.1, 1e3))
def test_a_cap_in_money_is_never_exceeded(per_hour: float, max_cost: float, max_hours: float) -> None:
    end = new_lease(LeaseLimits(max_hours=max_hours, max_cost=max_cost), rented=True, per_hour=per_hour, now=0.0).end
    assert end is not None
    assert end / 3600 * per_hour <= max_cost * 1.000001
    assert end <= max_hours * 3600


def test_extending_moves_the_hard_end_alone() -> None:
    assert extend_lease(Lease(NOW + 60, 5.0, NOW + 90), 3600, NOW) == Lease(NOW + 3660, 5.0, NOW + 90)
    assert extend_lease(Lease(NOW - 60), 3600, NOW) == Lease(NOW + 3600), "what has passed is counted from now"
    assert extend_lease(Lease(), 3600, NOW) == Lease(NOW + 3600)


def test_a_lease_is_no_longer_than_its_machines_live() -> None:
    machines = [machine(ends=NOW + 900), machine(ends=NOW + 600), machine()]
    assert machines_end(machines) == NOW + 600
    assert within_life(Lease(NOW + 3600, 5.0), machines) == Lease(NOW + 600, 5.0)
    assert within_life(Lease(None, 5.0), machines) == Lease(NOW + 600, 5.0)
    assert within_life(Lease(NOW + 60), machines) == Lease(NOW + 60)
    assert within_life(Lease(), [machine()]) == Lease()


def test_an_offer_may_have_ends_of_its_own() -> None:
    offer = Offer("p", "o", "", 1, 0, data={"ends": NOW + 60, "idle_min": 30.0})
    assert within_offer(LeaseLimits(), offer) == LeaseLimits(idle_min=30.0, until=NOW + 60)
    assert within_offer(LeaseLimits(idle_min=5.0, until=NOW), offer) == LeaseLimits(idle_min=5.0, until=NOW)
    assert within_offer(LeaseLimits(), Offer("p", "o", "", 1, 0)) == LeaseLimits()


def machine(**data: float) -> Resource:
    return Resource(MACHINE, "1", "", "gpuops-0a1b2c3d-lab-0", False, data=data)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30min", 1800), ("30m", 1800), ("2h", 7200), ("1h30m", 5400), ("1h 30m", 5400), ("1.5d", 129600),
     (" 2 H ", 7200)],
)  # fmt: skip
def test_spans(text: str, seconds: float) -> None:
    assert parse_span(text) == seconds


@pytest.mark.parametrize("text", ["", " ", "2", "h", "-2h", "2 weeks", "1h30", "0s", "nan h", "1e3h", "2h x", "²h"])
def test_what_is_no_span(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_span(text)
    assert (caught.value.message, caught.value.exit_code) == (f"'{text}' is not a length of time", 2)


@given(st.text(max_size=12))
def test_any_text_is_a_span_or_a_sentence(text: str) -> None:
    try:
        seconds = parse_span(text)
    except UsageError:
        return
    assert seconds > 0


@pytest.mark.parametrize(
    ("lease", "words"),
    [
        (Lease(), "no end: `gpuops down` ends it"),
        (Lease(NOW + 7200), f"ends in 2 h 00 min (at {at(7200)})"),
        (Lease(NOW + 7200, 1800.0, NOW + 60), f"ends in 1 min (at {at(60)}), or after 30 min without use"),
        (Lease(None, 90.0), "ends after 1:30 min without use"),
        (Lease(NOW - 70, 1800.0), f"overdue by 1:10 min (since {at(-70)})"),
    ],
)
def test_words(lease: Lease, words: str) -> None:
    assert describe_lease(lease, NOW) == words


def test_a_cluster_of_a_run_ends_with_it() -> None:
    assert describe_lease(Lease(), NOW, ephemeral=True) == "ends with its run"
