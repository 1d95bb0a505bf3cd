"""train/mnist.py on a small set in the published format: it learns, resumes exactly, refuses what is damaged."""

from __future__ import annotations

import gzip
import re
import struct
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import pytest
from late import late_import, torch
from learnt import last_snapshot, module_of
from made import mnist as made

if TYPE_CHECKING:
    from torch import Tensor

downloads = late_import("ddp.downloads")

READ = re.compile(r"320 images to learn and 97 to test, read in \d+\.\d s from .*")
EPOCH = re.compile(
    r"epoch (\d+): loss (\d\.\d{4}), train accuracy (\d\.\d{4}), \d+\.\d s on ([^,]*)(, snapshot in .*)?"
)
LAST = re.compile(r"test accuracy (\d\.\d{4}) \((\d+) of 97\), (\d+) epochs? in \d+\.\d s on (.*)")


@pytest.fixture(scope="module")
def program() -> ModuleType:
    return module_of("mnist")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mnist")
    made.make(folder)
    return folder


# ---- training -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "on"),
    [
        pytest.param(1, "1 thread", marks=pytest.mark.proof),  # digits and toy learn in worlds of every size
        (2, "2 x 1 thread"),
        pytest.param(4, "4 x 1 thread", marks=pytest.mark.proof),
    ],
)
def test_learns(world, data: Path, tmp_path: Path, program: ModuleType, ranks: int, on: str) -> None:
    batch = str(32 // ranks)
    out = world("mnist.py", "2", "2", "--data", str(data), "--batch_size", batch, ranks=ranks).succeed().out()
    assert READ.fullmatch(out[0])
    epochs = [EPOCH.fullmatch(line).groups() for line in out[1:-1]]
    assert [(epoch[0], epoch[3]) for epoch in epochs] == [(each, f"{on} of the processor") for each in ("1", "2")]
    accuracy, correct, number, where = LAST.fullmatch(out[-1]).groups()
    assert float(accuracy) > 0.8
    assert (number, where) == ("2", f"{ranks} rank{'s' * (ranks > 1)} (1 node x {ranks}), gloo")
    kept = last_snapshot(tmp_path, "mnist")
    assert int(correct) == count_by_one_process(program, kept["model"], data)
    assert kept["optimizer"]["param_groups"][0]["lr"] == pytest.approx(0.7**2)


def count_by_one_process(program: ModuleType, weights: dict[str, Tensor], data: Path) -> int:
    model = program.build_model()
    model.load_state_dict(weights)
    images, labels = program.normalise(*program.load_data(data)[1].tensors)
    return int((model.eval()(images).argmax(1) == labels).sum())


def test_killed_in_mid_epoch_a_run_ends_as_if_it_had_not_been(world, data: Path, tmp_path: Path) -> None:
    """Which neurons are dropped comes from random numbers, too."""
    arguments = ("mnist.py", "2", "2", "--data", str(data), "--batch_size", "32", "--save_steps", "2")
    for folder in ("whole", "killed"):
        (tmp_path / folder).mkdir()
    world(*arguments, ranks=2, cwd=tmp_path / "whole").succeed()
    harm = {"KILL": "1 8", "SMALL": str(data), "SOURCE": "nowhere"}
    world("small.py", *arguments, ranks=2, cwd=tmp_path / "killed", **harm).die()
    out = world(*arguments, ranks=2, cwd=tmp_path / "killed").succeed().out()
    assert re.match(r"resumed from .*, written in epoch 2, after 64 of 320 samples", out[1])
    kept, whole = last_snapshot(tmp_path / "killed", "mnist"), last_snapshot(tmp_path / "whole", "mnist")
    assert kept["step"] == whole["step"] == 10
    assert digest(kept["model"]) == digest(whole["model"])


def digest(weights: dict[str, Tensor]) -> bytes:
    return b"".join(tensor.numpy().tobytes() for tensor in weights.values())


@pytest.mark.parametrize(
    ("ranks", "where"),
    [
        pytest.param(
            0, "1 rank (1 node x 1), gloo", marks=pytest.mark.proof
        ),  # test_digits.py starts plain python, too
        pytest.param(2, "2 ranks (1 node x 2), gloo", marks=pytest.mark.proof),
    ],
)
def test_by_real_launchers(launch, data: Path, ranks: int, where: str) -> None:
    """Plain python and torchrun."""
    code, out, err = launch("mnist.py", "1", "--data", str(data), "--device", "cpu", ranks=ranks)
    assert code == 0, err
    assert LAST.fullmatch(out[-1]).group(3, 4) == ("1", where)


# ---- data -----------------------------------------------------------------------------------------------------------


def test_reads_what_was_written_packed_or_not(program: ModuleType, data: Path, tmp_path: Path) -> None:
    contents = made.contents()
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    for folder in (data, tmp_path):
        for name, read in zip(("train", "t10k"), program.load_data(folder), strict=True):
            images, labels = read.tensors
            assert (images.dtype, images.shape[1:]) == (torch.uint8, (1, 28, 28))
            assert images.numpy().tobytes() == contents[f"{name}-images-idx3-ubyte"][16:]
            assert labels.tolist() == list(contents[f"{name}-labels-idx1-ubyte"][8:])


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def flip(content: bytes) -> bytes:
    return content[:5000] + bytes([content[5000] ^ 1]) + content[5001:]


def repack(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    return lambda packed: gzip.compress(change(gzip.decompress(packed)), 1)


@pytest.mark.parametrize(
    ("name", "damage", "says"),
    [
        (IMAGES, lambda packed: packed[:-9], "is damaged: "),
        (IMAGES, flip, "is damaged: "),
        (IMAGES, lambda _: b"<html>please log in</html>", "is damaged: "),
        (IMAGES, lambda _: b"", "is not an IDX file of bytes in 3 dimensions"),
        (IMAGES, repack(lambda content: content[:10]), "is not an IDX file of bytes in 3 dimensions"),
        (IMAGES, repack(lambda _: made.idx(np.zeros(320, np.uint8))), "is not an IDX file of bytes in 3 dimensions"),
        (IMAGES, repack(lambda content: b"\0\0\x0d" + content[3:]), "is not an IDX file of bytes in 3 dimensions"),
        (IMAGES, repack(lambda _: made.idx(np.zeros((9, 32, 32), np.uint8))), "holds items of (32, 32) and not of"),
        (IMAGES, repack(lambda content: content[:-1]), "has 250895 bytes, where its head promises 250896"),
        (IMAGES, repack(lambda content: content + b"?"), "has 250897 bytes, where its head promises 250896"),
        (LABELS, repack(lambda _: made.idx(np.zeros(319, np.uint8))), "has 319 labels for 320 images"),
        (LABELS, repack(lambda content: content[:-1] + b"\x0a"), "has a label 10, where digits are expected"),
    ],
)  # fmt: skip
def test_what_is_damaged_is_named(program: ModuleType, tmp_path: Path, name: str, damage, says: str) -> None:
    made.make(tmp_path)
    path = tmp_path / f"{name}.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(downloads.Unusable) as refused:
        program.load_data(tmp_path)
    assert str(refused.value).startswith(f"{path} {says}")
    assert "\n" not in str(refused.value)


def test_lengths_that_no_file_has(program: ModuleType, tmp_path: Path) -> None:
    """Their product is larger than any 64 bits."""
    made.make(tmp_path)
    (tmp_path / f"{IMAGES}.gz").write_bytes(gzip.compress(bytes([0, 0, 8, 3]) + struct.pack(">3I", 2**32 - 1, 28, 28)))
    with pytest.raises(downloads.Unusable, match="has 16 bytes, where its head promises 3367254359296"):
        program.load_data(tmp_path)
