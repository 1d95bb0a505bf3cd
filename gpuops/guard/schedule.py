"""When the guard of a cluster makes an attempt, ends one that takes too long, and makes a failed one again. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from gpuops.ledger.rows import ClusterRow, ClusterState, RunRow, RunState

LEASE_MARGIN_S = 60.0
"""The node's own watchdog ends it first; the guard is the second dead-man."""
RETRY_S = 30.0
RETRY_SLOW_S = 300.0
"""The first and the longest pause between attempts that fail."""
NOTICE_FAILURES = 3
"""After this many failed attempts in a row a notice says so to the next command."""
NODE_CHECK_INTERVAL_S = 60.0
"""A cluster that is simply up is checked this often: its nodes may have ended by themselves."""
ATTEMPT_S = 600.0
"""An attempt may take this long once its cluster's lease has ended: longer than bringing results home takes."""


class Job(enum.Enum):
    """What a child of the guard is started for."""

    TEND = "tend"
    END_AT_ONCE = "end-at-once"
    """As TEND; but what is rented, and had its time to bring results home in an earlier attempt, waits no longer."""
    CLEAR = "clear"
    """What its provider still lists of a cluster that is gone."""


def next_job(
    row: ClusterRow,
    runs: Sequence[RunRow],
    now: float,
    ran_s: float,
    limit_s: float,
    *,
    working: bool,
    rested: bool,
    is_sure: bool = True,
) -> Job | None:
    """The attempt to start now, in the place of one that is under way (`working`); None: nothing is to be started.

    `now`: the time of the lease (`lease_time`), and whether `is_sure`; `ran_s`: seconds since the last attempt was
    started; `limit_s`: as of `is_overtime`; `rested`: whether the pause after a failed attempt is over.
    """
    overtime = is_overtime(row, now, ran_s, limit_s)
    if working:
        at_once = Job.END_AT_ONCE if is_out_of_time(row, now, ran_s) else Job.TEND
        return at_once if overtime else None
    return Job.TEND if (overtime or rested) and needs_tending(row, runs, now, ran_s, is_sure) else None


def needs_tending(
    row: ClusterRow, runs: Sequence[RunRow], now: float, since_check_s: float, is_sure: bool = True
) -> bool:
    """Whether a cluster has outlived its lease, or has something to be done and no living process that does it.

    `now`: the time of the lease; where it is not sure, an attempt may find that the end has not come, and the next is
    not made at once. `since_check_s`: seconds since the last attempt was started.
    """
    if row.is_overdue(now - LEASE_MARGIN_S) and (is_sure or since_check_s >= NODE_CHECK_INTERVAL_S):
        return True
    if row.has_live_owner():
        return False
    owned = [run.has_live_owner() for run in runs if run.state is not RunState.HOME]
    over = row.ephemeral and not any(owned)
    return row.state is not ClusterState.UP or over or not all(owned) or since_check_s >= NODE_CHECK_INTERVAL_S


def is_overtime(row: ClusterRow, now: float, ran_s: float, limit_s: float = ATTEMPT_S) -> bool:
    """Whether an attempt keeps its cluster from its end. One that began before the lease ended does not know of the
    end: it follows a run, or waits for a node that never answers."""
    late_s = now - row.end if row.end is not None else 0.0
    return late_s > LEASE_MARGIN_S and (ran_s > late_s or ran_s >= limit_s)


def is_out_of_time(row: ClusterRow, now: float, ran_s: float) -> bool:
    """Whether an attempt has known of the lease's end for as long as bringing results home may take."""
    return row.end is not None and ATTEMPT_S <= ran_s <= now - row.end


def retry_pause_s(failures: int) -> float:
    """The pause after a number of failed attempts in a row."""
    return min(RETRY_S * 2.0 ** min(failures - 1, 30), RETRY_SLOW_S)
