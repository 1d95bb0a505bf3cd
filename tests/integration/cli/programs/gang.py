"""Ranks that reduce for ever, until the last does what the argument says. `patient` ranks catch what hits them."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

IS_LAST = int(os.environ["RANK"]) + 1 == int(os.environ["WORLD_SIZE"])
WHAT, *MOODS = sys.argv[1:]


def reduce_for_ever():
    dist.barrier()  # who ends the others does so once all have met
    while True:
        dist.all_reduce(torch.ones(1))


def train():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    for _ in range(5):
        model(torch.randn(8, 4)).square().mean().backward()
    print("trained as", dist.get_rank(), "of", dist.get_world_size())
    time.sleep(1)


def leave(code):
    """At once: while Python ends torch may abort, which is another death, and the peers' deaths may come first."""
    sys.stderr.flush()
    os._exit(code)


def do(what):
    if what == "raise":
        raise ValueError("the last rank has had enough")
    if what == "exit":
        sys.exit(7)
    if what == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)


dist.init_process_group("gloo")
for _ in range(5):
    dist.all_reduce(torch.ones(1))
print("met", flush=True)
if WHAT == "train":
    train()
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(0)
if IS_LAST and WHAT != "nothing":
    dist.barrier()
    try:
        do(WHAT)
    except SystemExit as end:
        leave(end.code)
    except ValueError:
        sys.excepthook(*sys.exc_info())
        leave(1)
try:
    reduce_for_ever()
except RuntimeError:
    if "patient" not in MOODS:
        raise
    print("the peers are gone, giving up", file=sys.stderr)
    sys.exit(3)
