"""Whose turn it is on a cluster: one run at a time on a node, and one array on a cluster.

The ledger says who came first, so that of two that wait only one goes on. The runs of an array share the nodes among
themselves; to all others the array is one run, from its first index until its command ends.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from gpuops.core import heartbeat
from gpuops.core.context import Context
from gpuops.core.errors import ConnectionLost, UsageError
from gpuops.core.polling import Poller
from gpuops.core.run_models import RunRequest
from gpuops.core.timings import Whose
from gpuops.ledger.rows import RunState
from gpuops.ledger.store import RunRow
from gpuops.nodes.session import ClusterSession, explain_connection_loss, readmit_this_computer
from gpuops.runs.follow import SLOW_RECONNECT_INTERVAL_S, UNREACHABLE_TIMEOUT_S
from gpuops.runs.launch_spec import request_of
from gpuops.transport.rpc import UnreachableAgent

if TYPE_CHECKING:
    from gpuops.transport.schemas import NodeHello

T = TypeVar("T")

QUEUE_POLL_INTERVAL_S = 2.0
"""How often a run that waits for its turn asks the ledger and the nodes whether an earlier run has ended."""


def wait_for_turn(ctx: Context, session: ClusterSession, row: RunRow, *, queue: bool) -> RunRow:
    """One run at a time on a node: refuse, or with `queue` wait until all that came before have ended. What is
    billed counts from the turn."""
    if not queue:
        refuse_second_run(ctx, session, row, request_of(row))
        return row
    announced = ""
    with ctx.progress.during(f"waiting for {session.row.name}", whose=Whose.SCRIPT):
        for _ in Poller.every(ctx.clock, QUEUE_POLL_INTERVAL_S):
            busy = while_unreachable(ctx, session, lambda: _find_earlier_run(ctx, session, row))
            if not busy:
                break
            ctx.progress.waits(f"{busy.say} goes on")
            if busy.say != announced:
                ctx.out.say(f"waiting for {busy.say} on {session.row.name}")
                announced = busy.say
    if announced:
        ctx.ledger.set_run(row.id, created=ctx.clock.now())
    return ctx.ledger.run(row.id)


def while_unreachable(ctx: Context, session: ClusterSession, work: Callable[[], T]) -> T:
    """What `work` returns, which is tried again while a node does not answer, and a cut conversation is opened once
    more by `work` itself. Raises ConnectionLost once that has taken too long, or machines have ended."""
    unreachable_since: float | None = None
    for attempt in Poller.every(ctx.clock, SLOW_RECONNECT_INTERVAL_S):
        ctx.signals.check()
        try:
            return work()
        except ConnectionLost as error:
            ctx.signals.check()  # who relays a signal cuts what goes on
            unreachable_since = attempt.started if unreachable_since is None else unreachable_since
            _check_worth_waiting(ctx, session, error, attempt.started - unreachable_since)
    raise AssertionError("a poller without a deadline does not end")


def _check_worth_waiting(ctx: Context, session: ClusterSession, error: ConnectionLost, unreachable_s: float) -> None:
    """Raises ConnectionLost where a cluster has been unreachable for too long, or its machines have ended."""
    ctx.progress.waits(f"{session.row.name} does not answer; trying again")
    if readmit_this_computer(ctx, session.row, ctx.ledger.resources(session.row.id)):
        return
    explained = explain_connection_loss(ctx, session.row, error)
    if explained is not error or unreachable_s > UNREACHABLE_TIMEOUT_S:
        raise explained from error.__cause__


def refuse_second_run(ctx: Context, session: ClusterSession, row: RunRow | None, request: RunRequest) -> None:
    if busy := _find_earlier_run(ctx, session, row):
        name, hint = session.row.name, f"wait for it with --queue, or end it: {busy.how_to_end}"
        if request.kind == "command":
            nodes = ["--all-nodes"] if request.all_nodes else []
            hint += f"; beside it: {shlex.join(['gpuops', 'ssh', name, *nodes, '--', *request.argv])}"
        raise UsageError(f"{busy.say} is running on {name}", hint)


class EarlierRun(NamedTuple):
    """What a new run has to wait for."""

    say: str
    how_to_end: str


def _find_earlier_run(ctx: Context, session: ClusterSession, row: RunRow | None) -> EarlierRun | None:
    """What a new run, or that of `row`, has to wait for."""
    lives = functools.cache(heartbeat.lives)  # the runs of an array have one process
    for run in ctx.ledger.runs(cluster=session.row.id):
        before = row is None or run.id < row.id
        holder = run.facts.array_holder(ctx.ledger.beats) if before else None
        is_held = holder is not None and holder != ctx.me and lives(holder)  # further runs of the array come first
        if is_held:  # to stop one of its runs lets the next begin
            return EarlierRun(f"the array of {run.name}", "Ctrl-C where it was started")
        if before and run.state is not RunState.HOME and run.has_live_owner():
            return EarlierRun(run.name, f"gpuops stop {run.name}")
    # What the nodes have just said of themselves will do for a first look, before there is a row.
    hellos = session.hellos if row is None else session.each(lambda index, _client: _ask_node(session, index))
    names = (hello.busy for hello in hellos if hello and hello.busy)
    return next((EarlierRun(name, f"gpuops stop {name}") for name in names), None)


def _ask_node(session: ClusterSession, index: int) -> NodeHello | None:
    """What a node says of itself now; None for one that has ended and that no run needs. A conversation that was cut is
    opened once more. Raises NodeError."""
    client = session.clients[index]
    if isinstance(client, UnreachableAgent):
        return None
    try:
        hello: NodeHello = client.call("hello")
    except ConnectionLost:
        hello = session.reconnect(index).call("hello")
    return hello
