"""Asking the nodes of a cluster to stop a run."""

from __future__ import annotations

from typing import Literal

from gpuops.agentclient import AgentClient
from gpuops.cluster import Live
from gpuops.errors import GpuopsError


def halt(live: Live, run: str, how: Literal["graceful", "now"], why: str, *, kind: str = "stop") -> None:
    """Ask every node at once. One that cannot be told has ended, or is stopped by the gang link or its lease."""

    def one(_index: int, client: AgentClient) -> None:
        try:
            client.call("stop", run=run, how=how, why=why, kind=kind)
        except GpuopsError:
            pass  # each node for itself: the others are told all the same

    live.each(one)
