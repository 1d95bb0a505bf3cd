"""Leftovers: resources of a cluster that is gone, which cost nothing and still shut down, or cannot go before others.
And machines that may come to be listed late, since their launch was never answered.

The ledger keeps them; the guard, and `gpuops reap`, destroy them in rounds until the provider lists none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

from gpuops.clusters.owned_resources import select_by_tag
from gpuops.clusters.teardown import LATE_S
from gpuops.core.context import Context
from gpuops.core.errors import GpuopsError
from gpuops.core.format import first_few, plural
from gpuops.core.models import Resource, ResourceState
from gpuops.core.polling import Poller
from gpuops.ledger.store import ClusterRow

LEFTOVER_PAUSE_MIN_S = 5.0
LEFTOVER_PAUSE_MAX_S = 60.0
"""Pause between two rounds of `clear_leftovers`: the first, and the longest."""
LEFTOVER_CHECKS_MAX = 60
"""Rounds of one guard, about an hour in all; a guard that is started later does as many again."""
LEFTOVER_FAILURES_MAX = 4
"""Failed rounds in a row after which a guard leaves the rest to a later one."""


def clear_leftovers_once(ctx: Context, row: ClusterRow) -> Sequence[Resource]:
    """One round: destroy what is left of a gone cluster, record and return what remains. Raises ProviderError."""
    provisioner = ctx.provisioner_of(row)
    known = ctx.ledger.list_leftovers(row.id)
    owned = provisioner.list_owned(ctx.owner, ctx.ledger.regions(row.id))
    listed = [resource for resource in owned if is_leftover_of(row, known, resource)]
    ids = {resource.key for resource in listed}
    hidden = [provisioner.describe(resource) for resource in known if resource.key not in ids]
    remaining = [*listed, *(resource for resource in hidden if resource.state != ResourceState.ENDED)]
    awaited, known_ids = awaits_machines(ctx, row), {resource.key for resource in known}
    if {resource.key for resource in remaining} != known_ids or (ctx.ledger.has_open_intents(row.id) and not awaited):
        ctx.ledger.mark_cleared(row.id, remaining, keeps_intents=awaited)
    if late := [resource for resource in remaining if resource.bills and resource.key not in known_ids]:
        ctx.ledger.add_notice(f"{row.name} was gone when {_name_late(late)} came up, and is ended, too")
    if remaining:
        provisioner.destroy(remaining)
    return remaining


def awaits_machines(ctx: Context, row: ClusterRow) -> bool:
    """Whether a machine of a gone cluster may still come to be listed."""
    return ctx.ledger.has_open_intents(row.id) and ctx.clock.now() < (row.ended or 0.0) + LATE_S


def _name_late(late: Sequence[Resource]) -> str:
    return f"{first_few([resource.name for resource in late], 2)}, whose launch was never answered,"


def is_leftover_of(row: ClusterRow, known: Sequence[Resource], resource: Resource) -> bool:
    """Whether something is of a cluster that is gone, and not of a newer one of its name: its token says so, or the
    ledger, by what was `known` to be left of it."""
    if any(resource.key == other.key for other in known):
        return True
    named = select_by_tag([resource], resource.name.split("-", 2)[1], row.name)
    return bool(named and row.token) and resource.token.startswith(row.token)


def clear_leftovers(ctx: Context, row: ClusterRow) -> None:
    """Rounds with growing pauses until nothing is left, nor awaited. Raises the error of the last of too many failed
    rounds."""
    failures = 0
    poller = Poller(ctx.clock, math.inf, LEFTOVER_PAUSE_MIN_S, LEFTOVER_PAUSE_MAX_S)
    for _ in islice(poller, LEFTOVER_CHECKS_MAX):
        awaited = awaits_machines(ctx, row)
        try:
            if not clear_leftovers_once(ctx, row) and not awaited:
                return
            failures = 0
        except GpuopsError:
            failures += 1
            if failures == LEFTOVER_FAILURES_MAX:
                raise


def describe_leftovers(row: ClusterRow, remaining: Sequence[Resource]) -> str:
    """`lab costs nothing any more; left of it: 2 machines that shut down, security group sg-1`."""
    machines = sum(resource.is_machine for resource in remaining)
    parts = [f"{plural(machines, 'machine')} shutting down"] if machines else []
    parts += [f"{resource.kind} {resource.id}" for resource in remaining if not resource.is_machine]
    return f"{row.name} costs nothing any more; left of it: {', '.join(parts)}"
