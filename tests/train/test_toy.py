"""train/toy.py: the tutorials' lines, in the tutorials' worlds."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch


def lines(ranks: int, epochs: range, steps: int, batch: int = 32) -> list[str]:
    return sorted(
        f"[GPU{rank}] Epoch {epoch} | Batchsize: {batch} | Steps: {steps}" for rank in range(ranks) for epoch in epochs
    )


def epoch_lines(out: list[str]) -> list[str]:
    return sorted(line for line in out if "Epoch" in line)


@pytest.mark.parametrize(("ranks", "world", "steps"), [(0, 1, 64), (2, 2, 32), (4, 4, 16)])
def test_every_rank_says_every_epoch(launch, tmp_path: Path, ranks: int, world: int, steps: int) -> None:
    code, out, err = launch("toy.py", "3", "2", ranks=ranks)
    assert code == 0, err
    assert epoch_lines(out) == lines(world, range(3), steps)
    assert [line for line in out if "snapshot" in line] == [
        f"[GPU0] snapshot in toy.pt, next epoch {n}" for n in (2, 3)
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["toy.pt"]


def test_the_tutorials_sixteen_gpus(launch) -> None:
    code, out, err = launch("toy.py", "50", "10", ranks=16)
    assert code == 0, err
    assert "[GPU11] Epoch 47 | Batchsize: 32 | Steps: 4" in out
    assert epoch_lines(out) == lines(16, range(50), 4)


def test_goes_on_with_the_epoch_after_the_snapshot(launch) -> None:
    assert launch("toy.py", "3", "2")[0] == 0
    code, out, err = launch("toy.py", "5", "2", "--batch_size", "64")
    assert code == 0, err
    assert out[0] == "[GPU0] resumed from toy.pt at epoch 3"
    assert epoch_lines(out) == lines(1, range(3, 5), 32, batch=64)


@pytest.mark.parametrize("asked_by", [signal.SIGUSR1, signal.SIGTERM])
def test_asked_to_stop_all_ranks_stop_after_the_same_epoch(start, tmp_path: Path, asked_by: signal.Signals) -> None:
    launched = start("toy.py", "100000", "100000", ranks=2)
    launched.wait_for_output()
    launched.tell_rank(1, asked_by)
    code, out, err = launched.finish()
    assert code == 0, err
    done = torch.load(tmp_path / "toy.pt", weights_only=True)["epochs_done"]
    assert epoch_lines(out) == lines(2, range(done), 32)


def test_another_programs_snapshot_is_refused(launch, tmp_path: Path) -> None:
    torch.save({"program": "digits 1"}, tmp_path / "toy.pt")
    code, _, err = launch("toy.py")
    assert code == 1
    assert err.strip() == "error: toy.pt is not a snapshot of this program; move it away to start from epoch 0"
