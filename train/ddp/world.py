"""The processes that train together: `launch` joins them, `World` is what each of them knows of the others.

One process is a world of one, so that no program asks "distributed or not?" anywhere.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import time
from datetime import timedelta
from typing import Any, Callable, Sequence

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # torch loads it later by itself, and it then keeps the group alive: see launch
from torch.distributed.elastic.multiprocessing.errors import record


@record  # where torchrun asks for it, an exception's traceback goes to its error file
def launch(program: Callable[[World, argparse.Namespace], None], options: argparse.Namespace) -> None:
    """Join the world, run the program in it, leave.

    The program is a function of its own so that its model is gone when the group is destroyed: only when nothing
    else holds the group does that end its threads. One that is still busy with the last collective when Python shuts
    down would abort the process, after all the work was done.

    A program that fails with an exception does not tell the others: they may be in the middle of a collective, and
    torchrun (or the broken connection) ends them.
    """
    stop = StopFlag()  # first: a signal may come while the others are still on their way
    world = World(*join(options.device, options.deterministic), stop)
    code = 0
    try:
        world.check(missing_gpu(world, options.device))
        if options.device == "auto" and world.device.type == "cpu" and torch.cuda.is_available():
            gpus = torch.cuda.device_count()
            world.note(f"fewer GPUs here ({gpus}) than ranks ({world.local_size}): all compute on the processor")
        program(world, options)
    except SystemExit as left:  # by World.check: all ranks together
        code = left.code
    gc.collect()
    dist.destroy_process_group()
    if code:  # torchrun ends the others when the first is gone, and they should not look as if a signal had been it
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if code and world.rank:
        time.sleep(1)  # rank 0, which has said why, ends first: launchers report the rank that failed first
    if code:
        sys.exit(code)


def join(wanted: str, deterministic: bool = False) -> tuple[torch.device, str]:
    """`dist.init_process_group`, as torchrun's variables say; alone without them. This one's device and backend.

    `wanted`: `auto`, or `cpu` where there are GPUs as well, or `cuda` where each process sees a single one, its own.
    """
    local, neighbours = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    gpus = torch.cuda.device_count() if wanted != "cpu" and torch.cuda.is_available() else 0
    if gpus >= neighbours or (gpus == 1 and wanted == "cuda"):
        # A GPU for each process. Gradients travel by nccl, where torch has it (on Windows it has not); what the
        # processes tell each other beside that (sums, a request to stop) lies in ordinary memory and travels by gloo,
        # so that none has to wait for a GPU.
        device = torch.device("cuda", local if gpus >= neighbours else 0)
        backend = "nccl" if dist.is_nccl_available() else "gloo"
        groups = f"cpu:gloo,cuda:{backend}"
        set_up_gpu(device, deterministic)
    else:
        device, backend, groups = torch.device("cpu"), "gloo", "gloo"
    # nccl's own limit, of which torch makes 30 minutes as soon as gloo is there, too: so long would the GPUs of all
    # be paid for after a rank has got stuck.
    limit = timedelta(minutes=10)
    if "RANK" in os.environ:
        dist.init_process_group(groups, timeout=limit)
    else:  # plain `python`: a world of one, which needs no port
        dist.init_process_group(groups, store=dist.HashStore(), rank=0, world_size=1)
    return device, backend


def set_up_gpu(device: torch.device, deterministic: bool) -> None:
    """Take it, and choose between its fastest kernels and those that give the same bits each time."""
    torch.cuda.set_device(device)
    torch.set_float32_matmul_precision("high")  # TF32 for products, too, as convolutions have it already
    torch.backends.cudnn.benchmark = not deterministic  # tries its kernels on the first step, and keeps the fastest
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before cuBLAS is first used
        torch.use_deterministic_algorithms(True)


def missing_gpu(world: World, wanted: str) -> str | None:
    """Why this process cannot train with the others: without the GPU that was asked for, or on another kind of device
    than rank 0, when one would send its gradients by nccl and the other by gloo, and all would wait. All ranks call it.
    """
    kind = world.broadcast(world.device.type)
    if wanted == "cuda" and world.device.type == "cpu":
        here = f"{world.local_size} rank{'s' * (world.local_size > 1)} here"
        return f"--device cuda needs a GPU for each of the {here}, and torch sees {torch.cuda.device_count()}"
    if kind != world.device.type:
        return "some machines have a GPU for each of their ranks and others have not; --device cpu uses none anywhere"
    return None


SIGNALS = ("SIGTERM", "SIGUSR1", "SIGINT")
"""What asks for a stop. torchrun passes Ctrl-C on to each rank, once, and gives them 30 s."""


class StopFlag:
    """Set by SIGTERM, SIGUSR1 or Ctrl-C (SIGINT; a second one ends at once) to any process; all of them learn of it in
    the same step, by `dist.all_reduce`. So they do of a request for a snapshot, after which they go on: the file that
    $GPUOPS_SNAPSHOT_FILE names has appeared, or was written again."""

    INTERVAL_S = 0.02  # between two all_reduces of short steps: one in each would cost a quarter of a small step
    MAX_STEPS = 16  # between two all_reduces: the next step may take a thousand times as long
    SAME_REQUEST_S = 30.0  # a request this soon after the snapshot for one is the same, seen by another process

    def __init__(self) -> None:
        self.signalled = False
        self._file = os.environ.get("GPUOPS_SNAPSHOT_FILE", "")
        self._written = 0  # the file's time at the last look, in nanoseconds
        self._saved = float("-inf")  # when a snapshot was last requested and written
        self._steps, self._group = 0, 1  # steps since the last all_reduce, and how many there are between two
        self._since = time.monotonic()
        for name in SIGNALS:
            if hasattr(signal, name):  # Windows has no SIGUSR1
                signal.signal(getattr(signal, name), self._set)

    def _set(self, number: int, _frame: object) -> None:
        self.signalled = True
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def asked(self, world: World) -> str:
        """What any process was asked for: `stop`, `save` (and go on), or nothing. All processes call it once per step
        and get the same answer. How many steps lie between two all_reduces follows from rank 0's clock, of which all
        are told: by clocks of their own they would lose each other."""
        self._steps += 1
        if self._steps < self._group:
            return ""
        now = time.monotonic()
        pace = (now - self._since) / self._steps
        told = torch.tensor([self.signalled, self._snapshot_is_requested(now), pace if world.rank == 0 else 0.0])
        dist.all_reduce(told)
        stop, save, pace = told.tolist()
        self._steps, self._since = 0, now
        self._group = max(1, min(self.MAX_STEPS, int(self.INTERVAL_S / max(pace, 1e-9))))
        if save:
            self._saved = now
        return "stop" if stop else "save" if save else ""

    def _snapshot_is_requested(self, now: float) -> bool:
        """Whether this process sees a request that no snapshot has followed yet."""
        try:
            written = os.stat(self._file).st_mtime_ns
        except OSError:
            return False  # it is not there: none is requested
        is_new, self._written = written != self._written, written
        return is_new and now - self._saved >= self.SAME_REQUEST_S


class World:
    """This process's rank, the world's size, and the collectives that programs need."""

    def __init__(self, device: torch.device, backend: str, stop: StopFlag) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self.nodes = self.size // self.local_size
        self.device, self.backend, self.stop = device, backend, stop

    def describe(self) -> str:
        """`4 ranks (2 nodes x 2), gloo`."""
        ranks = f"{self.size} rank{'s' * (self.size > 1)}"
        return f"{ranks} ({self.nodes} node{'s' * (self.nodes > 1)} x {self.local_size}), {self.backend}"

    def hardware(self) -> str:
        """What computes: `4 x Tesla T4`, `2 threads of the processor`."""
        if self.device.type == "cuda":
            each = torch.cuda.get_device_name(self.device)
        else:
            threads = torch.get_num_threads()
            each = f"{threads} thread{'s' * (threads > 1)} of the processor"
        return f"{self.size} x {each}" if self.size > 1 else each

    def say(self, line: str) -> None:
        """A result, said once: by rank 0, on stdout."""
        if self.rank == 0:
            write(line)

    def note(self, line: str) -> None:
        """Something to know beside the results, said once: by rank 0, on stderr."""
        if self.rank == 0:
            write(line, sys.stderr)

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """`dist.all_reduce` of each number, in 64 bits: counts stay exact to 2^53, where 32 bits end at 2^24.

        Give sums and counts and divide afterwards. The mean of the ranks' means is wrong as soon as one of
        them saw fewer samples.
        """
        sums = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(sums)
        return sums.tolist()

    def max(self, number: float) -> float:
        """`dist.all_reduce` with MAX: the largest of all ranks' numbers."""
        largest = torch.tensor(number, dtype=torch.float64)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return largest.item()

    def broadcast(self, value: Any) -> Any:
        """`dist.broadcast_object_list`: rank 0's value, on every rank.

        What depends on a disk or a clock is decided once: another machine may see something else, and ranks that
        decide differently wait for each other for ever."""
        values = [value]
        dist.broadcast_object_list(values)
        return values[0]

    def gather(self, value: Any) -> list[Any]:
        """`dist.gather_object`: every rank's value, by rank, on rank 0; an empty list elsewhere."""
        values = [None] * self.size if self.rank == 0 else None
        dist.gather_object(value, values)
        return values or []

    def check(self, problem: str | None, group: Any = None) -> None:
        """Go on if no rank has a problem; else rank 0 says the first one, once, and all leave with exit code 1.

        By `dist.all_gather_object`: all ranks call it. One that just left would let the others wait for it.
        """
        problems: list[Any] = [None] * self.size
        dist.all_gather_object(problems, problem, group)
        found = [(rank, problem) for rank, problem in enumerate(problems) if problem]
        if found:
            rank, problem = found[0]
            self.note(f"error: {problem}" + f" (rank {rank})" * (rank > 0))
            self.barrier()
            sys.exit(1)

    def barrier(self) -> None:
        """Until all are here, as by `dist.barrier`, but over gloo, without a GPU."""
        self.sum([0])


def write(line: str, stream: Any = None) -> None:
    """Print in one write, newline included: all processes share one terminal, and print() may write twice."""
    stream = stream or sys.stdout
    stream.write(line + "\n")
    stream.flush()
