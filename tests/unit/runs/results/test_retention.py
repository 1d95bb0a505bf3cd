"""How long nodes wait for their results to be fetched, and what is said of that."""

from __future__ import annotations

import time

import pytest

from gpuops.core.models import Lease
from gpuops.runs.results import retention

NOON = time.mktime((2026, 11, 22, 12, 0, 0, 0, 0, -1))
"""By this computer's own clock, wherever it stands."""
DAY = Lease(hard_end=NOON + 86400, idle_s=1800.0)


@pytest.mark.parametrize(("per_hour", "seconds"), [(0.0, 7200), (0.5, 7200), (2.5, 7200), (10.0, 1800), (32.0, 562.5)])
def test_the_wait_that_nobody_asked_for_is_two_hours_or_five_dollars(per_hour: float, seconds: float) -> None:
    assert retention.default_hold_s(per_hour) == seconds


@pytest.mark.parametrize(
    ("asked", "rented", "ephemeral", "seconds"),
    [
        (60.0, True, True, 60.0),
        (60.0, True, False, 60.0),
        (None, True, True, 562.5),
        (None, True, False, 1800.0),
        (None, False, True, None),
        (90.0, False, False, 90.0),
    ],
)
def test_what_stays_up_by_its_users_word_is_not_ended_sooner_for_holding_results(
    asked: float | None, rented: bool, ephemeral: bool, seconds: float | None
) -> None:
    assert retention.resolve_hold_s(asked, DAY, 32.0, rented=rented, ephemeral=ephemeral) == seconds


@pytest.mark.parametrize(
    ("hold", "lease", "words"),
    [
        (
            7200.0,
            Lease(NOON + 9000),
            "within 2 h 00 min after the run's end, and before the lease ends at 14:30 (local time)",
        ),
        (7200.0, Lease(NOON + 5400), "by 13:30 (local time), when the lease ends"),
        (7200.0, Lease(None, 1800.0, NOON + 7200), "by 14:00 (local time), when the lease ends"),
        (600.0, Lease(None, 1800.0), "within 10 min after the run's end"),
    ],
)  # fmt: skip
def test_the_clock_is_named_where_it_is_known(hold: float, lease: Lease, words: str) -> None:
    said = retention.loss_warning(hold, lease, NOON)
    assert said == f"results are lost unless this computer is back {words}; {retention.AFTER_RESTART}"


def test_who_detaches_is_told_what_the_wait_may_cost() -> None:
    say, hint = retention.detach_refusal(0.36)
    assert say == "with --detach results are lost where this computer is away when the run ends"
    assert hint == (
        "say --grace 2 (the nodes wait 2 h 00 min for it, for at most $0.72), "
        "or --sink s3://BUCKET/PREFIX or volume:NAME (which keeps them)"
    )
    assert "let the nodes wait up to 9:22 min for this computer to fetch the results, for at most $5.00?" in (
        retention.detach_question(32.0)
    )
