"""How long rented nodes hold the results of an ended run until this computer fetches them, and what the user agrees to.

A node with unfetched results is worth more than an idle one, and costs as much: it waits for two hours or for five
dollars, whichever is less, unless `--grace` says otherwise, and never beyond its lease.
"""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from typing import TYPE_CHECKING

from gpuops.core.context import Context
from gpuops.core.errors import GpuopsError, UsageError
from gpuops.core.format import clock_time, money, span
from gpuops.core.models import Lease
from gpuops.core.provider import has_capability, is_rented
from gpuops.core.run_models import RunRequest
from gpuops.core.sink import BucketSink
from gpuops.ledger.store import RunRow
from gpuops.nodes.session import ClusterSession, machines_of
from gpuops.sync import object_store, sinks

if TYPE_CHECKING:
    from gpuops.transport.schemas import NodeRunState

DEFAULT_GRACE_S = 7200.0
"""The longest wait without `--grace`."""
DEFAULT_GRACE_DOLLARS = 5.0
"""What a wait without `--grace` may cost, all nodes together."""
AFTER_RESTART = "after a restart it counts as back once any gpuops command is typed"
"""Nothing else starts the guard then."""


def default_hold_s(per_hour: float) -> float:
    """The wait without `--grace`, in seconds; `per_hour`: the price of all nodes."""
    return min(DEFAULT_GRACE_S, DEFAULT_GRACE_DOLLARS / per_hour * 3600) if per_hour > 0 else DEFAULT_GRACE_S


def resolve_hold_s(
    asked_s: float | None, lease: Lease, per_hour: float, *, rented: bool, ephemeral: bool
) -> float | None:
    """How long the nodes of a run hold its results, in seconds; None: until their idle end.

    A cluster that was brought up to stay is not ended earlier than its idle end for holding results.
    """
    if asked_s is not None:
        return asked_s
    if not rented:
        return None
    return default_hold_s(per_hour) if ephemeral else max(default_hold_s(per_hour), lease.idle_s or 0.0)


def loss_warning(hold_s: float, lease: Lease, now: float) -> str:
    """When results are lost while this computer is away. The run's end is not known yet, so a clock time is named only
    where the lease ends first. `now`: UTC seconds."""
    if lease.end is None:
        when = f"within {span(hold_s)} after the run's end"
    else:
        end = clock_time(lease.end, now)
        when = f"within {span(hold_s)} after the run's end, and before the lease ends at {end} (local time)"
        if lease.end <= now + hold_s:
            when = f"by {end} (local time), when the lease ends"
    return f"results are lost unless this computer is back {when}; {AFTER_RESTART}"


def detach_question(per_hour: float, opened: str = "") -> str:
    """The question before a detached run. `opened`: the clock time until which the nodes can write to a bucket, where
    that is earlier."""
    wait_s = default_hold_s(per_hour)
    bucket = f", and the nodes can write to the bucket only until {opened}, when the login ends" if opened else ""
    return (
        f"with --detach nobody may be here when the run ends{bucket}: let the nodes wait up to "
        f"{span(wait_s)} for this computer to fetch the results, for at most {_format_cost(wait_s, per_hour)}?"
    )


def detach_refusal(per_hour: float, opened: str = "") -> tuple[str, str]:
    """The same without a terminal: what is wrong, and what to type instead."""
    wait_s = default_hold_s(per_hour)
    wait = f"the nodes wait {span(wait_s)} for it, for at most {_format_cost(wait_s, per_hour)}"
    if opened:
        say = f"the nodes can write to the bucket only until {opened}, when the login ends"
        return (
            f"{say}, and with --detach nobody may be here to renew that",
            f"use a key that lasts, or say --grace {wait_s / 3600:.2g} ({wait})",
        )
    return (
        "with --detach results are lost where this computer is away when the run ends",
        f"say --grace {wait_s / 3600:.2g} ({wait}), or --sink s3://BUCKET/PREFIX or volume:NAME (which keeps them)",
    )


def _format_cost(wait_s: float, per_hour: float) -> str:
    return money(wait_s / 3600 * per_hour)


def cluster_price(ctx: Context, cluster: int) -> float:
    """$/h of all machines of a cluster."""
    return sum(resource.per_hour for resource in ctx.ledger.resources(cluster) if resource.is_machine)


def confirm_hold(ctx: Context, request: RunRequest, provider: str, per_hour: float, lease: Lease) -> None:
    """Before a run is detached from rented nodes: without `--grace` or a sink that outlasts `lease`, ask whether the
    nodes shall wait. A bucket outlasts it only while the login's session does. Raises UsageError, AuthFailed."""
    if request.hold_s is not None or not _can_lose_results(ctx, provider):
        return
    opened = ""
    if request.sink is not None:
        ends = object_store.session_end(ctx, request.sink) if isinstance(request.sink, BucketSink) else None
        if not ends or (lease.end is not None and ends >= lease.end):
            return
        opened = f"{clock_time(ends, ctx.clock.now())} (local time)"
    if ctx.out.interactive and not ctx.yes:
        if ctx.out.confirm(detach_question(per_hour, opened)):
            return
        raise UsageError("not confirmed: nothing was started", detach_refusal(per_hour, opened)[1])
    raise UsageError(*detach_refusal(per_hour, opened))


def complete_request(ctx: Context, session: ClusterSession, request: RunRequest) -> RunRequest:
    """The request completed with its sink and with how long the nodes hold results. Raises UsageError where the nodes
    have no such sink."""
    row = session.row
    rented = is_rented(ctx.provisioner(row.provider))
    hold = resolve_hold_s(request.hold_s, row.lease, cluster_price(ctx, row.id), rented=rented, ephemeral=row.ephemeral)
    sink, ends = request.sink, row.ephemeral and request.array_index is None  # another run of an array may follow
    if sink:
        sink = sinks.resolve_sink(sink, row.name, machines_of(ctx, row), end=ends)
    return dataclasses.replace(request, hold_s=hold, sink=sink)


def describe_hold(ctx: Context, session: ClusterSession, row: RunRow, request: RunRequest) -> str:
    """One sentence on where the results of a started run are kept, or when they are lost; empty for neither."""
    if request.sink:
        folder = ""
        with suppress(GpuopsError):  # the run goes on without the answer
            state: NodeRunState = session.clients[0].call("run", run=row.name)
            folder = (state.sink.folder if state.sink else None) or ""
        on = "in" if isinstance(request.sink, BucketSink) else "on"
        until = row.facts.bucket_until
        early = (
            until is not None
            and (row.ended is None)
            and (session.row.lease.end is None or until < session.row.lease.end)
        )
        limit = f", if it ends before {clock_time(until, ctx.clock.now())} (local time)" if early and until else ""
        return f"results are kept {on} {sinks.describe_place(request, row.name, folder)} as well{limit}"
    if request.hold_s is None or not _can_lose_results(ctx, session.row.provider):
        return ""
    return loss_warning(request.hold_s, session.row.lease, ctx.clock.now())


def _can_lose_results(ctx: Context, provider: str) -> bool:
    """Whether nodes of the provider end without this computer, and unfetched results with them."""
    provisioner = ctx.provisioner(provider)
    return is_rented(provisioner) and has_capability(provisioner, "self_destruct")
