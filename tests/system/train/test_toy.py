"""train/toy.py: the tutorials' lines, in the tutorials' worlds."""

from __future__ import annotations

from pathlib import Path

import pytest


def lines(ranks: int, epochs: range, steps: int, batch: int = 32) -> list[str]:
    return sorted(
        f"[GPU{rank}] Epoch {epoch} | Batchsize: {batch} | Steps: {steps}" for rank in range(ranks) for epoch in epochs
    )


def epoch_lines(out: list[str]) -> list[str]:
    return sorted(line for line in out if "Epoch" in line)


@pytest.mark.parametrize(("ranks", "steps"), [(1, 64), (2, 32), (4, 16)])
def test_every_rank_says_every_epoch(world, tmp_path: Path, ranks: int, steps: int) -> None:
    ran = world("toy.py", "3", "2", ranks=ranks).succeed()
    assert epoch_lines([line for rank in range(ranks) for line in ran.out(rank)]) == lines(ranks, range(3), steps)
    assert [line for line in ran.out() if "snapshot" in line] == [
        f"[GPU0] snapshot in snapshots/toy/step-{n * steps:08}.pt, next epoch {n}" for n in (2, 3)
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["snapshots"]


@pytest.mark.proof  # the real launchers are played with digits, which has all that toy has
def test_by_torchrun(launch) -> None:
    code, out, err = launch("toy.py", "2", "1", ranks=2)
    assert code == 0, err
    assert epoch_lines(out) == lines(2, range(2), 32)


@pytest.mark.proof  # four ranks say what each of sixteen says
def test_the_tutorials_sixteen_gpus(world) -> None:
    ran = world("toy.py", "50", "10", ranks=16).succeed()
    assert "[GPU11] Epoch 47 | Batchsize: 32 | Steps: 4" in ran.out(11)
    assert epoch_lines([line for rank in range(16) for line in ran.out(rank)]) == lines(16, range(50), 4)


def test_goes_on_with_the_epoch_after_the_snapshot(world) -> None:
    world("toy.py", "3", "2").succeed()
    ran = world("toy.py", "5", "2", "--batch_size", "64").succeed()
    assert ran.out()[0] == "resumed from snapshots/toy/step-00000192.pt, written after epoch 3"
    assert epoch_lines(ran.out()) == lines(1, range(3, 5), 32, batch=64)
