"""The loop: every program's way from its first step, or from its last snapshot, to its last epoch."""

from __future__ import annotations

import argparse
import contextlib
import time
import warnings
from pathlib import Path
from typing import Any, Callable, Iterator, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from ddp import randomness
from ddp.loader import Batches
from ddp.sampler import Part
from ddp.snapshots import Snapshots
from ddp.watching import Profiler, Progress, Scalars
from ddp.world import World

Metrics = Callable[..., "dict[str, Tensor]"]
"""`metrics(model, *batch)`: one number per sample for each name. `loss` is what is learnt from; the others are told.

Per sample, and not their mean, since only the trainer knows how many samples all ranks have in this step.
"""

TELL_S = 10.0
"""Between two lines from within an epoch."""


class Epoch(NamedTuple):
    """What an epoch has come to, over the samples of all ranks."""

    number: int
    """From 1."""
    means: dict[str, float]
    """Of each of the metrics."""
    seconds: float
    snapshot: Path | None
    """Where it was kept, if it was."""


class Trainer:
    """A model in training: `for epoch in trainer.epochs()`, and `trainer.model` is the plain module.

    `program` names the snapshots' folder. A scheduler is stepped after each step of the optimizer.
    """

    def __init__(
        self,
        world: World,
        options: argparse.Namespace,
        program: str,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        batches: Batches,
        metrics: Metrics,
        scheduler: Any = None,
    ) -> None:
        self.world, self.options, self.program = world, options, program
        self.model, self.optimizer, self.batches, self.scheduler = model, optimizer, batches, scheduler
        self.metrics = metrics
        kind = world.device.type
        # It hands rank 0's weights to all, and averages the gradients in every backward, while that computes. A rank
        # that is alone would only copy them there and back, and hold them twice.
        self.ddp: DistributedDataParallel | None = None
        if world.size > 1:
            self.ddp = DistributedDataParallel(model, device_ids=[world.device] if kind == "cuda" else None)
        self.forward: Any = self.ddp or model
        half = {"off": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[options.amp]
        self.autocast = torch.autocast(kind, half) if options.amp != "off" else contextlib.nullcontext()
        self.scaler = torch.amp.GradScaler(kind, enabled=options.amp == "fp16")
        # Names for the profiler, which cost a small model's step a twentieth also where nobody reads them.
        self.named: Any = record_function if options.profile else contextlib.nullcontext
        self.snapshots = Snapshots(world, program)
        self.progress = Progress(world)
        self.epoch, self.position, self.step = 0, 0, 0  # whole epochs, samples of this one, steps: done so far
        self.totals: dict[str, Any] = {}  # of this epoch and this rank
        self.stopped: str | None = None  # where, if it was asked to
        # The same seed made the same first weights everywhere. From here each rank has its own, or all of
        # them would drop the same neurons.
        randomness.seed(self._seed())

    def epochs(self) -> Iterator[Epoch]:
        """Train, and tell of each epoch when it is over and its snapshot, if one is due, is written.

        What the caller does with an epoch is not done again after a resume, so it must not draw random numbers.
        """
        self.resume()
        self.world.note(f"training on {self.world.describe()}, {self.world.hardware()}")
        self.scalars = Scalars(self.world, self.program, self.options.tensorboard, self.step)
        self.profiler = Profiler(self.world, self.program, self.options.profile)
        self.rehearsed = self.world.size <= 2
        while self.epoch < self.options.total_epochs and not self.stopped:
            began = self.told = time.perf_counter()
            self.model.train()
            asked = self._train_epoch()
            if self.stopped:
                break
            means = self._means()
            self.epoch, self.position, self.totals = self.epoch + 1, 0, {}
            last = self.epoch == self.options.total_epochs
            due = asked or last or self.epoch % self.options.save_every == 0
            path = self.save() if due else None
            if asked == "stop" and not last:
                self.stopped = f"after epoch {self.epoch} of {self.options.total_epochs}"
            self.scalars.write(self.step, {**means, "learning rate": self.optimizer.param_groups[0]["lr"]})
            yield Epoch(self.epoch, means, time.perf_counter() - began, path)
        self.scalars.close()
        self.profiler.close()
        if self.stopped:
            self.world.say(f"stopped {self.stopped}; the same command goes on from {self.snapshots.folder}")

    def _train_epoch(self) -> str:
        """The rest of an epoch; what was asked for in its last step. An earlier stop is in `self.stopped`."""
        asked = ""
        for part, batch in self.progress.timed(self.batches.epoch(self.epoch, self.position)):
            if not self.rehearsed:
                self._rehearse(part, batch)
            self.learn(part, batch)
            self.take_step()
            self.step, self.position = self.step + 1, self.position + part.all_ranks
            self.profiler.step()
            self.progress.tell(self.step, self.epoch)
            self._tell_now_and_then()
            asked = self.world.stop.asked(self.world)
            if self.position < self.batches.samples:  # else the epoch's end has its own snapshot
                if asked or (self.options.save_steps and self.step % self.options.save_steps == 0):
                    path = self.save()
                if asked == "save":
                    self.world.note(f"saved {path}, as it was asked for")
                if asked == "stop":
                    seen = f"{self.position} of {self.batches.samples} samples"
                    self.stopped = f"in epoch {self.epoch + 1}, after {seen}, with {path.name}"
                    break
        return asked

    def _tell_now_and_then(self) -> None:
        """A line from within a long epoch. The loss is rank 0's own so far: to ask for all would make them wait."""
        now = time.perf_counter()
        if now - self.told < TELL_S or self.world.rank:
            return
        self.told = now
        seen = f"{self.position:,} of {self.batches.samples:,} samples"
        loss = float(self.totals["loss"]) / self.totals["samples"]
        self.world.note(f"epoch {self.epoch + 1}: {seen}, loss {loss:.4f} on rank 0")

    def learn(self, part: Part, batch: list[Tensor]) -> None:
        """Forward and backward, and what is counted."""
        with self.named("forward"):
            loss, metrics = self.loss(part, batch)
        with self.named("backward"):
            self.scaler.scale(loss).backward()
        self._count(part, metrics)

    def _count(self, part: Part, metrics: dict[str, Tensor]) -> None:
        # Sums on the device, without `.item()`: that would make the processor wait for the GPU in every step.
        for name, each in metrics.items():
            self.totals[name] = self.totals.get(name, 0) + without_padding(part, each.detach()).sum(dtype=torch.float64)
        self.totals["samples"] = self.totals.get("samples", 0) + part.mine

    def loss(self, part: Part, batch: list[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """This rank's share of the mean loss over the samples of all ranks, times their number, since
        DistributedDataParallel divides by it. A mean over the own batch would weigh the samples of a short last
        batch more than others, and padding as much as them."""
        with self.autocast:
            metrics = self.metrics(self.forward, *batch)
        return without_padding(part, metrics["loss"]).sum() * (self.world.size / part.all_ranks), metrics

    def take_step(self) -> None:
        with self.named("optimizer"):
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
            if self.scheduler:
                self.scheduler.step()

    def _rehearse(self, part: Part, batch: list[Tensor]) -> None:
        """The first batch once without any effect, before the first step of this process.

        DistributedDataParallel packs its gradients into other buckets after its first backward. Where a gradient
        lies in them decides in which order those of more than two ranks are added, and so how the sum is rounded:
        unrehearsed, the first step after a resume would differ from the same step of an uninterrupted run.
        """
        kept = randomness.state(self.world.device)
        buffers = [buffer.clone() for buffer in self.model.buffers()]  # a BatchNorm's statistics
        self.loss(part, batch)[0].backward()
        self.optimizer.zero_grad()
        for buffer, before in zip(self.model.buffers(), buffers):
            buffer.copy_(before)
        randomness.restore(kept, self.world.device)
        self.rehearsed = True

    @torch.no_grad()
    def test(self, batches: Batches, metrics: Metrics | None = None) -> dict[str, float]:
        """The means over other data, each sample counted once by whichever rank it falls to; between two epochs, or
        after the last one or a stop.

        `metrics`: what to ask of each sample, where it is not what is asked in training.
        """
        self.model.eval()
        for buffer in self.model.buffers() if self.world.size > 1 else ():
            dist.broadcast(buffer, 0)  # a BatchNorm's statistics: each rank's own since the last step
        of_epoch, self.totals = self.totals, {}  # there are some where a stop came in mid-epoch
        for part, batch in batches.epoch(0):
            with self.autocast:
                self._count(part, (metrics or self.metrics)(self.model, *batch))
        means, self.totals = self._means(), of_epoch
        return means

    def _means(self) -> dict[str, float]:
        """Of all ranks' samples in this epoch: sums are added up over the ranks, and divided once."""
        names = sorted(self.totals)
        sums = dict(zip(names, self.world.sum([float(self.totals[name]) for name in names])))
        return {name: sums[name] / sums["samples"] for name in self.totals if name != "samples"}

    # ---- keeping and going on ------------------------------------------------------------------------------------

    def save(self) -> Path:
        """All that the next step depends on; what differs from rank to rank is gathered into the one file."""
        mine = {
            "conditions": self._conditions(),
            "random": randomness.state(self.world.device),
            "totals": {name: float(total) for name, total in self.totals.items()},
        }
        ranks = self.world.gather(mine)
        state = {
            "epoch": self.epoch,
            "position": self.position,
            "step": self.step,
            "seed": self.options.seed,
            "samples": self.batches.samples,
            "steps_per_epoch": len(self.batches),
            "total_epochs": self.options.total_epochs,
            "model": self.model.state_dict(),
            "kind": type(self.optimizer).__name__,
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict() if self.scheduler else None,
            "scaler": self.scaler.state_dict(),
            "ranks": ranks,
        }
        path = self.snapshots.write(self.step, state if self.world.rank == 0 else {})
        self.progress.tell(self.step, self.epoch, saved=True)
        return path

    def resume(self) -> None:
        """Go on from the newest snapshot, if there is one."""
        found = self.snapshots.newest()
        if not found:
            return
        path, state = found
        self.world.check(self._unfit(path, state))
        self.epoch, self.position, self.step = state["epoch"], state["position"], state["step"]
        self.progress.tell(self.step, self.epoch, saved=True)
        where = f"after epoch {self.epoch}"
        if self.position:
            where = f"in epoch {self.epoch + 1}, after {self.position} of {self.batches.samples} samples"
        self.world.say(f"resumed from {path}, written {where}")
        if self.epoch >= self.options.total_epochs:
            self.world.note("nothing is left to learn; a larger number of epochs goes on")
        self._resume_random(state["ranks"])
        self._resume_schedule(state)
        if self.scaler.is_enabled() and state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])

    def _unfit(self, path: Path, state: dict[str, Any]) -> str | None:
        """Why a snapshot does not fit what is to be trained; None when model and optimizer have taken it."""
        way_out = f"move {path.parent} away to start from the beginning"
        theirs = {name: tuple(tensor.shape) for name, tensor in state["model"].items() if hasattr(tensor, "shape")}
        ours = {name: tuple(tensor.shape) for name, tensor in self.model.state_dict().items()}
        for name in sorted({*ours, *theirs}):
            if ours.get(name) != theirs.get(name):
                shapes = f"{name} is {theirs.get(name, 'missing')} there and {ours.get(name, 'missing')} here"
                return f"{path} is of another model ({shapes}); {way_out}"
        if state["seed"] != self.options.seed:
            return f"{path} was made with --seed {state['seed']}; use that, or {way_out}"
        if state["position"] and state["samples"] != self.batches.samples:
            here = f"{state['samples']} samples there and {self.batches.samples} here"
            return f"{path} is from the middle of an epoch of other data ({here}); {way_out}"
        kind = type(self.optimizer).__name__
        if state["kind"] != kind:  # torch would take what has the same shape, and miss the rest in some later step
            return f"{path} is of another optimizer ({state['kind']} there and {kind} here); {way_out}"
        self.model.load_state_dict(state["model"])
        try:
            self.optimizer.load_state_dict(state["optimizer"])
        except ValueError as error:
            return f"{path} is of another optimizer ({error}); {way_out}"
        return None

    def _resume_random(self, ranks: list[dict[str, Any]]) -> None:
        if len(ranks) == self.world.size:
            mine = ranks[self.world.rank]
            self.totals = dict(mine["totals"])
            randomness.restore(mine["random"], self.world.device)
            self._compare_conditions(mine.get("conditions", {}))
            return
        if self.world.rank == 0:  # the sums of ranks that are no more are nobody else's
            names = [name for rank in ranks for name in rank["totals"]]
            self.totals = {name: sum(rank["totals"].get(name, 0) for rank in ranks) for name in names}
        randomness.seed(self._seed())
        self.world.note(
            f"{len(ranks)} ranks wrote it, {self.world.size} go on: every sample is still seen once per epoch, but "
            "steps are of another size and random numbers are new, so the weights will not be those of an "
            "uninterrupted run"
        )

    def _conditions(self) -> dict[str, str]:
        """What decides, beside the numbers, how sums are rounded."""
        gpu = self.world.device.type == "cuda"
        return {
            "torch": str(torch.__version__),
            "device": torch.cuda.get_device_name(self.world.device) if gpu else "processor",
            "threads per rank (OMP_NUM_THREADS)": "any" if gpu else str(torch.get_num_threads()),
        }

    def _compare_conditions(self, before: dict[str, str]) -> None:
        """Say where this run's are others than those of the run that wrote the snapshot. All ranks call it."""
        now = self._conditions()
        found = [f"{name} {old}, now {now[name]}" for name, old in before.items() if now.get(name, old) != old]
        ranks = self.world.gather(found)
        changed = sorted({sentence for sentences in ranks for sentence in sentences})
        if changed:
            self.world.note(
                f"it was written with {'; '.join(changed)}: sums are rounded differently, so the weights will not be "
                "those of an uninterrupted run"
            )

    def _resume_schedule(self, state: dict[str, Any]) -> None:
        """A scheduler counts steps. In a world of another size there are other steps: it is run to the same share."""
        if not self.scheduler:
            return
        steps, before = len(self.batches), state["steps_per_epoch"]
        if steps == before and self.options.total_epochs == state["total_epochs"] and state["scheduler"]:
            self.scheduler.load_state_dict(state["scheduler"])
            return
        for group, rate in zip(self.optimizer.param_groups, self.scheduler.get_last_lr()):
            group["lr"] = rate  # the first; the optimizer has just been given the last
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is surprised that no optimizer steps between
            for _ in range(round((self.epoch + self.position / self.batches.samples) * steps)):
                self.scheduler.step()

    def _seed(self) -> int:
        """Of this rank's random numbers from this point on; every other rank and point has another one."""
        return (self.options.seed + 1) * 1_000_003 + self.step * 65_537 + self.world.rank


def without_padding(part: Part, each: Tensor) -> Tensor:
    """A rank's real samples. Mostly there is none, and then a slice would cost as much as the sum of it."""
    return each if part.mine == len(each) else each[: part.mine]
