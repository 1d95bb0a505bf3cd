"""One of the programs, on data as small as a test can make them, and with what may befall it.

    small.py PROGRAM ARGUMENTS…

The program is run as it is; only what is published is another: the size and checksum of a file are those that it has
in $SMALL, its address is in $SOURCE. $DOWNLOADS: ddp.downloads' numbers, as JSON.
$KILL: RANK STEP, after which that rank is killed. $UNLIKE: the rank that computes on something else than the others.
"""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[4] / "train"))

import torch
from ddp import downloads
from ddp import world as worlds
from ddp.trainer import Trainer
from ddp.world import World


def publish(file: downloads.File) -> downloads.File:
    file, path = file._replace(url=f"{os.environ['SOURCE']}/{file.name}"), Path(os.environ["SMALL"]) / file.name
    return file._replace(size=path.stat().st_size, sha256=hashlib.sha256(path.read_bytes()).hexdigest())


def fetch(world: World, where: str | None, name: str, files: Sequence[downloads.File]) -> Path:
    return honest_fetch(world, where, name, [publish(file) for file in files])


def take_step(self: Trainer) -> None:
    honest_step(self)
    if os.environ.get("KILL") == f"{self.world.rank} {self.step + 1}":
        os.kill(os.getpid(), signal.SIGKILL)


def join(*wanted: object) -> tuple[torch.device, str]:
    device, backend = honest_join(*wanted)
    return (torch.device("meta") if os.environ.get("UNLIKE") == os.environ["RANK"] else device), backend


honest_join, worlds.join = worlds.join, join
honest_fetch, downloads.fetch = downloads.fetch, fetch
honest_step, Trainer.take_step = Trainer.take_step, take_step  # type: ignore[method-assign]
for name, number in json.loads(os.environ.get("DOWNLOADS", "{}")).items():
    setattr(downloads, name, number)

folders = Path(sys.path[1]), Path(__file__).parent
program = next(folder / sys.argv[1] for folder in folders if (folder / sys.argv[1]).exists())
sys.argv = [str(program), *sys.argv[2:]]
runpy.run_path(str(program), run_name="__main__")
