"""What the benchmarks read from what programs say."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import examples, gpu
from benchmarks.measure import Failed, Skip
from benchmarks.ranks import Ran

OURS = """
10.0 60000 images to learn and 10000 to test, read in 0.1 s from data
30.0 epoch 1: loss 0.2, train accuracy 0.9, 20.0 s on 1 thread of the processor
45.0 epoch 2: loss 0.1, train accuracy 0.9, 15.0 s on 1 thread of the processor
46.0 test accuracy 0.9876 (9876 of 10000), 2 epochs in 35.0 s on 1 rank (1 node x 1), gloo
"""
THEIRS = """
1.0 Train Epoch: 1 [0/60000 (0%)]\tLoss: 2.3
31.0 Train Epoch: 1 [59520/60000 (99%)]\tLoss: 0.1
32.0 Test set: Average loss: 0.05, Accuracy: 9800/10000 (98%)
33.0 Train Epoch: 2 [0/60000 (0%)]\tLoss: 0.1
53.0 Train Epoch: 2 [59520/60000 (99%)]\tLoss: 0.1
54.0 Test set: Average loss: 0.05, Accuracy: 9850/10000 (98%)
"""


def test_only_the_last_epoch_counts_and_its_accuracy() -> None:
    ours, theirs = examples.stamped(OURS.strip()), examples.stamped(THEIRS.strip())
    assert examples.last_epoch_rate(ours) == 60_000 / 15
    assert examples.example_rate(theirs) == 59_520 / 20
    assert examples._accuracy(ours, Path()) == 0.9876
    assert examples._accuracy(theirs, Path()) == 0.985


def test_the_first_epoch_and_what_is_said_beside_do_not_count() -> None:
    said = "0 [GPU0] Epoch 0 | x\n7 Epoch 0 | saved\n8 [GPU0] Epoch 1 | x\n9 [GPU0] Epoch 2 | x\n10 [GPU0] Epoch 3 | x"
    assert examples.epochs_rate(examples.stamped(said)) == 2 * 2048 / 2


def test_without_a_checkout_it_says_how_to_get_one(tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        with pytest.raises(Skip, match="git clone --depth 1"):
            examples._published(folder)


def test_the_share_of_a_gpu_is_read() -> None:
    said = (
        "samples/s        123,456, 123,456 per rank\nstep             1.04 ms\n"
        "arithmetic       98,765.4 GFLOP/s per rank, 12.3% of the 802,000 that\n"
    )
    assert gpu.told(Ran(said, [])) == ["123,456", "1.04", "98,765.4", "12.3%"]
    with pytest.raises(Failed):
        gpu.told(Ran("samples/s        1, 1 per rank\n", []))
