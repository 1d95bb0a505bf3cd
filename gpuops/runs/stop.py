"""Asking the nodes of a cluster to stop a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from gpuops.core.errors import GpuopsError
from gpuops.core.format import span
from gpuops.core.reporting import Progress
from gpuops.ledger.store import RunRow
from gpuops.nodes.session import ClusterSession
from gpuops.transport.rpc import AgentClient


@contextmanager
def stopping(progress: Progress, run: RunRow) -> Iterator[None]:
    """For as long as a stop in good order is waited for: how long that may take, and why."""
    grace_s = float(run.request.get("grace_s", 10.0))
    with progress.during(f"stopping {run.name}", 2 * grace_s):
        progress.waits(f"{span(grace_s)} for a snapshot, then {span(grace_s)} to end")
        yield


def halt(live: ClusterSession, run: str, how: Literal["graceful", "now"], why: str, *, kind: str = "stop") -> None:
    """Ask every node at once. One that cannot be told has ended, or is stopped by the gang link or its lease."""

    def one(_index: int, client: AgentClient) -> None:
        try:
            client.call("stop", run=run, how=how, why=why, kind=kind)
        except GpuopsError:
            pass  # each node for itself: the others are told all the same

    live.each(one)
