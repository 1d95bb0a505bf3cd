"""All-reduce so many bytes a few times, with nothing else to do, and tell how long one takes."""

import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # torch loads it later by itself, and it then keeps the group alive

ROUNDS = 5


def main(count):
    gradients = torch.ones(count // 4)
    taken = []
    for _ in range(ROUNDS + 1):  # the first opens connections
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(gradients)
        taken.append(time.perf_counter() - began)
    if dist.get_rank() == 0:
        print(f"all-reduce  {1000 * statistics.median(taken[1:]):.2f} ms", flush=True)


dist.init_process_group("gloo")
main(int(sys.argv[1]))
dist.destroy_process_group()  # only now that nothing holds the group
