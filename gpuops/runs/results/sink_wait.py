"""Waiting for what the nodes of an ended run still upload to its sink: a bucket, or a volume."""

from __future__ import annotations

import dataclasses
import math
from contextlib import suppress
from typing import TYPE_CHECKING

from gpuops.core.context import Context
from gpuops.core.errors import GpuopsError
from gpuops.core.parallel import on_each
from gpuops.core.polling import Poller
from gpuops.core.reporting import Progress
from gpuops.core.sink import BucketSink, SinkProgress
from gpuops.core.timings import Whose
from gpuops.ledger.store import RunRow
from gpuops.nodes.session import ClusterSession
from gpuops.runs.launch_spec import request_of
from gpuops.transport.rpc import AgentClient

if TYPE_CHECKING:
    from gpuops.transport.schemas import NodeRunState

POLL_INTERVAL_S = 0.2
STALL_TIMEOUT_S = 300.0
"""How long a node is waited for while it makes no progress."""
TIMEOUT_S = 7200.0
"""How long a node is waited for at most, or `--grace` where that is longer."""


def wait_for_sinks(
    ctx: Context, session: ClusterSession, row: RunRow, progress: Progress, nodes: list[int]
) -> dict[int, SinkProgress]:
    """What each node says of the results that it keeps elsewhere, once that has ended or stalls. All nodes are waited
    for together."""
    states: dict[int, SinkProgress] = {}
    deadline = ctx.clock.monotonic() + max(TIMEOUT_S, request_of(row).hold_s or 0.0)

    def wait(index: int) -> None:
        with suppress(GpuopsError):
            states[index] = _wait_for_sink(ctx, session.clients[index], row.name, deadline)

    elsewhere = "in its bucket" if isinstance(request_of(row).sink, BucketSink) else "on its volume"
    with progress.during(f"waiting for what {row.name} keeps {elsewhere}", whose=Whose.NODE):
        on_each(wait, nodes)
    return states


def _wait_for_sink(ctx: Context, client: AgentClient, run: str, deadline: float) -> SinkProgress:
    """A node's sink once it is no longer in progress, or stalls, or `deadline` (monotonic) has passed."""
    latest = SinkProgress()
    stall_deadline = math.inf
    for attempt in Poller.every(ctx.clock, POLL_INTERVAL_S, deadline):
        answer: NodeRunState = client.call("run", run=run)
        state = SinkProgress.parse(answer.sink.document()) if answer.sink else SinkProgress()
        if not state.status.is_in_progress:
            return state
        if state != latest:
            latest, stall_deadline = state, ctx.clock.monotonic() + STALL_TIMEOUT_S
        if ctx.signals.hurry or attempt.started > stall_deadline:
            break
    return dataclasses.replace(latest, why="it was not waited for any longer")
