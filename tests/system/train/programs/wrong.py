"""One of the programs with a mistake that data-parallel programs have, telling its epochs' figures to the last digit.

    wrong.py PROGRAM ARGUMENTS…

$WRONG: which mistake; without it the program is as it is. $BITS=64: it computes in so many.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[4] / "train"))

import torch
from ddp.loader import Batches
from ddp.sampler import Part, Sampler
from ddp.trainer import Epoch, Trainer
from ddp.world import World
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def epochs(self: Trainer) -> Iterator[Epoch]:
    for epoch in honest_epochs(self):
        self.world.say("figures " + json.dumps(epoch.means))
        yield epoch


def mean_of_means(self: Trainer, part: Part, batch: list[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Each rank takes the mean over its own batch, whatever the others have."""
    _, metrics = honest_loss(self, part, batch)
    return metrics["loss"].mean(), metrics


def sum_of_means(self: Trainer, part: Part, batch: list[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """The average over the ranks is forgotten, or made twice."""
    loss, metrics = honest_loss(self, part, batch)
    return loss * self.world.size, metrics


def order_of_its_own(self: Sampler, epoch: int) -> Tensor:
    """The ranks shuffle with other seeds, and divide what is not the same."""
    chance = torch.Generator().manual_seed(self.seed + epoch + 1000 * self.rank)
    return torch.randperm(self.samples, generator=chance)


def randomness_of_its_own(self: Batches, *rest: Any, **named: Any) -> None:
    """What is random in a sample depends on the rank that gets it."""
    honest_batches(self, *rest, **named)
    self.seed += 1000 * self.world.rank


def model_in_64_bits(self: Trainer, world: World, options: Any, name: str, model: nn.Module, *more: Any) -> None:
    honest_trainer(self, world, options, name, model.double(), *more)  # in place: they are still the optimizer's


def data_in_64_bits(self: Batches, *rest: Any, **named: Any) -> None:
    honest_batches(self, *rest, **named)
    self.kept = [tensor.double() if tensor.is_floating_point() else tensor for tensor in self.kept or []]


honest_trainer, honest_batches = Trainer.__init__, Batches.__init__
honest_epochs, honest_loss = Trainer.epochs, Trainer.loss
Trainer.epochs = epochs  # type: ignore[method-assign]
if os.environ.get("BITS") == "64":
    Trainer.__init__ = model_in_64_bits  # type: ignore[method-assign]
    Batches.__init__ = data_in_64_bits  # type: ignore[method-assign]
mistake = os.environ.get("WRONG")
if mistake == "mean of means":
    Trainer.loss = mean_of_means  # type: ignore[method-assign]
elif mistake == "sum of means":
    Trainer.loss = sum_of_means  # type: ignore[method-assign]
elif mistake == "an order of its own":
    Sampler.order = order_of_its_own  # type: ignore[method-assign]
elif mistake == "randomness of its own":
    Batches.__init__ = randomness_of_its_own  # type: ignore[method-assign]
elif mistake == "gradients kept":  # and each rank goes its own way
    DistributedDataParallel.forward = lambda self, *inputs: self.module(*inputs)  # type: ignore[method-assign]

sys.argv = [str(Path(sys.path[1]) / sys.argv[1]), *sys.argv[2:]]
runpy.run_path(sys.argv[0], run_name="__main__")
