"""Verb `sample`: what this node uses now, again and again while a client looks."""

from __future__ import annotations

import time
from typing import Any

from gpuops.agent.node import Emit, Node
from gpuops.agent.run import run_verbs
from gpuops.agent.usage.gpus import GpuWatch
from gpuops.agent.usage.sampler import Sampler

INTERVAL_S = 0.5
GPUS = GpuWatch(INTERVAL_S)
"""For all clients that look."""


def sample(node: Node, _args: dict[str, Any], emit: Emit) -> dict[str, Any]:
    """Items twice a second, until the request is cancelled. It is no sign of use: to look keeps no node alive."""
    with GPUS:
        sampler = Sampler(node, GPUS)
        while True:
            emit(sampler.sample(run_verbs.live_run_name()))
            time.sleep(INTERVAL_S)
