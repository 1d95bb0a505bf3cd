"""What the GPUs do, by one nvidia-smi that prints a line for each every so often, as long as somebody looks.

nvidia-smi, and not its library (NVML) in this process: where a driver hangs, a call into it never returns, and no
process with such a thread can be ended. A program beside the agent hangs alone. It is started once: each start loads
the driver's library anew, and without persistence mode wakes the driver up, which takes a second or more.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from functools import partial
from typing import Any, Callable, Collection

from gpuops.agent import processes
from gpuops.agent.workers import WORKERS

COLUMNS = ("index", "utilization.gpu", "memory.used", "memory.total", "temperature.gpu", "power.draw")
FIELDS = ("index", "use", "memory_mb", "memory_total_mb", "temperature", "power_w")
"""What the columns are called here: percent, MiB, degrees Celsius, watts."""
LATE_S = 5.0
"""A GPU of which nothing came for so much longer than the interval is left out: its driver hangs."""
RESTART_INTERVAL_S = 30.0
"""Time between two starts of an nvidia-smi that ends by itself: a driver that is loaded anew, or none at all."""


def parse_row(line: str) -> dict[str, Any] | None:
    """A line of nvidia-smi's CSV; None for any other text. What it does not know (`[N/A]`, `[Unknown Error]`) is
    None."""
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(COLUMNS) or not cells[0].isdigit():
        return None
    return {"index": int(cells[0]), **{name: _number(cell) for name, cell in zip(FIELDS[1:], cells[1:])}}


def _number(cell: str) -> float | None:
    return float(cell) if cell.replace(".", "", 1).isdigit() else None


class GpuWatch:
    """The latest rows of an nvidia-smi that runs while this is open. Any number may open it, one after another or at
    once: `with watch:` starts the program for the first and ends it with the last."""

    def __init__(self, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._lock = threading.Lock()
        self._users = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._rows: dict[int, tuple[float, dict[str, Any]]] = {}

    def __enter__(self) -> GpuWatch:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._stop()

    def _start(self) -> None:
        self._started = self._clock()
        if shutil.which("nvidia-smi") is None:
            return
        argv = ["nvidia-smi", "--query-gpu=" + ",".join(COLUMNS), "--format=csv,noheader,nounits"]
        argv.append(f"--loop-ms={round(1000 * self._interval_s)}")
        try:
            self._process = processes.start_helper(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except OSError:
            return
        WORKERS.start(partial(self._read, self._process), "gpus")

    def _stop(self) -> None:
        process, self._process = self._process, None
        self._rows = {}
        if process is not None:
            process.kill()  # not waited for: it may hang in the driver

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                row = parse_row(line.decode(errors="replace"))
                if row is not None and process is self._process:
                    self._rows[row["index"]] = (self._clock(), row)
        process.wait()

    def latest(self, visible: Collection[int] | None = None) -> list[dict[str, Any]] | None:
        """A row for each GPU, of the `visible` ones alone; empty without nvidia-smi, None before its first line."""
        with self._lock:
            now = self._clock()
            if self._process is not None and self._process.returncode is not None:
                self._process = None
            if self._process is None and self._users and now - self._started > RESTART_INTERVAL_S:
                self._start()
            rows = list(self._rows.values())
            if not rows and self._process is not None and now - self._started < self._interval_s + LATE_S:
                return None
        late = now - self._interval_s - LATE_S
        fresh = (row for at, row in rows if at > late)
        return sorted((row for row in fresh if visible is None or row["index"] in visible), key=_index)


def _index(row: dict[str, Any]) -> int:
    return int(row["index"])
