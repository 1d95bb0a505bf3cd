"""A linear layer on random numbers: what the DistributedDataParallel tutorials train, to see the machinery turn.

    python toy.py 50 10                                               one process
    torchrun --standalone --nproc-per-node=4 toy.py 50 10             one machine, four processes
    torchrun --nnodes=2 --node-rank=0 --nproc-per-node=8 \\
             --master-addr=10.0.0.1 --master-port=29500 toy.py 50 10  two machines; the second says --node-rank=1

Every process prints one line per epoch, `[GPU11] Epoch 47 | Batchsize: 32 | Steps: 4`: its rank, the epoch (from 0),
the samples per step and the steps it takes, 2,048 samples divided among all processes. It trains on a GPU per process
where there are that many (nccl) and on the processor elsewhere (gloo). The first process keeps snapshots in
snapshots/toy; the same command goes on from there. SIGUSR1 or SIGTERM to any process: all of them stop together
after the next step, with a snapshot.
"""

from __future__ import annotations

import argparse

import torch
from ddp.loader import Batches
from ddp.options import arguments
from ddp.trainer import Trainer
from ddp.world import World, launch, write
from torch import Tensor, nn
from torch.utils.data import TensorDataset

# ---- what can be turned; the rest of the file is one straight path --------------------------------------------------
TOTAL_EPOCHS = 50
SAVE_EVERY = 10  # epochs between two snapshots
BATCH_SIZE = 32  # samples per process and step
SAMPLES, FEATURES = 2048, 20
LEARNING_RATE = 1e-3  # of SGD
SEED = 2048  # of the samples, the first weights and the order: the same in every process


def train(world: World, options: argparse.Namespace) -> None:
    torch.manual_seed(options.seed)
    samples = TensorDataset(torch.rand(SAMPLES, FEATURES), torch.rand(SAMPLES, 1))
    model = nn.Linear(FEATURES, 1).to(world.device)
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE)
    batches = Batches(world, options, samples)
    trainer = Trainer(world, options, "toy", model, optimizer, batches, metrics)
    for epoch in trainer.epochs():
        write(f"[GPU{world.rank}] Epoch {epoch.number - 1} | Batchsize: {batches.batch} | Steps: {len(batches)}")
        if epoch.snapshot:
            world.say(f"[GPU0] snapshot in {epoch.snapshot}, next epoch {epoch.number}")


def metrics(model: nn.Module, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """The loss of each sample; their mean is the trainer's, who knows how many there are on all ranks."""
    return {"loss": nn.functional.mse_loss(model(inputs), targets, reduction="none").squeeze(1)}


if __name__ == "__main__":
    launch(train, arguments(__doc__, TOTAL_EPOCHS, SAVE_EVERY, BATCH_SIZE, SEED).parse_args())
