"""What becomes of a run's results while this computer is away: asked, arranged and said at the launch."""

from __future__ import annotations

import dataclasses
import time
from contextlib import suppress

from gpuops.core.context import World
from gpuops.core.errors import GpuopsError, UsageError
from gpuops.core.models import Lease, RunRequest
from gpuops.core.output import clock_time
from gpuops.ledger.store import RunRow
from gpuops.nodes.session import Live, machines_of
from gpuops.runs import grace
from gpuops.sync import object_store, sinks


def price(world: World, cluster: int) -> float:
    """$/h of all machines of a cluster."""
    return sum(one.per_hour for one in world.ledger.resources(cluster) if one.kind == "machine")


def agree(world: World, request: RunRequest, provider: str, per_hour: float, lease: Lease) -> None:
    """Who detaches from rented nodes says who keeps the results, or is asked: also where a bucket does only until a
    login ends, which `lease` outlives. Raises UsageError, AuthFailed."""
    if request.hold_s is not None or not _vanishes(world, provider):
        return
    opened = ""
    if request.sink is not None:
        ends = object_store.session_ends(world, request.sink) if sinks.is_bucket(request.sink) else None
        if not ends or (lease.end is not None and ends >= lease.end):
            return
        opened = f"{clock_time(ends, time.time())} (local time)"
    if world.out.interactive and not world.yes:
        if world.out.confirm(grace.question(per_hour, opened)):
            return
        raise UsageError("not confirmed: nothing was started", grace.refusal(per_hour, opened)[1])
    raise UsageError(*grace.refusal(per_hour, opened))


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
