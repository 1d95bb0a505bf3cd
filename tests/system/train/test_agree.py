"""Two processes with batches of 32 learn what one with batches of 64 learns: the real programs, to rounding.

That holds for models that see each sample by itself: a BatchNorm looks at a rank's batch as a whole, dropout takes
each rank's own random numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from late import torch
from made import movielens

if TYPE_CHECKING:
    from torch import Tensor

PROGRAMS = ("toy", "digits", "movielens")
SAME = 1e-12
"""In 64 bits, what a sum in another order may make of the weights of an epoch, as a share of them."""
ROUNDED = {"toy": 1e-6, "digits": 5e-4, "movielens": 1e-6}
"""The same in the programs' own 32 bits. AdamW divides each gradient by its size, so that the rounding of one that is
almost nothing becomes a whole step of its weight: the small convolutions of `digits` have such."""
LOSS = 1e-5


class Learnt(NamedTuple):
    """After one epoch."""

    figures: dict[str, float]
    weights: dict[str, Tensor]

    def far(self, other: Learnt) -> tuple[float, float]:
        """How far from another: in the loss, and in all weights together, as a share of what they are there."""
        assert self.weights.keys() == other.weights.keys()
        mine, theirs = (
            torch.cat([weights.flatten().double() for weights in learnt.weights.values()]) for learnt in (self, other)
        )
        loss = abs(self.figures["loss"] / other.figures["loss"] - 1)
        return loss, float((mine - theirs).norm() / theirs.norm())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    movielens.make(folder)
    return folder


@pytest.fixture
def learn(world, tmp_path: Path, data: Path) -> Callable[..., Learnt]:
    def one_epoch(program: str, ranks: int, bits: int, wrong: str = "") -> Learnt:
        more = ("--data", str(data)) if program == "movielens" else ()
        cwd = tmp_path / f"{program}{ranks}"
        cwd.mkdir()
        arguments = (f"{program}.py", "1", "1", "--batch_size", str(64 // ranks), *more)
        ran = world("wrong.py", *arguments, ranks=ranks, cwd=cwd, WRONG=wrong, BITS=str(bits)).succeed()
        [figures] = [line.partition(" ")[2] for line in ran.out() if line.startswith("figures ")]
        [path] = (cwd / "snapshots" / program).glob("step-*.pt")
        return Learnt(json.loads(figures), torch.load(path, weights_only=True)["model"])

    return one_epoch


@pytest.fixture(scope="module")
def alone() -> dict[tuple[str, int], Learnt]:
    """What one process has learnt, by program and bits."""
    return {}


@pytest.fixture
def far(learn, alone) -> Callable[..., tuple[float, float]]:
    """How far from what one process learns is what several do."""

    def compare(program: str, ranks: int, bits: int, wrong: str = "") -> tuple[float, float]:
        if (program, bits) not in alone:
            alone[program, bits] = learn(program, 1, bits)
        return learn(program, ranks, bits, wrong).far(alone[program, bits])

    return compare


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("program", PROGRAMS)
def test_in_64_bits_together_as_alone(far, program: str, ranks: int) -> None:
    loss, weights = far(program, ranks, 64)
    assert loss < SAME
    assert weights < SAME


@pytest.mark.parametrize("program", PROGRAMS)
def test_as_they_are_together_as_alone(far, program: str) -> None:
    loss, weights = far(program, 2, 32)
    assert loss < LOSS
    assert weights < ROUNDED[program]


@pytest.mark.parametrize(
    ("program", "mistake"),
    [
        *((program, "gradients kept") for program in PROGRAMS),
        ("movielens", "an order of its own"),
        ("movielens", "randomness of its own"),
        ("movielens", "sum of means"),  # which AdamW nearly forgives: it divides by a gradient's size
        ("movielens", "mean of means"),  # in the last step, for which one rank has four ratings and the other three
    ],
)
def test_a_mistake_shows(far, program: str, mistake: str) -> None:
    _, weights = far(program, 2, 64, mistake)
    assert weights > 1e6 * SAME


def test_machines_with_gpus_and_without_do_not_wait_for_each_other(world) -> None:
    assert world("small.py", "toy.py", "1", ranks=2, UNLIKE="1").refusal() == (
        "error: some machines have a GPU for each of their ranks and others have not; --device cpu uses none anywhere "
        "(rank 1)"
    )


def test_a_gpu_that_is_asked_for_and_not_there_is_one_sentence(world) -> None:
    refused = world("toy.py", "1", "--device", "cuda", ranks=2).refusal()
    assert refused == "error: --device cuda needs a GPU for each of the 2 ranks here, and torch sees 0"
