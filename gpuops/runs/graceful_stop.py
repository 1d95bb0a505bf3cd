"""Stopping a run on all its nodes: asking them, and waiting until they have reported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from gpuops.core.context import Context
from gpuops.core.errors import GpuopsError, NodeError
from gpuops.core.format import span
from gpuops.core.polling import Poller
from gpuops.core.reporting import Progress
from gpuops.ledger.store import RunRow
from gpuops.nodes.session import ClusterSession
from gpuops.runs.follow import make_follower
from gpuops.runs.launch_spec import request_of
from gpuops.runs.outcome.node_report import NodeReport
from gpuops.transport.rpc import AgentClient

STOP_TIMEOUT_S = 60.0
"""How long a run may take to stop beyond its own grace periods."""
POLL_INTERVAL_S = 0.2


@contextmanager
def show_stopping(progress: Progress, run: RunRow) -> Iterator[None]:
    """While a graceful stop is waited for, say how long that may take, and why."""
    grace_s = request_of(run).grace_s
    with progress.during(f"stopping {run.name}", 2 * grace_s):
        progress.waits(f"{span(grace_s)} for a snapshot, then {span(grace_s)} to end")
        yield


def stop_nodes(
    session: ClusterSession, run: str, how: Literal["graceful", "now"], why: str, *, kind: str = "stop"
) -> None:
    """Ask every node at once. A node that cannot be asked has ended, or is stopped by the gang link or its lease."""

    def ask(_index: int, client: AgentClient) -> None:
        try:
            client.call("stop", run=run, how=how, why=why, kind=kind)
        except GpuopsError:
            pass  # one node's failure must not keep the others running

    session.each(ask)


def stop_and_wait(ctx: Context, session: ClusterSession, run: RunRow, why: str) -> dict[int, NodeReport]:
    """Stop a run gracefully on all its nodes and wait for their reports. Raises NodeError past the deadline."""
    follower = make_follower(ctx, session, run, lambda *_: None, ctx.out.say)
    follower.start()
    stop_nodes(session, run.name, "graceful", why)
    deadline = ctx.clock.monotonic() + STOP_TIMEOUT_S + 2 * request_of(run).grace_s
    with show_stopping(ctx.progress, run):
        for _ in Poller.every(ctx.clock, POLL_INTERVAL_S, deadline, wait=follower.wait):
            if follower.has_ended:
                return dict(follower.reports)
    follower.quit()
    raise NodeError(f"{run.name} did not stop", f"gpuops down {session.row.name} --force")
