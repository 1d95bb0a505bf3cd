"""What a cluster that stays up costs, until when, and who ends it then."""

from __future__ import annotations

from collections.abc import Sequence

from gpuops.core.context import Context
from gpuops.core.models import Resource
from gpuops.core.provider import has_capability
from gpuops.guard import guard_heartbeat
from gpuops.ledger.store import ClusterRow
from gpuops.offers import lease_limits
from gpuops.offers.lease_limits import EndedBy


def find_ended_by(ctx: Context, row: ClusterRow, machines: Sequence[Resource]) -> EndedBy:
    """Who ends a cluster once its lease is over. A guard is started where it needs one."""
    is_guarded = ctx.ledger.needs_guard(row) and ctx.try_ensure_guard(row)
    able = has_capability(ctx.provisioner(row.provider), "self_destruct")
    if able and all(machine.data.get("ends_itself", True) for machine in machines):
        return EndedBy.MACHINES
    has_key = is_guarded and row.provider not in guard_heartbeat.read_refusals(ctx.home, [row])
    return EndedBy.GUARD if has_key else EndedBy.NOBODY


def describe_bill(ctx: Context, cluster: int) -> str:
    """What a cluster goes on to cost, and until when; empty where that is nothing."""
    row = ctx.ledger.cluster(cluster)
    machines = [resource for resource in ctx.ledger.resources(cluster) if resource.is_machine]
    per_hour = sum(machine.per_hour for machine in machines)
    if not per_hour:
        return ""
    by = find_ended_by(ctx, row, machines)
    return lease_limits.describe_bill(row.name, per_hour, row.lease, ctx.clock.now(), by)
