"""Whether a cluster has outlived its lease, where this computer's clocks alone cannot tell: others are asked."""

from __future__ import annotations

from contextlib import closing, suppress

from gpuops.agent.lease_clock import CLOCK_JUMP_S
from gpuops.core.context import Context
from gpuops.core.errors import GpuopsError
from gpuops.guard import lease_time
from gpuops.ledger.rows import ClusterState
from gpuops.ledger.store import ClusterRow
from gpuops.nodes.session import machines_of, open_session


def has_expired(ctx: Context, row: ClusterRow) -> bool:
    """Whether a cluster has outlived its lease. Where this computer's clocks cannot tell, a node is asked, or the
    provider what time it is; where none answers, the wall clock counts for a lease that was given before this boot."""
    now = lease_time.read_clocks(ctx.clock)
    first = lease_time.recall(ctx.home, row, now)
    can_ask = row.state is ClusterState.UP
    if not row.is_overdue(lease_time.lease_time(first, now, can_ask=can_ask)):
        return False
    if first is None or not can_ask or not first.is_in_doubt(now):
        return True
    told_s = _ask_nodes(ctx, row)
    told_s = _ask_provider(ctx, row, first.end) if told_s is None else told_s
    if told_s is None:
        return row.is_overdue(lease_time.lease_time(first, now, can_ask=False))
    left_s = min(told_s, first.end - row.created)  # no answer makes a lease longer than it was
    if left_s <= 0:
        return True
    lease_time.write(ctx.home, row.id, lease_time.move_end(first, left_s, now))
    if left_s > CLOCK_JUMP_S:
        with suppress(GpuopsError):
            ctx.ledger.add_notice(
                f"{row.name} goes on: its lease is over by this computer's clock alone, which is wrong"
            )
    return False


def _ask_nodes(ctx: Context, row: ClusterRow) -> float | None:
    """Seconds until the first node's lease ends; None where none that has an end answers."""
    try:
        session = open_session(ctx, row, some=True)
    except Exception:
        return None  # whatever it is, nothing keeps an end from coming
    with closing(session):
        leases = [(hello.lease, skew) for hello, skew in zip(session.hellos, session.skews, strict=True) if hello]
        ends = [lease.hard_wall + skew for lease, skew in leases if lease and lease.hard_wall is not None]
        return min(ends) - ctx.clock.now() if ends else None


def _ask_provider(ctx: Context, row: ClusterRow, end: float) -> float | None:
    """Seconds until `end` by the provider's clock; None where that is not known."""
    try:
        provisioner = ctx.provisioner_of(row)
        for machine in machines_of(ctx, row)[:1]:
            provisioner.describe(machine)  # its answer tells the time
        told = provisioner.provider_time()
    except Exception:
        return None
    return None if told is None else end - told
