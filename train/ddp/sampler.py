"""Who sees which sample in which step: every sample once per epoch, in another order each time, in any world.

torch's DistributedSampler does the same for whole epochs. This one can also begin in the middle, in a world of
another size than the one that stopped there, and it knows which samples are padding, so that they do not count.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Part(NamedTuple):
    """What one rank does in one step."""

    indices: Tensor
    """Which samples to look up; the same number on every rank."""
    mine: int
    """How many of them count, from the left. The others are padding: a rank that had one batch fewer than its
    peers would let them wait in their backward for ever."""
    all_ranks: int
    """How many count on all ranks together: what a mean is to be divided by."""


class Sampler:
    def __init__(self, samples: int, batch: int, rank: int, world: int, seed: int) -> None:
        self.samples, self.batch, self.rank, self.world, self.seed = samples, batch, rank, world, seed

    def __len__(self) -> int:
        """Steps in a whole epoch."""
        return -(-self.samples // (self.batch * self.world))

    def order(self, epoch: int) -> Tensor:
        """All samples, shuffled; the same on every rank, and another order in every epoch.

        DistributedSampler needs `set_epoch` for that, which programs forget: they see one order for ever.
        """
        return torch.randperm(self.samples, generator=torch.Generator().manual_seed(self.seed + epoch))

    def parts(self, epoch: int, position: int = 0) -> list[Part]:
        """This rank's part of an epoch of which all ranks together have seen `position` samples.

        The ranks take turns in the order, one sample each. So what they have seen after any step is a beginning
        of it, whatever their number: a world of another size goes on with exactly the rest.
        """
        rest = self.samples - position
        share = -(-rest // self.world)
        turns = torch.arange(self.rank, share * self.world, self.world)
        # Padding is the order's first samples, wherever this begins: a BatchNorm looks at them, too.
        indices = self.order(epoch)[(position + turns) % self.samples]
        real = int((turns < rest).sum())
        parts = []
        for start in range(0, share, self.batch):
            taken = indices[start : start + self.batch]
            all_ranks = min(self.batch * self.world, rest - start * self.world)
            parts.append(Part(taken, max(0, min(len(taken), real - start)), all_ranks))
        return parts
