"""Steps in which nothing is done, by ranks that are not equally fast. Rank 1 is asked to stop in one of them; each rank
tells in which it has learnt of it, and how often they had asked each other until then."""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[4] / "train"))

import torch.distributed as dist
from ddp.options import arguments
from ddp.world import World, launch


def ask(world: World, options: argparse.Namespace) -> None:
    exchanges, honest = 0, dist.all_reduce
    if not options.sleep:
        world.stop.INTERVAL_S = 60.0  # a short step is one on a busy machine as well

    def counted(*given: object, **more: object) -> object:
        nonlocal exchanges
        exchanges += 1
        return honest(*given, **more)

    dist.all_reduce = counted
    chance, step, known = random.Random(world.rank), 0, False
    while not known and step < 1000:
        step += 1
        time.sleep(options.sleep + 0.001 * world.rank * chance.random())
        if (world.rank, step) == (1, options.asked_in):
            os.kill(os.getpid(), signal.SIGUSR1)
        known = world.stop.asked(world)
    print(step, exchanges)


if __name__ == "__main__":
    parser = arguments(__doc__, 1, 1, 1, 0)
    parser.add_argument("asked_in", type=int)
    parser.add_argument("sleep", type=float)
    options = parser.parse_args(["1", "1", *sys.argv[1:]])
    launch(ask, options)
