"""A program with everything that a resume can get wrong: shuffling, dropout, BatchNorm, momentum, random numbers of
three kinds, a scheduler, workers, an uneven last batch. It can be killed at any forward or any write to the disk."""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import resource
import signal
import sys
import time
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[4] / "train"))

import numpy as np
import torch
from ddp import trainer as trainer_module
from ddp.loader import Batches
from ddp.options import arguments
from ddp.trainer import Trainer
from ddp.world import World, launch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

SAMPLES, FEATURES = 203, 8


def train(world: World, options: argparse.Namespace) -> None:
    sabotage(world, options)
    world.stop.INTERVAL_S = 0.0  # in every step, however short: so a test knows in which
    trainer_module.TELL_S = options.told_every
    if options.hide:
        sys.path.insert(0, options.hide)
    torch.manual_seed(options.seed)
    table = TensorDataset(torch.rand(SAMPLES, FEATURES), torch.arange(SAMPLES).view(-1, 1) / SAMPLES)
    wild = () if options.plain else (nn.BatchNorm1d(options.width), nn.Dropout(0.3))
    model = nn.Sequential(
        nn.Linear(FEATURES, options.width), *wild, nn.Tanh(), nn.Linear(options.width, options.width), nn.Tanh(),
        nn.Linear(options.width, 1),
    ).to(world.device)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    if options.adam:
        optimizer = torch.optim.AdamW(model.parameters())
    batches = Batches(world, options, Noisy(table) if options.lazy else table, workers=2)
    scheduler = None
    if not options.plain:
        steps = options.total_epochs * len(batches)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps + 1)

    calls = 0

    def metrics(model: nn.Module, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        nonlocal calls
        calls += 1
        if options.kill == [world.rank, calls]:
            os.kill(os.getpid(), signal.SIGKILL)
        if options.fail:
            raise RuntimeError("of its own")
        if options.tell and options.tell[:2] == [world.rank, calls]:
            os.kill(os.getpid(), options.tell[2])
        if [world.rank, calls] in options.wish:
            wish = Path(os.environ["GPUOPS_SNAPSHOT_FILE"])
            wish.with_suffix(".new").touch()
            wish.with_suffix(".new").replace(wish)
        time.sleep(options.slow)
        if not options.plain:
            inputs = inputs + 0.01 * random.random() + 0.01 * np.random.rand()
        seen.extend((targets[:, 0] * SAMPLES).round().int().tolist())
        return {"loss": (model(inputs) - targets).square().squeeze(1), "target": targets[:, 0]}

    seen: list[int] = []
    if options.limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (options.limit, options.limit))
    trainer = Trainer(world, options, "wobbly", model, optimizer, batches, metrics, scheduler)
    for epoch in trainer.epochs():
        world.say(f"epoch {epoch.number}: loss {epoch.means['loss']:.9f}, target {epoch.means['target']:.9f}")
    print("saw", *seen)
    tensors = [
        *model.state_dict().values(),
        *(state.get("momentum_buffer", torch.zeros(0)) for state in optimizer.state.values()),
    ]
    digest = hashlib.sha256(b"".join(tensor.detach().cpu().numpy().tobytes() for tensor in tensors))
    world.say(f"weights {digest.hexdigest()} rate {optimizer.param_groups[0]['lr']:.9f}")


class Noisy(Dataset):  # type: ignore[type-arg]
    """Read one by one, and augmented at random while doing so."""

    def __init__(self, table: TensorDataset) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, targets = self.table[index]
        return inputs + 0.01 * torch.rand(()) + 0.01 * random.random() + 0.01 * np.random.rand(), targets


def sabotage(world: World, options: argparse.Namespace) -> None:
    """Kill rank 0 in its n-th call of one of the functions that make a write safe."""
    if not options.kill_in or world.rank:
        return
    name, number = options.kill_in
    honest, calls = getattr(os, name), 0

    def deadly(*args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        if calls == int(number):
            os.kill(os.getpid(), signal.SIGKILL)
        return honest(*args, **kwargs)

    setattr(os, name, deadly)


if __name__ == "__main__":
    parser = arguments(__doc__, total_epochs=3, save_every=1, batch_size=8, seed=7)
    parser.add_argument("--plain", action="store_true", help="nothing random, nothing that looks at a batch as a whole")
    parser.add_argument("--lazy", action="store_true", help="data through a DataLoader")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--slow", type=float, default=0.0)
    parser.add_argument("--fail", action="store_true", help="in the first forward")
    parser.add_argument("--kill", nargs=2, type=int, metavar=("RANK", "FORWARD"))
    parser.add_argument("--limit", type=int, metavar="BYTES", help="no file may be larger, as on a full disk")
    parser.add_argument("--hide", help="a folder whose modules stand before all others")
    parser.add_argument("--adam", action="store_true", help="another optimizer")
    parser.add_argument("--tell", nargs=3, type=int, metavar=("RANK", "FORWARD", "SIGNAL"))
    parser.add_argument("--wish", nargs=2, type=int, metavar=("RANK", "FORWARD"), action="append", default=[])
    parser.add_argument("--told_every", type=float, default=trainer_module.TELL_S, metavar="SECONDS")
    parser.add_argument("--kill_in", nargs=2, metavar=("FUNCTION", "CALL"))
    launch(train, parser.parse_args())
