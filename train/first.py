r"""Handwritten digits on every GPU there is: DistributedDataParallel, all of it in this file.

    python first.py                                                     one process
    torchrun --standalone --nproc-per-node=2 first.py 20 5              two, on this machine
    torchrun --nnodes=2 --node-rank=0 --nproc-per-node=8 \
             --master-addr=10.0.0.1 --master-port=29500 first.py 20 5   two machines; the second says --node-rank=1

20 epochs, a snapshot every 5. Kill it, say the same again, and it goes on, on as many processes as you like.
"""

import argparse
import os

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

BATCH_SIZE, LEARNING_RATE, SEED = 64, 5e-3, 1998  # the batch is that of all ranks together
SNAPSHOT = "snapshots/first.pt"
DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data/digits.csv.gz")
RANK, LOCAL_RANK = int(os.environ.get("RANK", 0)), int(os.environ.get("LOCAL_RANK", 0))  # of all, of this machine
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", 1))


def load_data(path):
    """1,500 images to learn from and 297 to test with: (n, 1, 8, 8) from 0 to 1, and the digits (n,)."""
    table = torch.from_numpy(np.loadtxt(path, delimiter=",", dtype=np.float32))  # 64 pixels in 0..16, then the digit
    table = table[torch.randperm(len(table), generator=torch.Generator().manual_seed(SEED))]
    images, digits = table[:, :64].view(-1, 1, 8, 8) / 16, table[:, 64].long()
    return TensorDataset(images[:1500], digits[:1500]), TensorDataset(images[1500:], digits[1500:])


def build_model():
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def run_epoch(model, loader, device, optimizer=None):
    """Mean loss and accuracy over all samples of all ranks; with an optimizer the model learns."""
    totals = torch.zeros(3, device=device)  # loss, right answers, samples
    for images, digits in loader:
        images, digits = images.to(device), digits.to(device)
        logits = model(images)
        loss = cross_entropy(logits, digits)
        if optimizer:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        right = (logits.argmax(1) == digits).sum()
        totals += torch.stack([loss.detach() * len(digits), right, right.new_tensor(len(digits))])
    dist.all_reduce(totals)  # every rank calls it, or the others wait for ever
    return (totals[:2] / totals[2]).tolist()


def train(options, device):
    torch.manual_seed(SEED + RANK)
    train_set, test_set = load_data(options.data)
    sampler = DistributedSampler(train_set, seed=SEED)
    train_loader = DataLoader(train_set, max(1, BATCH_SIZE // WORLD_SIZE), sampler=sampler)
    test_loader = DataLoader(Subset(test_set, range(RANK, len(test_set), WORLD_SIZE)), BATCH_SIZE)

    model = build_model().to(device)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE)

    there = RANK == 0 and os.path.exists(SNAPSHOT)
    found = [torch.load(SNAPSHOT, map_location="cpu", weights_only=True) if there else {"epochs": 0}]
    dist.broadcast_object_list(found)
    if found[0]["epochs"]:
        model.load_state_dict(found[0]["model"])
        optimizer.load_state_dict(found[0]["optimizer"])
        if RANK == 0:
            print(f"{SNAPSHOT}: {found[0]['epochs']} epochs are done", flush=True)

    for epoch in range(found[0]["epochs"], options.total_epochs):
        sampler.set_epoch(epoch)
        loss, _ = run_epoch(ddp, train_loader, device, optimizer)
        with torch.no_grad():
            _, accuracy = run_epoch(model, test_loader, device)
        print(f"[GPU{RANK}] Epoch {epoch} | Batchsize: {train_loader.batch_size} | Steps: {len(train_loader)}")
        if RANK == 0:
            print(f"loss {loss:.4f}, test accuracy {accuracy:.4f}", flush=True)
            if (epoch + 1) % options.save_every == 0 or epoch + 1 == options.total_epochs:
                os.makedirs(os.path.dirname(SNAPSHOT), exist_ok=True)
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epochs": epoch + 1}
                torch.save(state, SNAPSHOT + ".part")
                os.replace(SNAPSHOT + ".part", SNAPSHOT)  # killed at any moment, it is a whole file


@record  # an exception's traceback goes where torchrun looks for it
def main(options):
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", LOCAL_RANK) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    store = None if "RANK" in os.environ else dist.HashStore()  # plain python: a world of one
    backend = "nccl" if cuda and dist.is_nccl_available() else "gloo"
    dist.init_process_group(
        backend, store=store, rank=RANK, world_size=WORLD_SIZE, device_id=device if backend == "nccl" else None
    )
    train(options, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("total_epochs", nargs="?", type=int, default=20)
    parser.add_argument("save_every", nargs="?", type=int, default=5)
    parser.add_argument("--data", default=DATA)
    main(parser.parse_args())
