"""What becomes of a run's results while this computer is away: asked, arranged and said at the launch."""

from __future__ import annotations

import dataclasses
import time
from contextlib import suppress

from gpuops import grace, sinks
from gpuops.errors import GpuopsError, UsageError
from gpuops.ledger import RunRow
from gpuops.live import Live, machines_of
from gpuops.models import RunRequest
from gpuops.output import clock_time
from gpuops.world import World


def price(world: World, cluster: int) -> float:
    """$/h of all machines of a cluster."""
    return sum(one.per_hour for one in world.ledger.resources(cluster) if one.kind == "machine")


def agree(world: World, request: RunRequest, provider: str, per_hour: float) -> None:
    """Who detaches from rented nodes says who keeps the results, or is asked. Raises UsageError."""
    if request.hold_s is not None or request.sink is not None or not _vanishes(world, provider):
        return
    if world.out.interactive and not world.yes:
        if world.out.confirm(grace.question(per_hour)):
            return
        raise UsageError("not confirmed: nothing was started", grace.refusal(per_hour)[1])
    raise UsageError(*grace.refusal(per_hour))


def arranged(world: World, live: Live, request: RunRequest) -> RunRequest:
    """The request with where else its nodes keep the results, and how long they wait for whoever fetches them.

    Raises UsageError where they have no such place.
    """
    row = live.row
    rented = world.provisioner(row.provider).capabilities.get("rented") is True
    hold = grace.hold_s(request.hold_s, row.lease, price(world, row.id), rented=rented, ephemeral=row.ephemeral)
    sink = request.sink
    if sink:
        sink = sinks.found(sink, row.name, machines_of(world, row), end=row.ephemeral)
    return dataclasses.replace(request, hold_s=hold, sink=sink)


def said(world: World, live: Live, row: RunRow, request: RunRequest) -> str:
    """One sentence for a run that is on; empty: its results stay where they are."""
    if request.sink:
        folder = ""
        with suppress(GpuopsError):  # the run is on, whatever becomes of this question
            folder = (live.clients[0].call("run", run=row.name).get("sink") or {}).get("folder") or ""
        on = "in" if sinks.is_bucket(request.sink) else "on"
        until = (row.facts.get("bucket") or {}).get("until")
        early = until is not None and (row.ended is None) and (live.row.lease.end is None or until < live.row.lease.end)
        limit = f", if it ends before {clock_time(until, time.time())} (local time)" if early and until else ""
        return f"results are kept {on} {sinks.place(request, row.name, folder)} as well{limit}"
    if request.hold_s is None or not _vanishes(world, live.row.provider):
        return ""
    return grace.warning(request.hold_s, live.row.lease, time.time())


def _vanishes(world: World, provider: str) -> bool:
    """Whether a node there ends without this computer, and with it what nobody has fetched."""
    capabilities = world.provisioner(provider).capabilities
    return capabilities.get("rented") is True and capabilities.get("self_destruct") is True
