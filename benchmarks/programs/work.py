"""Train a small network on random numbers for a while, and tell how many samples a second went through it."""

import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # torch loads it later by itself, and it then keeps the group alive

BATCH, WARM_S = 128, 1.0


def main(seconds):
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(512, 512), torch.nn.ReLU())]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    samples = torch.rand(BATCH, 512)
    steps_per_second(model, optimizer, samples, WARM_S)
    rate = steps_per_second(model, optimizer, samples, seconds) * BATCH * dist.get_world_size()
    if dist.get_rank() == 0:
        print("RATE", rate, flush=True)


def steps_per_second(model, optimizer, samples, seconds):
    """Steps taken together until rank 0's time is over."""
    began, steps, more = time.perf_counter(), 0, torch.ones(1)
    while more.item():
        for _ in range(10):
            optimizer.zero_grad()
            model(samples).square().mean().backward()
            optimizer.step()
        steps += 10
        more.fill_(time.perf_counter() - began < seconds)
        dist.broadcast(more, 0)
    return steps / (time.perf_counter() - began)


dist.init_process_group("gloo")
main(float(sys.argv[1]))
dist.destroy_process_group()  # only now that nothing holds the group
