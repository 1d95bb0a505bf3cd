"""Handwritten digits by DistributedDataParallel: one program for one process, many GPUs or many machines.

    python digits.py                                                one process
    torchrun --standalone --nproc-per-node=2 digits.py 20 5         one machine, two processes
    torchrun --nnodes=2 --node-rank=0 --nproc-per-node=2 \\
             --master-addr=10.0.0.1 --master-port=29500 digits.py   two machines; the second says --node-rank=1

It trains on a GPU per process where there are that many (nccl) and on the processor elsewhere (gloo; OMP_NUM_THREADS
sets the threads of each process). The first process keeps a snapshot, digits.pt, in the working directory; the
same command goes on from it. SIGUSR1 or SIGTERM to any process: all of them stop together after the epoch they are
in, with a snapshot.

The data lie beside this file, in data/: 1,797 images of 8 x 8 pixels from UCI (see data/SOURCE.txt).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # torch loads it later by itself, and it then keeps the group alive: see main
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

# ---- what can be turned; the rest of the file is one straight path --------------------------------------------------
TOTAL_EPOCHS = 20
SAVE_EVERY = 5  # epochs between two snapshots
BATCH_SIZE = 32  # images per process and step: all processes together take world size times as many
LEARNING_RATE = 5e-3  # of AdamW; reaches 0.95 with 1 to 16 processes
CHANNELS = 16  # of the first convolution; the second has twice as many
HIDDEN = 64
TRAIN_IMAGES = 1500  # of the 1,797; the others are the test set
SEED = 1998  # of the split, the first weights and the order of the images
DATA = Path(__file__).resolve().parent / "data" / "digits.csv.gz"
SNAPSHOT = Path("digits.pt")
PROGRAM = "digits 1"  # in every snapshot, so that another program's file is recognised


@record  # where torchrun asks for it, an exception's traceback goes to its error file
def main() -> None:
    options = parse_arguments()
    stop = listen_for_stop()
    train(options, join_world(), stop)
    # Only now that nothing else holds the group does this end its threads. One that is still busy with the last
    # collective when Python shuts down would abort the process, after all the work was done.
    dist.destroy_process_group()


def train(options: argparse.Namespace, device: torch.device, stop: threading.Event) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED)
    train_set, test_set = load_data()
    sampler = DistributedSampler(train_set, rank=rank, num_replicas=world, seed=SEED)
    loader = DataLoader(train_set, options.batch_size, sampler=sampler, pin_memory=device.type == "cuda")
    model = DistributedDataParallel(build_model().to(device), device_ids=[device] if device.type == "cuda" else None)
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE)

    first = resume(model.module, optimizer)
    if first and rank == 0:
        print(f"resumed from {SNAPSHOT}, written after epoch {first}", flush=True)

    began, epoch = time.perf_counter(), first
    while epoch < options.total_epochs:
        sampler.set_epoch(epoch)  # another order in every epoch, and the same one after a resume
        loss, accuracy, stopping = train_one_epoch(model, optimizer, loader, device, stop)
        epoch += 1
        saving = stopping or epoch % options.save_every == 0 or epoch == options.total_epochs
        if rank == 0:
            if saving:
                save(model.module, optimizer, epoch)
            note = f", snapshot in {SNAPSHOT}" if saving else ""
            print(f"epoch {epoch}: loss {loss:.4f}, train accuracy {accuracy:.4f}{note}", flush=True)
        if stopping:
            break
    seconds = time.perf_counter() - began

    correct = count_correct(model.module, test_set, device)
    if rank == 0:
        if epoch < options.total_epochs:
            print(f"stopped after epoch {epoch} of {options.total_epochs}; the same command goes on from {SNAPSHOT}")
        print(
            f"test accuracy {correct / len(test_set):.4f} ({correct} of {len(test_set)}), "
            f"{max(epoch - first, 0)} epochs in {seconds:.1f} s on {describe_world()}",
            flush=True,
        )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "total_epochs", nargs="?", type=positive, default=TOTAL_EPOCHS, help="epochs in all, those of earlier runs too"
    )
    parser.add_argument(
        "save_every", nargs="?", type=positive, default=SAVE_EVERY, help="epochs between two snapshots (default 5)"
    )
    parser.add_argument(
        "--batch_size", type=positive, default=BATCH_SIZE, help="images per process and step (default 32)"
    )
    return parser.parse_args()


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return number


def listen_for_stop() -> threading.Event:
    """An event that SIGTERM or SIGUSR1 sets: nothing else happens until the end of the epoch."""
    asked = threading.Event()
    for name in ("SIGTERM", "SIGUSR1"):
        if hasattr(signal, name):  # Windows has no SIGUSR1
            signal.signal(getattr(signal, name), lambda *_: asked.set())
    return asked


def join_world() -> torch.device:
    """Meet the other processes, as torchrun's variables say; alone without them. Gives this process's device."""
    local, neighbours = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if torch.cuda.is_available() and torch.cuda.device_count() >= neighbours:
        device, backend = torch.device("cuda", local), "nccl"
        torch.cuda.set_device(device)
    else:
        device, backend = torch.device("cpu"), "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:  # plain `python digits.py`: a world of one, which needs no port
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return device


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Train and test set, the same split in every process: images (n, 1, 8, 8) in 0..1 and labels (n,)."""
    if not DATA.exists():
        sys.exit(f"error: {DATA} is missing; put data/digits.csv.gz beside {Path(__file__).name}")
    table = torch.from_numpy(np.loadtxt(DATA, delimiter=",", dtype=np.float32))  # 64 pixels in 0..16, then the label
    table = table[torch.randperm(len(table), generator=torch.Generator().manual_seed(SEED))]
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


