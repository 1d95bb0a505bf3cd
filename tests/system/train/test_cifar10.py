"""train/cifar10.py on a small set in the published format: it learns, resumes exactly, refuses what is damaged."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from late import torch
from learnt import last_snapshot, module_of
from made import cifar10 as made

if TYPE_CHECKING:
    from torch import Tensor

SMALL = ("--width", "8", "--batch_size", "20")
"""200 images to learn from, and a model for which that is enough: ten steps of 20 are an epoch of one process."""
EPOCH = re.compile(r"epoch (\d+): loss (\d\.\d{4}), train accuracy (\d\.\d{4})(, snapshot in .*)?")
ACCURACY = re.compile(r"test accuracy (\d\.\d{4}) \((\d+) of 40\)")
SECONDS = re.compile(r"(\d+) epochs? took \d+\.\d seconds on (.*)")
HELD = math.log(math.e + 9) - 1


@pytest.fixture(scope="module")
def program() -> ModuleType:
    return module_of("cifar10")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.make(tmp_path_factory.mktemp("cifar10")).parent


# ---- training -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ranks", [pytest.param(1, marks=pytest.mark.proof), 2, pytest.param(4, marks=pytest.mark.proof)]
)  # digits and toy learn in worlds of every size
def test_learns(world, data: Path, tmp_path: Path, program: ModuleType, ranks: int) -> None:
    """Below what a softmax in front of cross_entropy would hold the loss at, in any world."""
    batch = str(40 // ranks)
    run = world("cifar10.py", "8", "8", "--data", str(data), "--width", "8", "--batch_size", batch, ranks=ranks)
    out = run.succeed().out()
    assert out[0] == "40 images per step: learning rate 0.03125 at its peak, 0.1 for each 128"
    epochs = [EPOCH.fullmatch(line).groups() for line in out[1:-2]]
    assert [epoch[0] for epoch in epochs] == [str(number) for number in range(1, 9)]
    assert float(epochs[-1][1]) < HELD / 2
    accuracy, correct = ACCURACY.fullmatch(out[-2]).groups()
    assert float(accuracy) > 0.5
    assert SECONDS.fullmatch(out[-1]).groups() == ("8", f"{ranks} x " * (ranks > 1) + "1 thread of the processor")
    kept = last_snapshot(tmp_path, "cifar10")
    assert int(correct) == count_by_one_process(program, kept["model"], data)
    assert kept["optimizer"]["param_groups"][0]["lr"] == 0


def count_by_one_process(program: ModuleType, weights: dict[str, Tensor], data: Path) -> int:
    model = program.build_model(8)
    model.load_state_dict(weights)
    images, labels = program.Looks(torch.device("cpu")).plain(*program.read_data(data)[1].tensors)
    return int((model.eval()(images).argmax(1) == labels).sum())


@pytest.mark.parametrize(("ranks", "killed"), [(2, "1 8"), pytest.param(4, "3 5", marks=pytest.mark.proof)])
def test_killed_in_mid_epoch_a_run_ends_as_if_it_had_not_been(
    world, data: Path, tmp_path: Path, ranks: int, killed: str
) -> None:
    """Weights, BatchNorm's statistics, momentum, learning rate and the random numbers of crops and flips."""
    arguments = ("cifar10.py", "2", "1", "--data", str(data), *SMALL, "--save_steps", "2")
    for folder in ("whole", "killed"):
        (tmp_path / folder).mkdir()
    world(*arguments, ranks=ranks, cwd=tmp_path / "whole").succeed()
    harm = {"KILL": killed, "SMALL": str(data), "SOURCE": "nowhere"}
    world("small.py", *arguments, ranks=ranks, cwd=tmp_path / "killed", **harm).die()
    out = world(*arguments, ranks=ranks, cwd=tmp_path / "killed").succeed().out()
    assert re.match(r"resumed from .*, written in epoch 2, after ", out[1])
    same(last_snapshot(tmp_path / "killed", "cifar10"), last_snapshot(tmp_path / "whole", "cifar10"))


def same(one: Any, other: Any, where: str = "snapshot") -> None:
    """To the last bit."""
    assert type(one) is type(other), where
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            same(one[key], other[key], f"{where}[{key!r}]")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), where
        for number, pair in enumerate(zip(one, other, strict=True)):
            same(*pair, f"{where}[{number}]")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    else:
        assert one == other, where


def test_a_snapshot_of_another_width_is_refused(world, data: Path) -> None:
    world("cifar10.py", "1", "--data", str(data), "--width", "8").succeed()
    refused = world("cifar10.py", "2", "--data", str(data), "--width", "16", ranks=2).refusal()
    assert refused == (
        "error: snapshots/cifar10/step-00000002.pt is of another model (0.weight is (8, 3, 3, 3) there and "
        "(16, 3, 3, 3) here); move snapshots/cifar10 away to start from the beginning"
    )


