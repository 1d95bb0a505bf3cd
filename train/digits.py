"""Handwritten digits by DistributedDataParallel: one program for one process, many GPUs or many machines.

    python digits.py                                                one process
    torchrun --standalone --nproc-per-node=2 digits.py 20 5         one machine, two processes
    torchrun --nnodes=2 --node-rank=0 --nproc-per-node=2 \\
             --master-addr=10.0.0.1 --master-port=29500 digits.py   two machines; the second says --node-rank=1

It trains on a GPU per process where there are that many (nccl) and on the processor elsewhere (gloo; OMP_NUM_THREADS
sets the threads of each process). The first process keeps snapshots in snapshots/digits; the same command goes on from
there. SIGUSR1 or SIGTERM to any process: all of them stop together after the next step, with a snapshot.

The data lie beside this file, in data/: 1,797 images of 8 x 8 pixels from UCI (see data/SOURCE.txt).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from ddp.loader import Batches
from ddp.options import arguments
from ddp.trainer import Trainer
from ddp.world import World, launch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

# ---- what can be turned; the rest of the file is one straight path --------------------------------------------------
TOTAL_EPOCHS = 20
SAVE_EVERY = 5  # epochs between two snapshots
BATCH_SIZE = 32  # images per process and step: all processes together take world size times as many
LEARNING_RATE = 5e-3  # of AdamW; reaches 0.95 with 1 to 16 processes
CHANNELS = 16  # of the first convolution; the second has twice as many
HIDDEN = 64
TRAIN_IMAGES = 1500  # of the 1,797; the others are the test set
SEED = 1998  # of the first weights and the order of the images
SPLIT = 1998  # the seed that divides them: a test set is the same whatever --seed says
DATA = Path(__file__).resolve().parent / "data"


def train(world: World, options: argparse.Namespace) -> None:
    # A file may be missing on one machine only. Who found it must not leave while the others wait: all are asked.
    path = options.data / "digits.csv.gz"
    world.check(None if path.exists() else f"{path} is missing; --data names the folder that has digits.csv.gz")
    train_set, test_set = load_data(path)

    torch.manual_seed(options.seed)  # the same first weights in every process
    model = build_model().to(world.device)
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE)
    trainer = Trainer(world, options, "digits", model, optimizer, Batches(world, options, train_set), metrics)
    began, epochs = time.perf_counter(), 0
    for epoch in trainer.epochs():
        epochs += 1
        note = f", snapshot in {epoch.snapshot}" if epoch.snapshot else ""
        loss, accuracy = epoch.means["loss"], epoch.means["accuracy"]
        world.say(f"epoch {epoch.number}: loss {loss:.4f}, train accuracy {accuracy:.4f}{note}")
    seconds = time.perf_counter() - began

    accuracy = trainer.test(Batches(world, options, test_set, for_test=True))["accuracy"]
    world.say(
        f"test accuracy {accuracy:.4f} ({accuracy * len(test_set):.0f} of {len(test_set)}), "
        f"{epochs} epochs in {seconds:.1f} s on {world.describe()}"
    )


def load_data(path: Path) -> tuple[TensorDataset, TensorDataset]:
    """Train and test set, the same split in every process: images (n, 1, 8, 8) in 0..1 and labels (n,)."""
    table = torch.from_numpy(np.loadtxt(path, delimiter=",", dtype=np.float32))  # 64 pixels in 0..16, then the label
    table = table[torch.randperm(len(table), generator=torch.Generator().manual_seed(SPLIT))]
    images, labels = table[:, :64].view(-1, 1, 8, 8) / 16, table[:, 64].long()
    return (
        TensorDataset(images[:TRAIN_IMAGES], labels[:TRAIN_IMAGES]),
        TensorDataset(images[TRAIN_IMAGES:], labels[TRAIN_IMAGES:]),
    )


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, CHANNELS, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(CHANNELS, 2 * CHANNELS, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * CHANNELS * 4 * 4, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, 10),
    )


def metrics(model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """For each image its loss, and whether it was read right. The means are the trainer's, who knows how many images
    all ranks have in this step. The model ends without a softmax: cross_entropy has its own, and a second one in
    front of it keeps the loss of ten classes above 1.46 for ever."""
    logits = model(images)
    return {
        "loss": nn.functional.cross_entropy(logits, labels, reduction="none"),
        "accuracy": logits.argmax(1) == labels,
    }


if __name__ == "__main__":
    parser = arguments(__doc__, TOTAL_EPOCHS, SAVE_EVERY, BATCH_SIZE, SEED)
    parser.add_argument("--data", type=Path, default=DATA, metavar="FOLDER", help="where digits.csv.gz is")
    launch(train, parser.parse_args())
