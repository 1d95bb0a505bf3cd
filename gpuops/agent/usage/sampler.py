"""One sample of what a node does: the machine, its GPUs, and the ranks of the live run."""

from __future__ import annotations

import time
from typing import Any, Callable, NamedTuple

from gpuops.agent import process_table, run_files
from gpuops.agent.node import Node
from gpuops.agent.run_documents import LaunchSpec, RankRecord
from gpuops.agent.usage.gpus import GpuWatch
from gpuops.agent.usage.machine import Machine
from gpuops.agent.usage.printed_counts import PrintedCounts


def visible_gpus(spec: LaunchSpec | None) -> list[int] | None:
    """The GPUs that a run may use, where its launch says so by number; None: all of them."""
    env = {**spec.env, **spec.user_env} if spec else {}
    names = [name.strip() for name in env.get("CUDA_VISIBLE_DEVICES", "all").split(",")]
    return [int(name) for name in names if name] if all(name.isdigit() or not name for name in names) else None


class Pace(NamedTuple):
    """How far a rank came between the last two steps that it told."""

    at: float
    """When it told the last one (UTC seconds)."""
    step: float
    seen: float
    """When the last one was seen here (monotonic seconds)."""
    steps: float = 0.0
    took_s: float = 0.0
    """0 before the second one."""


class Sampler:
    """Samples of one node. Rates are those since the sample before, and absent from the first."""

    def __init__(self, node: Node, gpus: GpuWatch, clock: Callable[[], float] = time.monotonic) -> None:
        self._node = node
        self._gpus = gpus
        self._clock = clock
        self._machine = Machine()
        self._cpu_s: dict[int, tuple[float, float]] = {}
        """Of each rank's process: when it was looked at, and its processor seconds by then."""
        self._paces: dict[int, Pace] = {}
        self._printed: dict[int, PrintedCounts] = {}
        self._run: str | None = None
        self._visible: list[int] | None = None

    def sample(self, run: str | None) -> dict[str, Any]:
        """`run`: the name of the live run."""
        if run != self._run:
            self._run, self._visible = run, visible_gpus(run_files.read_spec(self._node, run) if run else None)
            self._cpu_s, self._paces, self._printed = {}, {}, {}
        return {
            "at": time.time(),
            "cores": self._machine.cores,
            **self._machine.look(self._clock()),
            "gpus": self._gpus.latest(self._visible),
            "run": {"name": run, "ranks": self._ranks(run)} if run else None,
        }

    def _ranks(self, run: str) -> list[dict[str, Any]]:
        folder = self._node.run(run)
        records = sorted(run_files.read_records(folder).values())
        return [self._rank(folder, record) for record in records if record.pid and not record.ended]

    def _rank(self, folder: str, record: RankRecord) -> dict[str, Any]:
        family = process_table.with_children(record.pid or 0)
        told, at = run_files.read_rank_progress(folder, record.rank)
        if "step" not in told:
            told, at = self._printed.setdefault(record.rank, PrintedCounts(folder, record.rank)).look()
        step = told.get("step")
        return {
            "rank": record.rank,
            "pid": record.pid,
            "cpu": self._cores(record.pid or 0, process_table.cpu_seconds(family)),
            "memory": sum(map(process_table.resident_bytes, family)),
            "epoch": told.get("epoch"),
            "step": step,
            "rate": None if step is None else self._step_rate(record.rank, step, at),
            "data_wait": told.get("data_wait"),
        }

    def _cores(self, pid: int, cpu_s: float) -> float | None:
        """How many cores a rank keeps busy."""
        now = self._clock()
        at, before = self._cpu_s.get(pid, (now, cpu_s))
        self._cpu_s[pid] = (now, cpu_s)
        return round(max(0.0, (cpu_s - before) / (now - at)), 3) if now > at else None

    def _step_rate(self, rank: int, step: float, at: float) -> float | None:
        """Steps per second between the last two that a rank told, and less once the next one is late: a rank that hangs
        comes to 0. `at`: when it told this one."""
        now = self._clock()
        pace = self._paces.get(rank)
        if pace is None:
            pace = Pace(at, step, now)
        elif at > pace.at and step != pace.step:
            pace = Pace(at, step, now, step - pace.step, at - pace.at)
        self._paces[rank] = pace
        if not pace.took_s:
            return None
        return round(max(0.0, pace.steps / max(pace.took_s, now - pace.seen)), 3)
