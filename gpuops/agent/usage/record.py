"""What a run's machine used while it was on, coarsely: `usage.jsonl` in the run's folder, which comes home with its
logs."""

from __future__ import annotations

import json
import os
import time
import traceback
from typing import Callable

from gpuops.agent.node import Node, log
from gpuops.agent.run_documents import LaunchSpec
from gpuops.agent.run_files import USAGE_FILE, append_line
from gpuops.agent.usage.gpus import GpuWatch
from gpuops.agent.usage.machine import Machine
from gpuops.agent.usage.sampler import visible_gpus

INTERVAL_S = 10.0
LINES_PER_AGE = 3600.0
"""The interval grows to this fraction of the run's age: a week's run has some 14,000 lines, 4 MB with eight GPUs."""


def interval_s(age_s: float) -> float:
    """Seconds to the next line of a run of this age."""
    return max(INTERVAL_S, age_s / LINES_PER_AGE)


class UsageRecord:
    """Writes the `usage.jsonl` of one run, from `start` to `close`. Whatever fails in it costs no run."""

    def __init__(self, node: Node, spec: LaunchSpec, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = os.path.join(node.run(spec.run), USAGE_FILE)
        self._visible = visible_gpus(spec)
        self._clock = clock
        self._machine = Machine()
        self._gpus = GpuWatch(INTERVAL_S)
        self._began = self._due = 0.0
        self._is_open = False

    def start(self) -> None:
        """The first line comes after one interval: rates need two looks."""
        self._is_open = True
        self._began = self._clock()
        self._due = self._began + INTERVAL_S
        self._guarded(lambda: (self._gpus.__enter__(), self._machine.look(self._began)))

    def check(self) -> None:
        """Write a line if one is due."""
        now = self._clock()
        if self._is_open and now >= self._due:
            self._due = now + interval_s(now - self._began)
            self._guarded(lambda: self._write(now))

    def _write(self, now: float) -> None:
        look = self._machine.look(now)
        line = {"at": round(time.time(), 1), "cores": self._machine.cores, **look}
        try:
            append_line(self._path, json.dumps({**line, "gpus": self._gpus.latest(self._visible) or []}))
        except OSError:
            pass  # a full disk: the run's own files matter more

    def close(self) -> None:
        """A last line, so that a short run has one, too."""
        if self._is_open:
            self._guarded(lambda: self._write(self._clock()))
            self._end()

    def _end(self) -> None:
        if self._is_open:
            self._is_open = False
            self._gpus.__exit__()

    def _guarded(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception:
            self._end()
            log(f"what the machine uses is recorded no more\n{traceback.format_exc()}")
