"""That many processes learn what one would: the same gradients, the same figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from late import torch

PLAIN = ("1", "1", "--plain")  # one epoch of 203 samples: neither 16 nor 2 nor 4 divides them


def after_one_epoch(world, cwd: Path, batch: int, ranks: int, *more: str) -> tuple[float, dict[str, Any]]:
    """Mean loss of the epoch, and the weights."""
    cwd.mkdir()
    out = world("wobbly.py", *PLAIN, "--batch_size", str(batch), *more, ranks=ranks, cwd=cwd).succeed().out()
    [path] = (cwd / "snapshots" / "wobbly").glob("step-*.pt")
    return float(out[0].split()[3].rstrip(",")), torch.load(path, weights_only=True)


@pytest.mark.parametrize(("batch", "ranks"), [(8, 2), (4, 4)])
def test_learnt_together_in_small_batches_as_alone_in_large_ones(world, tmp_path: Path, batch, ranks) -> None:
    loss, state = after_one_epoch(world, tmp_path / "alone", 16, 1)
    others, theirs = after_one_epoch(world, tmp_path / "together", batch, ranks)
    assert theirs["step"] == state["step"] == 13
    assert others == pytest.approx(loss, rel=1e-6)
    for name, weights in state["model"].items():
        torch.testing.assert_close(theirs["model"][name], weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_figures_are_of_every_sample_once(world, ranks: int) -> None:
    """Ranks that share 203 samples need 204 places; what fills the last one does not count. Its `target` is the
    sample's own number, so that the mean tells any that is missing or double."""
    out = world("wobbly.py", "2", "2", "--plain", "--batch_size", "5", ranks=ranks).succeed().out()
    for line in out[:2]:
        assert float(line.split()[-1]) == pytest.approx(sum(range(203)) / 203 / 203, abs=1e-7)


@pytest.mark.parametrize(("amp", "near"), [("bf16", 0.05), ("fp16", 0.2)])
def test_sixteen_bits_learn_the_same_roughly(world, tmp_path: Path, amp: str, near: float) -> None:
    """The scaler of fp16 leaves out the first steps until it has found its scale."""
    loss, _ = after_one_epoch(world, tmp_path / "full", 16, 1)
    half, theirs = after_one_epoch(world, tmp_path / "half", 8, 2, "--amp", amp)
    assert half != loss
    assert half == pytest.approx(loss, rel=near)
    assert all(weights.dtype == torch.float32 for weights in theirs["model"].values())
    assert bool(theirs["scaler"]) == (amp == "fp16")
