"""Every rank adds up all ranks' numbers, and writes down what it was given: `agree.py FOLDER [snapshot | fail RANK]`.

`snapshot`: it goes on until the snapshot file is there, as a program does that saves when it is asked to. `fail`: one
rank ends, and no other hears of it.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
total = torch.tensor([rank + 1])
dist.all_reduce(total)
words = {"argv": sys.argv[1:], "env": dict(os.environ), "world": dist.get_world_size(), "total": total.item()}
Path(sys.argv[1], f"rank{rank}.json").write_text(json.dumps(words))
if sys.argv[2:3] == ["fail"]:
    if rank == int(sys.argv[3]):
        sys.exit(3)
    time.sleep(3600)
if sys.argv[2:] == ["snapshot"]:
    while not Path(os.environ["GPUOPS_SNAPSHOT_FILE"]).exists():
        time.sleep(0.1)
    Path(sys.argv[1], f"saved{rank}").touch()
dist.barrier()
dist.destroy_process_group()
