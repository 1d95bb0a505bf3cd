"""The same digits learnt the right way and with each mistake, by all ranks of a torchrun; rank 0 tells the figures.

    torchrun --standalone --nproc-per-node=4 learn.py TRAIN SEEDS EPOCHS

TRAIN is the folder that has digits.py, which lends its data and its model.
"""

import json
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # torch loads it later by itself, and it then keeps the group alive
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler

BATCH = 32  # of all ranks together, where it is right
RATE = 0.03  # of SGD with momentum, which suits that batch
WARM_UP = 40  # steps in which a larger rate rises from zero, where it does so
TRAIN_IMAGES = 1000  # of 1,797: with fewer to test with, one run's luck would hide more
TEST_BATCH = 32


def ways(world):
    """Name -> what differs from the right way."""
    return {
        "right": {},
        "no set_epoch": {"set_epoch": False},
        "softmax before the loss": {"softmax": True},
        "shuffle=True, one seed": {"sampler": "one seed"},
        "shuffle=True, a seed per rank": {"sampler": "own seed"},
        "batch per GPU kept": {"batch": BATCH * world},
        "batch per GPU kept, rate times ranks": {"batch": BATCH * world, "rate": RATE * world},
        "the same, warmed up": {"batch": BATCH * world, "rate": RATE * world, "warm_up": WARM_UP},
    }


def learn(
    train, test, seed, epochs, judge, set_epoch=True, softmax=False, sampler=None, batch=BATCH, rate=RATE, warm_up=1
):
    """Train one model; what came of it, on rank 0."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed)
    model = digits.build_model()
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9)
    if sampler:  # what DataLoader(shuffle=True) makes
        own = rank if sampler == "own seed" else 0
        order = RandomSampler(train[1], generator=torch.Generator().manual_seed(1000 * seed + own))
    else:
        order = DistributedSampler(train[1], seed=seed)
    seen, computed, steps, start = torch.zeros(len(train[1])), 0, 0, time.perf_counter()
    for epoch in range(epochs):
        if not sampler and set_epoch:
            order.set_epoch(epoch)
        for chosen in BatchSampler(order, batch // world, drop_last=False):
            logits = ddp(train[0][chosen])
            loss = cross_entropy(logits.softmax(1) if softmax else logits, train[1][chosen])
            optimizer.param_groups[0]["lr"] = rate * min(1, (steps + 1) / warm_up)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen[chosen] = 1
            computed, steps = computed + len(chosen), steps + 1
        if judge is not None:
            judge.append(figures(model, test))
    seconds = time.perf_counter() - start
    return {**exact(model, train, softmax, "train "), **exact(model, test, softmax, ""), "seconds": seconds,
            "samples": computed * world / epochs, "steps": steps / epochs, "seen": float(seen.mean())}  # fmt: skip


@torch.no_grad()
def exact(model, data, softmax, name):
    logits = model(data[0])
    loss = cross_entropy(logits.softmax(1) if softmax else logits, data[1])
    return {f"{name}loss": float(loss), f"{name}accuracy": float((logits.argmax(1) == data[1]).double().mean())}


@torch.no_grad()
def figures(model, test):
    """The accuracy in the test set as programs tell it, beside the exact one."""
    rank, world, (images, labels) = dist.get_rank(), dist.get_world_size(), test
    right = (model(images).argmax(1) == labels).double()
    padded = torch.tensor(list(DistributedSampler(labels, shuffle=False)))
    mine = right[rank : len(labels) : world]
    means = torch.stack([part.mean() for part in mine.split(TEST_BATCH)]).mean()
    sums = torch.stack([means, right[padded].sum(), torch.tensor(float(len(padded))).double()])
    dist.all_reduce(sums)
    return {"exact": float(right.mean()), "rank 0's own": float(mine.mean()),
            "mean of batch means": float(sums[0] / world), "padding counted": float(sums[1] / sums[2])}  # fmt: skip


def main(seeds, epochs, came):
    world = dist.get_world_size()
    arrivals = [None] * world
    dist.all_gather_object(arrivals, came)
    parts = [part.tensors for part in digits.load_data(digits.DATA / "digits.csv.gz")]
    images, labels = (torch.cat(both) for both in zip(*parts, strict=True))
    train, test = (images[:TRAIN_IMAGES], labels[:TRAIN_IMAGES]), (images[TRAIN_IMAGES:], labels[TRAIN_IMAGES:])
    results, judged = {name: [] for name in ways(world)}, []
    for seed in range(seeds):
        for name, differs in ways(world).items():
            judge = judged if name == "right" else None
            results[name].append(learn(train, test, seed, epochs, judge, **differs))
    if dist.get_rank() == 0:
        apart = max(arrivals) - min(arrivals)
        print("TOLD", json.dumps({"results": results, "judged": judged, "apart": apart, "test": len(test[1])}))


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    import digits

    torch.set_num_threads(1)
    came = time.time()
    dist.init_process_group("gloo")
    main(int(sys.argv[2]), int(sys.argv[3]), came)
    dist.destroy_process_group()  # only now that nothing holds the group
