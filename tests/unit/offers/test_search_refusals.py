"""Why nothing could be had: capacity and quota are told apart, and get opposite advice."""

from __future__ import annotations

import pytest

from gpuops.core.errors import NoCapacity, QuotaExceeded
from gpuops.core.models import Offer, Price
from gpuops.offers.refusals import WAIT_HINT, Refusals

FULL = NoCapacity("a has none left", "wait, or go elsewhere")
SHORT = QuotaExceeded("0 of 16 vCPU", "file a request: gpuops quota aws")


def offer(place: str, quota: str = "", price: float = 1.0) -> Offer:
    return Offer("aws", place, f"one in {place}", 1, 1, "r", (Price("m", price),), {"place": place, "quota": quota})


def test_only_a_quota_is_no_capacity_problem() -> None:
    refusals = Refusals()
    refusals.add_refusal(offer("a", "spot"), SHORT)
    assert refusals.skips(offer("b", "spot"))
    assert not refusals.skips(offer("c", "p5"))
    assert not refusals.skips(offer("d"))
    error = refusals.error()
    assert isinstance(error, QuotaExceeded)
    assert (error.message, error.hint) == ("none of 2 offers could be had: 0 of 16 vCPU", SHORT.hint)


def test_a_quota_without_a_name_ends_it() -> None:
    with pytest.raises(QuotaExceeded, match="0 of 16"):
        Refusals().add_refusal(offer("a"), SHORT)


def test_both_are_kept_apart() -> None:
    refusals = Refusals()
    refusals.add_refusal(offer("a"), FULL)
    refusals.add_refusal(offer("b", "spot"), SHORT)
    error = refusals.error()
    assert isinstance(error, NoCapacity)
    assert (
        error.message == "none of 2 offers could be had: no capacity: a has none left; beyond the quota: 0 of 16 vCPU"
    )
    assert error.hint == f"for the capacity: {FULL.hint}; for the quota: {SHORT.hint}"


def test_capacity_alone_is_said_as_it_is() -> None:
    refusals = Refusals()
    refusals.add_refusal(offer("a"), FULL)
    assert (refusals.error().message, refusals.error().hint) == (FULL.message, FULL.hint)
    refusals.add_refusal(offer("b"), NoCapacity("b has none left", "something else"))
    assert refusals.error().message == "none of 2 offers could be had: a has none left; b has none left"
    assert refusals.error().hint == WAIT_HINT


@pytest.mark.parametrize("first", [FULL, SHORT])
def test_what_is_dearer_may_still_be_allowed(first: NoCapacity | QuotaExceeded) -> None:
    refusals = Refusals()
    refusals.add_refusal(offer("a", "spot"), first)
    refusals.add_too_expensive(offer("b", price=3.999), "one in b costs $4.00/h")
    error = refusals.error()
    assert type(error) is NoCapacity, "with more money there is something"
    assert error.message == f"{first.message}; one in b costs $4.00/h"
    assert "allow it: --max-price 4.00" in error.hint
    assert (SHORT.hint in error.hint) is (first is SHORT)