def test_a_model_that_some_processors_compute_wrong_is_refused(program: ModuleType) -> None:
    assert program.wide_enough("8") == 8
    for narrow in ("7", "0", "-8"):
        with pytest.raises(argparse.ArgumentTypeError):
            program.wide_enough(narrow)


def test_twice_the_processes_go_twice_as_far_per_step(world, data: Path) -> None:
    both = world("cifar10.py", "1", "--data", str(data), *SMALL, ranks=2).succeed().out()
    assert both[0] == "40 images per step: learning rate 0.03125 at its peak, 0.1 for each 128"


def test_the_learning_rate_rises_and_falls_in_straight_lines(program: ModuleType) -> None:
    shares = [program.share_of_peak((step + 1) / 101) for step in range(100)]
    top = shares.index(max(shares))
    assert shares[0] == pytest.approx(1 / 101 / program.WARM_UP)
    assert shares[top] == pytest.approx(1, abs=0.02)
    assert 28 <= top <= 31
    assert shares[-1] == pytest.approx(1 / 101 / (1 - program.WARM_UP))
    assert shares[: top + 1] == sorted(shares[: top + 1])
    assert shares[top:] == sorted(shares[top:], reverse=True)


# ---- the model ------------------------------------------------------------------------------------------------------


def test_it_is_the_published_model(program: ModuleType) -> None:
    """As many weights as https://github.com/kuangliu/pytorch-cifar has in its ResNet18."""
    model = program.build_model()
    assert sum(weights.numel() for weights in model.parameters()) == 11_173_962
    assert [tuple(model[:number](torch.zeros(1, 3, 32, 32)).shape[1:]) for number in (3, 5, 7, 9, 11)] == [
        *[(64, 32, 32)] * 2,
        *[(128, 16, 16), (256, 8, 8), (512, 4, 4)],
    ]


def test_the_loss_of_what_is_beyond_doubt_is_nothing_and_not_what_a_softmax_leaves(program: ModuleType) -> None:
    logits = torch.eye(10) * 100
    labels = torch.arange(10)
    loss = program.metrics(lambda images: images, logits, labels)["loss"]
    torch.testing.assert_close(loss, torch.zeros(10))
    with_softmax = program.metrics(lambda images: images.softmax(1), logits, labels)["loss"]
    torch.testing.assert_close(with_softmax, torch.full((10,), HELD))
    assert round(HELD, 3) == 1.461


# ---- crops and flips ------------------------------------------------------------------------------------------------


def crop_slowly(image: np.ndarray, top: int, left: int, mirrored: bool) -> np.ndarray:
    framed = np.zeros((3, 40, 40), image.dtype)
    framed[:, 4:36, 4:36] = image
    cut = framed[:, top : top + 32, left : left + 32]
    return cut[:, :, ::-1] if mirrored else cut


def test_a_crop_is_one_of_the_image_in_its_frame(program: ModuleType) -> None:
    places = [(top, left, mirrored) for top in range(9) for left in range(9) for mirrored in (False, True)]
    images = torch.randint(1, 256, (len(places), 3, 32, 32), dtype=torch.uint8)
    top, left, mirrored = (torch.tensor(each) for each in zip(*places, strict=True))
    cropped = program.crop(images, top, left, mirrored)
    assert cropped.dtype == torch.uint8
    for image, place, mine in zip(images, places, cropped, strict=True):
        assert np.array_equal(mine, crop_slowly(image.numpy(), *place))


def test_each_image_is_cropped_and_flipped_by_itself_anywhere(program: ModuleType) -> None:
    """What comes out is found among all that may: each place and each side about equally often."""
    looks = program.Looks(torch.device("cpu"))
    image = torch.arange(3 * 32 * 32).view(1, 3, 32, 32).remainder(251).to(torch.uint8) + 1
    places = [(top, left, mirrored) for top in range(9) for left in range(9) for mirrored in (False, True)]
    possible = torch.stack([torch.from_numpy(crop_slowly(image[0].numpy(), *place).copy()) for place in places])
    known = {tuple(each.flatten()[::7].tolist()): number for number, each in enumerate(looks.plain(possible, None)[0])}
    assert len(known) == len(places)
    torch.manual_seed(1)
    images, labels = looks.augmented(image.expand(4000, 3, 32, 32), torch.arange(4000))
    assert torch.equal(labels, torch.arange(4000))
    seen = np.bincount([known[tuple(each.flatten()[::7].tolist())] for each in images], minlength=len(places))
    assert seen.min() >= 5  # of 25 on average
    assert seen.max() <= 60