def train_one_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[tuple[Tensor, ...]],
    device: torch.device,
    stop: threading.Event,
) -> tuple[float, float, bool]:
    """Mean loss and accuracy over every process's images, and whether any process was asked to stop."""
    total_loss, correct, seen = 0.0, 0, 0
    for images, labels in loader:
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        logits = model(images)
        loss = nn.functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()  # DistributedDataParallel averages the gradients over the processes here
        optimizer.step()
        total_loss += loss.item() * len(labels)
        correct += int((logits.argmax(1) == labels).sum())
        seen += len(labels)
    # Sums, not means, are added up over the processes: exact when the last batch is a short one. The wish
    # to stop travels with them, so that all processes leave after the same epoch and none waits for one that left.
    sums = torch.tensor([total_loss, correct, seen, stop.is_set()], dtype=torch.float64, device=device)
    dist.all_reduce(sums)
    total_loss, correct, seen, stopping = sums.tolist()
    return total_loss / seen, correct / seen, stopping > 0


@torch.no_grad()
def count_correct(model: nn.Module, test: TensorDataset, device: torch.device) -> int:
    """How many test images all processes together get right; each image is looked at exactly once."""
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    images, labels = (tensor[mine].to(device) for tensor in test.tensors)
    correct = (model(images).argmax(1) == labels).sum()
    dist.all_reduce(correct)
    return int(correct)


def save(model: nn.Module, optimizer: torch.optim.Optimizer, epochs_done: int) -> None:
    """Write the snapshot beside the old one, then put it in its place: a kill at any moment leaves a whole one."""
    state = {
        "program": PROGRAM,
        "epochs_done": epochs_done,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    temporary = SNAPSHOT.with_name(SNAPSHOT.name + ".tmp")
    with open(temporary, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, SNAPSHOT)


def resume(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Epochs done by the snapshot that the first process finds; 0 where there is none.

    The first process alone looks, and hands what it found to the others: their machines may have no snapshot, or
    an older one, and would train other epochs beside it without a word.
    """
    found: list[Any] = [read_snapshot() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(found)
    state = found[0]
    if isinstance(state, str):
        sys.exit(f"error: {state}")
    if state is None:
        return 0
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["epochs_done"])


def read_snapshot() -> dict[str, Any] | str | None:
    """The snapshot's content, None without one, or the sentence that says why it cannot be used."""
    if not SNAPSHOT.exists():
        return None
    try:
        state = torch.load(SNAPSHOT, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a torn or foreign file; the answer is one
        return f"{SNAPSHOT} cannot be read ({type(error).__name__}); move it away to start from epoch 0"
    if not isinstance(state, dict) or state.get("program") != PROGRAM:
        return f"{SNAPSHOT} is not a snapshot of this program; move it away to start from epoch 0"
    return state


def describe_world() -> str:
    """`4 ranks (2 nodes x 2), gloo`."""
    world, nodes = dist.get_world_size(), int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    each = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    ranks = f"{world} rank{'s' * (world > 1)} ({nodes} node{'s' * (nodes > 1)} x {each})"
    return f"{ranks}, {dist.get_backend()}"


if __name__ == "__main__":
    main()
