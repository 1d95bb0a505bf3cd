"""When an attempt of the guard is made, ended, and made again."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.core.models import Lease
from gpuops.guard import schedule
from gpuops.guard.schedule import Job
from gpuops.ledger.rows import ClusterState
from gpuops.ledger.store import ClusterRow
from tests.fakes.provider import NAME

NOW = 1_800_000_000.0


def row(state: str = "up", lease: Lease | None = None, boot: float = NOW + 99) -> ClusterRow:
    """A cluster without an owner process."""
    lease, at = lease or Lease(), ClusterState(state)
    return ClusterRow(1, "a", NAME, Path("/p"), at, False, "t", {}, {}, boot, lease, None, 0.0, None, None, "")


def test_which_attempt_is_overtime() -> None:
    late = Lease(hard_end=NOW - schedule.LEASE_MARGIN_S - 1)
    table: list[tuple[ClusterRow, float, bool]] = [
        (row(), 9999.0, False),
        (row(lease=late), schedule.LEASE_MARGIN_S, False),
        (row(lease=late), schedule.LEASE_MARGIN_S + 2, True),
        (row(lease=Lease(hard_end=NOW - 1)), 9999.0, False),
        (row(lease=Lease(hard_end=NOW - 9999)), schedule.ATTEMPT_S, True),
        (row("creating", boot=NOW - 9999), schedule.ATTEMPT_S - 1, False),
    ]
    for cluster, ran_s, expected in table:
        assert schedule.is_overtime(cluster, NOW, ran_s) is expected, (cluster, ran_s)


def test_who_has_had_time_enough_to_bring_things_home() -> None:
    table: list[tuple[ClusterRow, float, bool]] = [
        (row(), 9999.0, False),
        (row(lease=Lease(hard_end=NOW - 9999)), schedule.ATTEMPT_S, True),
        (row(lease=Lease(hard_end=NOW - 9999)), schedule.ATTEMPT_S - 1, False),
        (row(lease=Lease(hard_end=NOW - 700)), 701.0, False),
    ]
    for cluster, ran_s, expected in table:
        assert schedule.is_out_of_time(cluster, NOW, ran_s) is expected, (cluster, ran_s)


def test_failures_are_tried_again_ever_more_seldom() -> None:
    assert [schedule.retry_pause_s(failures) for failures in (1, 2, 3, 4, 5, 10_000)] == [
        30.0,
        60.0,
        120.0,
        240.0,
        300.0,
        300.0,
    ]


@pytest.mark.parametrize(
    ("cluster", "ran_s", "working", "rested", "job"),
    [
        (row("ending"), 5.0, False, True, Job.TEND),
        (row("ending"), 5.0, False, False, None),
        (row("ending"), 9999.0, True, True, None),
        (row(), 5.0, False, True, None),
        (row(lease=Lease(hard_end=NOW - 100)), 50.0, True, True, None),
        (row(lease=Lease(hard_end=NOW - 100)), 150.0, True, True, Job.TEND),
        (row(lease=Lease(hard_end=NOW - 100)), 150.0, False, False, Job.TEND),
        (row(lease=Lease(hard_end=NOW - 9999)), schedule.ATTEMPT_S, True, True, Job.END_AT_ONCE),
    ],
)
def test_which_attempt_comes_next(
    cluster: ClusterRow, ran_s: float, working: bool, rested: bool, job: Job | None
) -> None:
    """A failed attempt is paused after, unless the lease has ended; one that is under way has its time to the end."""
    found = schedule.next_job(cluster, [], NOW, ran_s, schedule.ATTEMPT_S, working=working, rested=rested)
    assert found is job
