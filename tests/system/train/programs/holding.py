"""A program whose bytes can be counted by hand: what it holds in a step, as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[4] / "train"))
sys.path.insert(1, str(Path(__file__).parents[4] / "benchmarks/programs"))

import memory
import torch
from ddp.loader import Batches
from ddp.options import arguments
from ddp.trainer import Trainer
from ddp.world import World, launch
from step_cost import endless
from torch import Tensor, nn
from torch.utils.data import TensorDataset


def train(world: World, options: argparse.Namespace) -> None:
    model = nn.Sequential(nn.Linear(10, 20, bias=False), nn.Linear(20, 1, bias=False))
    model.register_buffer("counted", torch.zeros(7))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    batches = Batches(world, options, TensorDataset(torch.rand(64, 10)))
    trainer = Trainer(world, options, "holding", model, optimizer, batches, metrics)
    world.say(json.dumps(memory.look(trainer, *next(endless(trainer)))))


def metrics(model: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
    return {"loss": model(inputs).squeeze(1)}


if __name__ == "__main__":
    launch(train, arguments(__doc__, 1, 1, 4, 0).parse_args())
