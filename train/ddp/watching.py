"""Scalars for TensorBoard, a trace of a few steps for Perfetto, and progress for `gpuops top`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from pathlib import Path
from typing import Any, Iterable, Iterator, TypeVar

from torch.profiler import ProfilerActivity, profile, schedule

from ddp.world import World

T = TypeVar("T")
SKIPPED, WARM, TRACED = 2, 2, 4  # steps: the first are never like the others


class Scalars:
    """Rank 0's event file in outputs/PROGRAM, where TensorBoard is wanted and installed."""

    def __init__(self, world: World, program: str, wanted: bool, step: int) -> None:
        self.writer: Any = None
        if not wanted or world.rank:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter  # here, since it takes seconds to import
        except ImportError:
            world.note("TensorBoard is not installed, so no scalars are written: pip install tensorboard")
            return
        # What an interrupted run had written after its last snapshot is written again: this hides the first.
        self.writer = SummaryWriter(str(Path("outputs") / program), purge_step=step + 1)

    def write(self, step: int, scalars: dict[str, float]) -> None:
        if self.writer:
            for name, value in scalars.items():
                self.writer.add_scalar(name, value, step)
            self.writer.flush()

    def close(self) -> None:
        if self.writer:
            self.writer.close()


class Progress:
    """Each rank's step, epoch, newest snapshot and share of time spent waiting for data, as JSON, for `gpuops top`:
    rank 0 in the file that $GPUOPS_PROGRESS names, another rank in one of that name with its number.

    When a machine is preempted, rank 0's file tells how many steps no snapshot has.
    """

    EVERY_S = 1.0

    def __init__(self, world: World) -> None:
        self.path = os.environ.get("GPUOPS_PROGRESS", "")
        if self.path and world.rank:
            self.path += f".{world.rank}"
        self.saved: int | None = None  # the step of the newest snapshot
        self.told = float("-inf")
        self.waited = 0.0  # seconds for batches, since it was last told

    def timed(self, batches: Iterable[T]) -> Iterator[T]:
        """The same batches, while the time that each is waited for is counted."""
        began = time.monotonic()
        for batch in batches:
            self.waited += time.monotonic() - began
            yield batch
            began = time.monotonic()

    def tell(self, step: int, epoch: int, *, saved: bool = False) -> None:
        """All ranks may call it in every step. That it cannot be written stops no training."""
        now = time.monotonic()
        if saved:
            self.saved = step
        elif now - self.told < self.EVERY_S:
            return
        wait, self.told, self.waited = min(1.0, self.waited / max(now - self.told, 1e-9)), now, 0.0
        if self.path:
            with contextlib.suppress(OSError):
                with open(self.path + ".new", "w", encoding="ascii") as file:
                    json.dump({"step": step, "epoch": epoch, "saved": self.saved, "data_wait": round(wait, 3)}, file)
                os.replace(self.path + ".new", self.path)  # its reader sees the old or the new, never half


class Profiler:
    """torch's profiler over a few steps near the start; each rank writes a file of its own, on its own machine."""

    def __init__(self, world: World, program: str, wanted: bool) -> None:
        self.world, self.profile = world, None
        self.path = Path("outputs") / program / f"trace-rank{world.rank}.json"
        if wanted:
            activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (world.device.type == "cuda")
            self.profile = profile(
                activities=activities,
                schedule=schedule(wait=SKIPPED, warmup=WARM, active=TRACED, repeat=1),
                on_trace_ready=self._write,
            )
            self.profile.start()

    def step(self) -> None:
        if self.profile:
            self.profile.step()

    def close(self) -> None:
        if self.profile:
            self.profile.stop()

    def _write(self, finished: Any) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        finished.export_chrome_trace(str(self.path))
        self.world.note(f"trace in {self.path}, one of each rank; open it at https://ui.perfetto.dev")
        for line in summarise(finished.key_averages(), self.world.device.type):
            self.world.note(line)


DEAREST = 10
"""How many operations are listed."""
FRAMES = ("ProfilerStep", "forward", "backward", "optimizer", "Optimizer.", "DistributedDataParallel.")
"""Prefixes of names that contain other operations: their time is counted there."""


def summarise(operations: Any, device: str) -> list[str]:
    """What rank 0's traced steps consist of: the dearest operations by their own time on the device, and for which
    share of the steps' wall time an all-reduce was under way. It overlaps the backward: a step may wait for less."""
    own = "self_cpu_time_total" if device == "cpu" else "self_device_time_total"
    steps = sum(each.cpu_time_total for each in operations if each.key.startswith("ProfilerStep"))
    sent = [each for each in operations if re.search("(gloo|nccl).*all_?reduce", each.key, re.IGNORECASE)]
    under_way = sum(each.cpu_time_total if device == "cpu" else each.device_time_total for each in sent)
    computed = [each for each in operations if not each.key.startswith(FRAMES) and each not in sent]
    whole = sum(getattr(each, own) for each in computed) or 1.0
    lines = [f"{DEAREST} dearest operations of {TRACED} steps ({steps / TRACED / 1000:.2f} ms each), rank 0:"]
    for each in sorted(computed, key=lambda each: -getattr(each, own))[:DEAREST]:
        time_us = getattr(each, own)
        lines.append(f"  {time_us / 1000:9.2f} ms {time_us / whole:4.0%} {each.count:5} x {each.key}")
    return [*lines, f"all-reduce under way for {min(1.0, under_way / max(steps, 1.0)):.0%} of these steps"]
