"""The forward of so many batches at once: by a thread each in one process, as DataParallel does it, and by processes.

What DataParallel's threads also do on GPUs (copy the model out, fetch the answers back) is not here.
"""

import multiprocessing
import sys
import threading
import time
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[2] / "train"))

import torch
from digits import build_model

ROUNDS, LEAST_S = 5, 0.4


def one_after_the_other(model, batches, steps):
    for _ in range(steps):
        for batch in batches:
            model(batch)


def threads(model, batches, steps):
    for _ in range(steps):
        started = [threading.Thread(target=model, args=(batch,)) for batch in batches]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()


def processes(model, batches, steps):
    """Seconds of the steps alone: the processes are there before, and stay."""
    ready = multiprocessing.Barrier(len(batches) + 1)

    def rank(batch):
        one_after_the_other(model, [batch], 4)
        ready.wait()
        one_after_the_other(model, [batch], steps)
        ready.wait()

    started = [multiprocessing.Process(target=rank, args=(batch,)) for batch in batches]
    for process in started:
        process.start()
    ready.wait()
    began = time.perf_counter()
    ready.wait()
    seconds = time.perf_counter() - began
    for process in started:
        process.join()
    return seconds


def timed(way, model, batches, steps):
    began = time.perf_counter()
    return way(model, batches, steps) or time.perf_counter() - began


def main(ranks, samples):
    torch.set_num_threads(1)
    multiprocessing.set_start_method("fork")
    model = build_model()
    batches = [torch.rand(samples, 1, 8, 8) for _ in range(ranks)]
    one_after_the_other(model, batches, 10)
    steps = max(4, round(LEAST_S / (timed(one_after_the_other, model, batches, 10) / 10)))
    taken = {way: [] for way in (one_after_the_other, threads, processes)}
    for _ in range(ROUNDS):  # in turn
        for way, each in taken.items():
            each.append(timed(way, model, batches, steps) / steps)
    for way, each in taken.items():
        print(f"{way.__name__.replace('_', ' ')}  {1000 * min(each):.3f} ms", flush=True)


main(int(sys.argv[1]), int(sys.argv[2]))
