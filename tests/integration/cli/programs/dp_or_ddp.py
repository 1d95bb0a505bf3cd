"""DataParallel or DistributedDataParallel, as a tutorial's reader tries both: one training, by either.

python dp_or_ddp.py dp                                    one process for all GPUs
torchrun --standalone --nproc-per-node=2 dp_or_ddp.py ddp  one process for each
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH_SIZE, EPOCHS = 64, 3  # the batch is that of all GPUs together


def load_data():
    """Three clouds of points: 960 to learn from, and 101 to test with, which two ranks cannot share equally."""
    draw = torch.Generator().manual_seed(2)
    labels = torch.randint(3, (1061,), generator=draw)
    points = torch.randn(1061, 8, generator=draw) + torch.randn(3, 8, generator=draw)[labels]
    return TensorDataset(points[:960], labels[:960]), TensorDataset(points[960:], labels[960:])


def build_model():
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))


def main(strategy):
    rank, world = 0, 1
    if strategy == "ddp":
        dist.init_process_group("gloo")
        rank, world = dist.get_rank(), dist.get_world_size()
    train_set, test_set = load_data()
    sampler = DistributedSampler(train_set, world, rank)
    loader = DataLoader(train_set, BATCH_SIZE // world, sampler=sampler, num_workers=2)
    test_loader = DataLoader(test_set, 16, sampler=DistributedSampler(test_set, world, rank, shuffle=False))

    torch.manual_seed(2)
    model = build_model()
    parallel = DistributedDataParallel(model) if strategy == "ddp" else nn.DataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for points, labels in loader:
            optimizer.zero_grad()
            cross_entropy(parallel(points), labels).backward()
            optimizer.step()

    with torch.no_grad():
        losses = torch.cat([cross_entropy(model(points), labels, reduction="none") for points, labels in test_loader])
    print(f"own test loss {losses.mean().item():.7f} of {len(losses)} points", flush=True)
    if strategy == "ddp":
        mean = losses.mean()
        dist.all_reduce(mean)  # what `self.log(…, sync_dist=True)` of Lightning does
        once = losses[: len(range(rank, len(test_set), world))]  # without those that the sampler repeats
        sums = torch.tensor([once.sum(), len(once)])
        dist.all_reduce(sums)
        if rank == 0:
            print(f"mean of the ranks {mean.item() / world:.7f}", flush=True)
            print(f"each point once {(sums[0] / sums[1]).item():.7f}", flush=True)
        dist.barrier()
        dist.destroy_process_group()
    if rank == 0:
        torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main(sys.argv[1])
