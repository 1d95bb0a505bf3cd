"""What a step of a program of train/ costs, where, what it holds, and what more processes bring, measured here and now.

    torchrun --standalone --nproc-per-node=2 benchmarks/programs/step_cost.py train/digits.py [ARGUMENTS]

The program makes its data and its model and trains nothing. Measured are full steps (samples/s); the same steps without
sending gradients (`no_sync`), whose difference is what a step waits for communication; rank 0 alone while the others
wait, against which the efficiency is counted; and data, forward, backward and optimizer one by one, waiting for the
device in between. Each is the fastest of three. Floating point operations are counted by torch and compared with a
large matrix product on the same device.
"""

from __future__ import annotations

import itertools
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[2] / "train"))

import memory
import torch
from ddp.sampler import Part
from ddp.trainer import Trainer
from ddp.world import World
from torch.utils.flop_counter import FlopCounterMode

WARM_S, MEASURED_S = 1.0, 3.0  # of each measurement
ROUNDS = 3  # of which the fastest counts: what else the machine does only ever adds


def benchmark(trainer: Trainer) -> None:
    """Measure the trainer's steps and say what came of it. The model is worn out afterwards; nothing is kept."""
    world, batches = trainer.world, trainer.batches
    trainer.model.train()
    trainer.scheduler = None  # it counts steps, and these are none of the training's
    steps = endless(trainer)
    count = choose_count(trainer, steps)
    together = fastest(world, lambda: run(trainer, steps, count))
    silent = alone = together
    if world.size > 1:  # in this order: with no buffers left to share from a step before, a rank can do without others
        silent = fastest(world, lambda: run(trainer, steps, count, synced=False))
        alone = fastest(world, lambda: run(trainer, steps, count, synced=False) if world.rank == 0 else 0.0)
    parts = world.sum(list(divide(trainer, steps, count)))
    data, forward, backward, optimizer = (1000 * seconds / world.size / count for seconds in parts)

    rate, rate_alone = batches.batch * world.size * count / together, batches.batch * count / alone
    kept = "its samples lie on the device" if batches.kept else "a DataLoader loads its samples"
    world.say(f"benchmark of {trainer.program} on {world.describe()}; {kept}")
    world.say(f"each step {batches.batch} samples per rank, {count} steps measured")
    world.say(f"samples/s        {rate:,.0f}, {rate / world.size:,.0f} per rank")
    if world.size > 1:
        world.say(f"one rank alone   {rate_alone:,.0f}, measured while the others waited")
        world.say(f"efficiency       {rate / (world.size * rate_alone):.0%} of {world.size} times that")
    world.say(f"step             {1000 * together / count:.2f} ms")
    waited = 1000 * max(0.0, together - silent) / count
    world.say(f"  communication  {waited:.2f} ms, what a step with it takes longer than one without (no_sync)")
    world.say(f"  data           {data:.2f} ms, what a step waits for its batches")
    world.say(f"  forward        {forward:.2f} ms")
    world.say(f"  backward       {backward:.2f} ms")
    world.say(f"  optimizer      {optimizer:.2f} ms")
    memory.tell(trainer, *next(steps))
    work = arithmetic(trainer, steps) * count / together
    if work:  # torch counts products and convolutions, of which a model of embeddings has none
        most = peak(world, trainer.autocast)
        world.say(
            f"arithmetic       {work / 1e9:,.1f} GFLOP/s per rank, {work / most:.1%} of the {most / 1e9:,.0f} that"
        )
        world.say("                 a large matrix product reaches here, in the same precision")


def endless(trainer: Trainer) -> Iterator[tuple[Part, list[Any]]]:
    """Full batches for ever: a shorter last one would not cost the same."""
    full = trainer.batches.batch
    for epoch in itertools.count():
        for part, batch in trainer.batches.epoch(epoch):
            if len(part.indices) == full:
                yield part, batch


