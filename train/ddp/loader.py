"""Batches on the device, before it asks for them."""

from __future__ import annotations

import argparse
import atexit
import multiprocessing
import signal
from typing import Any, Callable, Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from ddp import randomness
from ddp.sampler import Part, Sampler
from ddp.world import SIGNALS, World

KEPT_BYTES = 2 << 30  # tensors up to this size are kept on the device: MNIST and CIFAR-10 are a tenth of it


class Batches:
    """A data set, divided among the ranks and cut into batches.

    A TensorDataset lies on the device as a whole, and a batch is one look-up there: no worker, no collating of
    single samples, no copy per step. For small data that is many times faster than any DataLoader. What is too large
    for it, or is read file by file, comes through torch's DataLoader; `workers` processes per rank load it.

    `transform(*batch)` makes of each batch, on the device, what the model gets: floats from bytes, a crop, a flip.
    """

    def __init__(
        self,
        world: World,
        options: argparse.Namespace,
        data: Any,
        for_test: bool = False,
        transform: Callable[..., list[Tensor]] | None = None,
        workers: int = 2,
    ) -> None:
        self.world, self.samples, self.seed, self.transform = world, len(data), options.seed, transform
        self.batch, problem = choose_batch(self.samples, world.size, options)
        if not for_test:  # where a batch that is too large is just one
            world.check(problem)
        self.sampler = Sampler(self.samples, self.batch, world.rank, world.size, options.seed)
        self.kept: list[Tensor] | None = None
        if isinstance(data, TensorDataset) and sum(t.numel() * t.element_size() for t in data.tensors) <= KEPT_BYTES:
            self.kept = [tensor.to(world.device) for tensor in data.tensors]
        else:
            self.plan = _Plan()
            atexit.register(_kill_workers)
            self.loader = DataLoader(
                _Seeded(data),
                batch_sampler=self.plan,
                num_workers=workers,
                persistent_workers=workers > 0,  # else they start anew in every epoch
                pin_memory=world.device.type == "cuda",  # from there a copy to the GPU runs beside the computing
                worker_init_fn=_leave_signals_to_the_rank,
                generator=torch.Generator(),  # its own: else each start of it moves the one that dropout uses
            )

    def __len__(self) -> int:
        """Steps in a whole epoch."""
        return len(self.sampler)

    def epoch(self, epoch: int, position: int = 0) -> Iterator[tuple[Part, list[Tensor]]]:
        """The batches that are left of an epoch of which all ranks together have seen `position` samples."""
        parts = self.sampler.parts(epoch, position)
        batches = self._loaded(parts, epoch) if self.kept is None else self._kept(parts)
        return zip(parts, (self.transform(*batch) for batch in batches) if self.transform else batches)

    def _kept(self, parts: list[Part]) -> Iterator[list[Tensor]]:
        assert self.kept is not None
        # The epoch's indices go to the device at once: one copy, where one per step would wait for the GPU each time.
        wanted = torch.cat([part.indices for part in parts])
        for indices in wanted.to(self.world.device).split([len(part.indices) for part in parts]):
            yield [tensor.index_select(0, indices) for tensor in self.kept]  # ten times as fast as tensor[indices]

    def _loaded(self, parts: list[Part], epoch: int) -> Iterator[list[Tensor]]:
        self.plan.requests = [
            (self.seed + epoch * self.samples + int(part.indices[0]), part.indices.tolist()) for part in parts
        ]
        for batch in self.loader:
            yield [tensor.to(self.world.device, non_blocking=True) for tensor in batch]


def choose_batch(samples: int, world: int, options: argparse.Namespace) -> tuple[int, str | None]:
    """Samples per process and step, and what is wrong with the number that was asked for."""
    if not samples:
        return 1, "there is not one sample to learn from"
    share = -(-samples // world)
    wanted = options.batch_size
    if wanted is None:  # the program's own number, as far as a very large world leaves each rank that many
        return min(options.default_batch_size, share), None
    if wanted <= share:
        return wanted, None
    who = f"{world} ranks share" if world > 1 else "1 rank has"
    return share, f"--batch_size {wanted} is more than there is: {who} {samples} samples; use {share} or less"


class _Plan:
    """What the DataLoader asks for next, batch by batch: a seed and the samples."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, list[int]]] = []

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        return iter(self.requests)

    def __len__(self) -> int:
        return len(self.requests)


class _Seeded(Dataset):  # type: ignore[type-arg]
    """Whole batches, each with random numbers of its own.

    A worker's generators depend on how many batches it has made since it was started. With them a resumed run would
    augment other than an uninterrupted one; seeded by batch, the same batch is made whoever makes it and when.
    """

    def __init__(self, data: Any) -> None:
        self.data = data

    def __getitems__(self, request: tuple[int, list[int]]) -> list[Any]:
        seed, indices = request
        if torch.utils.data.get_worker_info():  # without workers the rank's own generators do, which snapshots keep
            randomness.seed(seed)
        return [self.data[index] for index in indices]


def _kill_workers() -> None:
    """Python ends children by SIGTERM at its exit, which workers ignore, and then waits for them for ever."""
    if hasattr(signal, "SIGCHLD"):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would call it a failure
    for worker in multiprocessing.active_children():
        if worker.daemon:
            worker.kill()


def _leave_signals_to_the_rank(_worker: int) -> None:
    """Schedulers and terminals signal every process; the rank needs its workers until its snapshot is written."""
    for name in SIGNALS:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
