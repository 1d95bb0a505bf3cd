"""A program as it was published, every line of it with the second at which it was printed.

    published.py FOLDER PROGRAM ARGUMENTS…

The program runs in that folder and is not changed. Where there is no GPU, what it asks of one is answered here, in no
time. What it imports may also lie in FOLDER/../libs.
"""

import os
import runpy
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel


def where_there_is_no_gpu():
    torch.cuda.set_device = lambda _device: None
    dist.init_process_group = as_gloo(dist.init_process_group)
    Module.to, torch.Tensor.to = staying(Module.to), staying(torch.Tensor.to)
    DistributedDataParallel.__init__ = on_no_device(DistributedDataParallel.__init__)
    torch.library.register_fake = without_torchvision(torch.library.register_fake)


def as_gloo(init):
    """nccl needs GPUs."""
    return lambda backend=None, **more: init("gloo" if backend == "nccl" else backend, **more)


def staying(to):
    """What is sent to GPU 0 or 1 stays where it is; all else goes its way."""

    def move(self, *where, **more):
        return self if where and isinstance(where[0], int) else to(self, *where, **more)

    return move


def on_no_device(init):
    return lambda self, model, device_ids=None, **more: init(self, model, **more)  # noqa: ARG005 (that is the point)


def without_torchvision(register):
    """The library that comes with torchvision needs CUDA's; that its operators are missing only these registrations
    notice. What the examples use of torchvision is Python."""
    return lambda name, *given, **more: (
        (lambda function: function) if name.startswith("torchvision::") else register(name, *given, **more)
    )


class Stamped:
    """A stream that puts the time before each line."""

    def __init__(self, stream):
        self.stream, self.line = stream, ""

    def write(self, text):
        *lines, self.line = (self.line + text).split("\n")
        for line in lines:
            self.stream.write(f"{time.perf_counter():.6f} {line}\n")
        return len(text)

    def flush(self):
        self.stream.flush()


sys.stdout = Stamped(sys.stdout)
os.chdir(sys.argv[1])
sys.argv = sys.argv[2:]
sys.path[:1] = [str(Path(sys.argv[0]).parent)]  # as `python PROGRAM` has it
sys.path.append(str(Path.cwd().parent / "libs"))
if not torch.cuda.is_available():
    where_there_is_no_gpu()
runpy.run_path(sys.argv[0], run_name="__main__")
