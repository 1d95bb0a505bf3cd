"""What a rank is said to hold is what lies there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

FLOAT = 4
WEIGHTS = (10 * 20 + 20 * 1) * FLOAT


@pytest.mark.parametrize("ranks", [1, 2])
def test_every_rank_holds_the_whole_model_and_the_whole_data(world, ranks: int) -> None:
    held = json.loads("".join(world("holding.py", ranks=ranks).succeed().out()))
    assert held == {
        "parameters": WEIGHTS + 7 * FLOAT,
        "gradients": WEIGHTS,
        "buckets": WEIGHTS if ranks > 1 else 0,
        "optimizer": WEIGHTS,
        "activations": 4 * (10 + 20) * FLOAT,  # what goes into each of the two layers
        "data": 64 * 10 * FLOAT,
    }


def test_only_activations_grow_with_the_batch(world) -> None:
    small, large = (
        json.loads("".join(world("holding.py", "--batch_size", size).succeed().out())) for size in ("4", "12")
    )
    assert large == {**small, "activations": 3 * small["activations"]}


@pytest.mark.parametrize(
    ("count", "text"),
    [(84, "84 B"), (999, "999 B"), (1000, "1.0 kB"), (153_128, "153.1 kB"), (44_695_848, "44.7 MB"), (2e9, "2.0 GB")],
)
def test_sizes_are_told_in_the_unit_that_suits(count: int, text: str) -> None:
    sys.path.append(str(Path(__file__).parents[3] / "benchmarks/programs"))
    from memory import size

    assert size(count) == text