def choose_count(trainer: Trainer, steps: Iterator[Any]) -> int:
    """How many steps are long enough to measure; the same on every rank, or they would wait for each other."""
    began, count = time.perf_counter(), 0
    enough = False
    while not enough:  # the first steps, in which everything is made ready, do not count
        run(trainer, steps, 2)
        count += 2
        enough = trainer.world.broadcast(time.perf_counter() - began > WARM_S)
    seconds = run(trainer, steps, 4) / 4
    return int(trainer.world.broadcast(max(4, round(MEASURED_S / ROUNDS / seconds))))


def fastest(world: World, measure: Callable[[], float]) -> float:
    """The least of a few measurements' seconds; each begins when all ranks are there and is over when all are."""
    least = float("inf")
    for _ in range(ROUNDS):
        world.barrier()
        least = min(least, world.max(measure()))
    return least


def run(trainer: Trainer, steps: Iterator[Any], count: int, synced: bool = True) -> float:
    """Seconds of some steps as they are trained, or without sending any gradient."""
    settle(trainer.world)
    began = time.perf_counter()
    for _ in range(count):
        part, batch = next(steps)
        with nullcontext() if synced else no_sync(trainer):
            trainer.learn(part, batch)
        trainer.take_step()
        if synced:
            trainer.world.stop.asked(trainer.world)
    settle(trainer.world)
    return time.perf_counter() - began


def no_sync(trainer: Trainer) -> AbstractContextManager[None]:
    """In it a backward sends nothing."""
    return trainer.ddp.no_sync() if trainer.ddp else nullcontext()


def divide(trainer: Trainer, steps: Iterator[Any], count: int) -> tuple[float, float, float, float]:
    """Seconds of this rank in data, forward, backward and optimizer, without sending any gradient.

    The device is waited for between them, which the real loop never does: they may add up to more than its step.
    """
    spent = [0.0] * 4
    clock = time.perf_counter

    def lap(which: int, since: float) -> float:
        settle(trainer.world)
        now = clock()
        spent[which] += now - since
        return now

    for _ in range(count):
        settle(trainer.world)
        now = clock()
        part, batch = next(steps)
        now = lap(0, now)
        with no_sync(trainer):
            loss, _ = trainer.loss(part, batch)
            now = lap(1, now)
            trainer.scaler.scale(loss).backward()
            now = lap(2, now)
        trainer.take_step()
        lap(3, now)
    return spent[0], spent[1], spent[2], spent[3]


def arithmetic(trainer: Trainer, steps: Iterator[Any]) -> float:
    """Floating point operations of one forward and backward on this rank, counted by torch as they are called."""
    _, batch = next(steps)
    with FlopCounterMode(display=False) as counter:
        trainer.metrics(trainer.model, *batch)["loss"].sum().backward()
    trainer.optimizer.zero_grad()
    return float(counter.get_total_flops())


def peak(world: World, autocast: Any) -> float:
    """Floating point operations per second of a matrix product too large to be held up by anything else."""
    size = 8192 if world.device.type == "cuda" else 1024
    with autocast:  # 16 bits where it multiplies in them; made before the clock runs
        one = torch.ones(1, 1, device=world.device)
        left, right = torch.rand(2, size, size, device=world.device).to((one @ one).dtype)

    def product() -> float:
        settle(world)
        began = time.perf_counter()
        for _ in range(4):
            torch.mm(left, right)
        settle(world)
        return time.perf_counter() - began

    product()
    return 4 * 2 * size**3 / fastest(world, product)


def settle(world: World) -> None:
    """Until the GPU has done what it was told: without that a clock only sees it being told."""
    if world.device.type == "cuda":
        torch.cuda.synchronize()


def measure(trainer: Trainer) -> None:
    """In place of the training."""
    benchmark(trainer)
    sys.exit(0)


if __name__ == "__main__":
    Trainer.epochs = measure  # type: ignore[method-assign,assignment]
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