def test_the_same_random_numbers_make_the_same_crops(program: ModuleType) -> None:
    looks = program.Looks(torch.device("cpu"))
    images, labels = torch.randint(256, (8, 3, 32, 32), dtype=torch.uint8), torch.arange(8)
    torch.manual_seed(5)
    kept = torch.get_rng_state()
    first, second = looks.augmented(images, labels)[0], looks.augmented(images, labels)[0]
    assert not torch.equal(first, second)
    torch.set_rng_state(kept)
    assert torch.equal(looks.augmented(images, labels)[0], first)


def test_pixels_are_centred(program: ModuleType) -> None:
    images = torch.tensor([125, 123, 114], dtype=torch.uint8).view(1, 3, 1, 1).expand(2, 3, 32, 32)
    plain = program.Looks(torch.device("cpu")).plain(images, torch.zeros(2))[0]
    assert plain.dtype == torch.float32
    assert plain.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(plain, torch.zeros_like(plain), atol=0.01, rtol=0)


# ---- the data -------------------------------------------------------------------------------------------------------


def test_images_are_read_as_they_are_published(program: ModuleType, data: Path) -> None:
    train, test = (set_.tensors for set_ in program.read_data(data))
    assert [tuple(tensor.shape) for tensor in (*train, *test)] == [(200, 3, 32, 32), (200,), (40, 3, 32, 32), (40,)]
    second = made.contents()["data_batch_2.bin"][5 * 3073 : 6 * 3073]
    assert int(train[1][45]) == second[0]
    for colour, row, column in ((0, 0, 0), (0, 0, 31), (0, 31, 0), (1, 2, 3), (2, 31, 31)):
        assert int(train[0][45, colour, row, column]) == second[1 + 1024 * colour + 32 * row + column]


def test_an_unpacked_folder_is_the_same(program: ModuleType, data: Path, tmp_path: Path) -> None:
    made.unpack(tmp_path, made.contents())
    for packed, unpacked in zip(program.read_data(data), program.read_data(tmp_path), strict=True):
        for one, other in zip(packed.tensors, unpacked.tensors, strict=True):
            assert torch.equal(one, other)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20_000])


def one_bit_changed(path: Path) -> None:
    """Near the end, where no image is any more, so that only the checksum tells."""
    content = bytearray(path.read_bytes())
    content[-6] ^= 1
    path.write_bytes(content)


def not_an_archive(path: Path) -> None:
    path.write_bytes(b"<html>404</html>")


def repacked(change: Callable[[dict[str, bytes]], object]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        files = made.contents()
        change(files)
        made.pack(path, files)

    return damage


def label_ten(files: dict[str, bytes]) -> None:
    files["data_batch_4.bin"] = files["data_batch_4.bin"][: 3073 * 9] + b"\x0a" + files["data_batch_4.bin"][27658:]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (truncated, "{path} is damaged: compressed file ended before the end-of-stream marker was reached"),
        (one_bit_changed, "{path} is damaged: crc check failed"),
        (not_an_archive, "{path} is damaged: not a gzipped file"),
        (repacked(lambda files: files.pop("data_batch_3.bin")), "{path} has no data_batch_3.bin"),
        (repacked(label_ten), "data_batch_4.bin in {path} has a label 10; labels are 0 to 9"),
        (
            repacked(lambda files: files.update({"test_batch.bin": files["test_batch.bin"][:-1]})),
            "test_batch.bin in {path} has 122919 bytes, which is no number of images of 3073 bytes each",
        ),
        (
            repacked(lambda files: files.update({"data_batch_5.bin": files["data_batch_5.bin"][:3073]})),
            "data_batch_5.bin in {path} is cut: it has 3073 bytes, and data_batch_1.bin has 122920",
        ),
    ],
)
def test_a_damaged_archive_is_one_sentence(world, tmp_path: Path, damage, said: str) -> None:
    path = made.make(tmp_path)
    damage(path)
    refused = world("cifar10.py", "1", "--data", str(tmp_path), ranks=2).refusal()
    assert refused.startswith("error: " + said.format(path=path))


def test_a_file_missing_in_an_unpacked_folder_is_one_sentence(world, tmp_path: Path) -> None:
    folder = made.unpack(tmp_path, made.contents())
    (folder / "test_batch.bin").unlink()
    refused = world("cifar10.py", "1", "--data", str(tmp_path), ranks=2).refusal()
    assert refused.startswith(f"error: {folder} has no test_batch.bin")


def test_what_is_published_is_asked_for(program: ModuleType) -> None:
    """The size is that of https://www.cs.toronto.edu/~kriz/cifar.html: 162 MB of 2^20 bytes."""
    assert program.ARCHIVE.size >> 20 == 162
    assert re.fullmatch(r"[0-9a-f]{64}", program.ARCHIVE.sha256)
    assert program.ARCHIVE.unpacked == made.FOLDER
