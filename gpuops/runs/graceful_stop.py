"""Stopping a run on all its nodes: asking them, and waiting until they have reported."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

from gpuops.core.context import Context
from gpuops.core.errors import ConnectionLost, GpuopsError, NoAnswer, NodeError
from gpuops.core.format import span
from gpuops.core.parallel import on_each
from gpuops.core.polling import Poller
from gpuops.core.reporting import Progress
from gpuops.core.timings import Whose
from gpuops.ledger.store import RunRow
from gpuops.nodes.session import ClusterSession
from gpuops.runs.follow import RECONNECT_INTERVAL_S, Follower, make_follower
from gpuops.runs.launch_spec import request_of
from gpuops.runs.outcome.node_report import NodeReport
from gpuops.transport.rpc import UnreachableAgent

STOP_TIMEOUT_S = 60.0
"""How long a run may take to stop beyond its own grace periods."""
POLL_INTERVAL_S = 0.2


@contextmanager
def show_stopping(progress: Progress, run: RunRow) -> Iterator[None]:
    """While a graceful stop is waited for, say how long that may take, and why."""
    grace_s = request_of(run).grace_s
    with progress.during(f"stopping {run.name}", 2 * grace_s, whose=Whose.SCRIPT):
        progress.waits(f"{span(grace_s)} for a snapshot, then {span(grace_s)} to end")
        yield


def stop_nodes(
    session: ClusterSession,
    run: str,
    how: Literal["graceful", "now"],
    why: str,
    *,
    kind: str = "stop",
    nodes: int | None = None,
) -> None:
    """Ask every node at once, or the first `nodes`; one whose conversation was cut is asked over another. A node that
    cannot be asked has ended, or is stopped by the gang link or its lease."""

    def ask(index: int) -> None:
        request: dict[str, Any] = {"run": run, "how": how, "why": why, "kind": kind}
        client = session.clients[index]
        with suppress(GpuopsError):  # one node's failure must not keep the others running
            try:
                client.call("stop", **request)
            except NoAnswer:
                pass  # its connection stands: another would hang for as long again
            except ConnectionLost:
                if not isinstance(client, UnreachableAgent):
                    session.reconnect(index).call("stop", **request)

    on_each(ask, range(len(session.clients) if nodes is None else nodes))


def stop_followed(follower: Follower, how: Literal["graceful", "now"], why: str) -> None:
    """Ask every node of a followed run to stop, without waiting for the answers: a node that gives none must not delay
    a second signal. One whose conversation is cut is asked again once the follower has reconnected to it."""

    def ask(index: int) -> None:
        while follower.waits_for(index):
            try:
                follower.session.clients[index].call("stop", run=follower.run, how=how, why=why)
            except ConnectionLost:
                follower.wait(RECONNECT_INTERVAL_S)
                continue
            except Exception:
                pass  # it has ended, or its report will say what is wrong with it
            return

    for index in range(follower.node_count):
        threading.Thread(target=ask, args=(index,), daemon=True, name=f"stop {follower.run} on node{index}").start()


def stop_and_wait(ctx: Context, session: ClusterSession, run: RunRow, why: str) -> dict[int, NodeReport]:
    """Stop a run gracefully on all its nodes and wait for their reports. Raises NodeError past the deadline."""
    follower = make_follower(ctx, session, run, lambda *_: None, ctx.out.say)
    follower.start()
    stop_followed(follower, "graceful", why)
    deadline = ctx.clock.monotonic() + STOP_TIMEOUT_S + 2 * request_of(run).grace_s
    with show_stopping(ctx.progress, run):
        for _ in Poller.every(ctx.clock, POLL_INTERVAL_S, deadline, wait=follower.wait):
            if follower.has_ended:
                return dict(follower.reports)
    follower.quit()
    raise NodeError(f"{run.name} did not stop", f"gpuops down {session.row.name} --force")
