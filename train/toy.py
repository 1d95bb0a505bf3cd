"""A linear layer on random numbers: what the DistributedDataParallel tutorials train, to see the machinery turn.

    python toy.py 50 10                                               one process
    torchrun --standalone --nproc-per-node=4 toy.py 50 10             one machine, four processes
    torchrun --nnodes=2 --node-rank=0 --nproc-per-node=8 \\
             --master-addr=10.0.0.1 --master-port=29500 toy.py 50 10  two machines; the second says --node-rank=1

Every process prints one line per epoch, `[GPU11] Epoch 47 | Batchsize: 32 | Steps: 4`: its rank, the epoch (from 0),
the samples per step and the steps it takes, 2,048 samples divided among all processes. It trains on a GPU per process
where there are that many (nccl) and on the processor elsewhere (gloo). The first process keeps a snapshot,
toy.pt, in the working directory; the same command goes on with the epoch after it. SIGUSR1 or SIGTERM to any
process: all of them stop together after the epoch they are in, with a snapshot.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # torch loads it later by itself, and it then keeps the group alive: see main
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

# ---- what can be turned; the rest of the file is one straight path --------------------------------------------------
TOTAL_EPOCHS = 50
SAVE_EVERY = 10  # epochs between two snapshots
BATCH_SIZE = 32  # samples per process and step
SAMPLES, FEATURES = 2048, 20
LEARNING_RATE = 1e-3  # of SGD
SEED = 2048  # of the samples, the first weights and the order: the same in every process
SNAPSHOT = Path("toy.pt")
PROGRAM = "toy 1"  # in every snapshot, so that another program's file is recognised


@record  # where torchrun asks for it, an exception's traceback goes to its error file
def main() -> None:
    options = parse_arguments()
    stop = listen_for_stop()
    train(options, join_world(), stop)
    # Only now that nothing else holds the group does this end its threads. One that is still busy with the last
    # collective when Python shuts down would abort the process, after all the work was done.
    dist.destroy_process_group()


def train(options: argparse.Namespace, device: torch.device, stop: threading.Event) -> None:
    rank = dist.get_rank()
    torch.manual_seed(SEED)
    samples = TensorDataset(torch.rand(SAMPLES, FEATURES), torch.rand(SAMPLES, 1))
    sampler = DistributedSampler(samples, seed=SEED)
    batch = min(options.batch_size, len(sampler))  # with very many processes there is less than a batch for each
    loader = DataLoader(samples, batch, sampler=sampler, pin_memory=device.type == "cuda")
    model = DistributedDataParallel(
        nn.Linear(FEATURES, 1).to(device), device_ids=[device] if device.type == "cuda" else None
    )
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE)

    first = resume(model.module, optimizer)
    if first and rank == 0:
        say(f"[GPU0] resumed from {SNAPSHOT} at epoch {first}")
    for epoch in range(first, options.total_epochs):
        sampler.set_epoch(epoch)  # another order in every epoch, and the same one after a resume
        train_one_epoch(model, optimizer, loader, device)
        say(f"[GPU{rank}] Epoch {epoch} | Batchsize: {batch} | Steps: {len(loader)}")
        done, stopping = epoch + 1, anyone(stop, device)
        if rank == 0 and (stopping or done % options.save_every == 0 or done == options.total_epochs):
            save(model.module, optimizer, done)
            say(f"[GPU0] snapshot in {SNAPSHOT}, next epoch {done}")
        if stopping:
            break


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "total_epochs", nargs="?", type=positive, default=TOTAL_EPOCHS, help="epochs in all, those of earlier runs too"
    )
    parser.add_argument(
        "save_every", nargs="?", type=positive, default=SAVE_EVERY, help="epochs between two snapshots (default 10)"
    )
    parser.add_argument(
        "--batch_size", type=positive, default=BATCH_SIZE, help="samples per process and step (default 32)"
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
    else:  # plain `python toy.py`: a world of one, which needs no port
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return device


def say(line: str) -> None:
    """Print in one write, newline included: all processes share one terminal, and print() may write twice."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def train_one_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader[Any], device: torch.device
) -> None:
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
        optimizer.zero_grad()
        loss.backward()  # DistributedDataParallel averages the gradients over the processes here
        optimizer.step()


def anyone(stop: threading.Event, device: torch.device) -> bool:
    """Whether any process was asked to stop: all get the same answer, so none waits for one that left."""
    asked = torch.tensor(int(stop.is_set()), device=device)
    dist.all_reduce(asked)
    return bool(asked)


def save(model: nn.Module, optimizer: torch.optim.Optimizer, epochs_done: int) -> None:
    """Write the snapshot beside the old one, then put it in its place: a kill at any moment leaves a whole one."""
    state = {
        "program": PROGRAM,
        "epochs_done": epochs_done,  # which is also the epoch to go on with: they count from 0
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
    """The epoch to start with: the one after the snapshot that the first process finds; 0 where there is none.

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


if __name__ == "__main__":
    main()
