"""What is written to go on from, what is taken, and what is refused: a sentence on rank 0, exit code 1 on all."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from late import late_import, torch

snapshots = late_import("ddp.snapshots")


@pytest.fixture(scope="module")
def written() -> dict[str, Path]:
    return {}


@pytest.fixture
def folder(world, written, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """snapshots/wobbly after three epochs of 13 steps, each of them kept."""
    if "whole" not in written:
        written["whole"] = tmp_path_factory.mktemp("whole")
        world("wobbly.py", "3", "1", ranks=2, cwd=written["whole"]).succeed()
    shutil.copytree(written["whole"] / "snapshots", tmp_path / "snapshots")
    return tmp_path / "snapshots" / "wobbly"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def go_on(world, *arguments: str):
    return world("wobbly.py", *(arguments or ("4", "1")), ranks=2)


AWAY = "move snapshots/wobbly away to start from the beginning"


def test_the_last_few_are_kept_and_named(folder: Path, world) -> None:
    three = ["step-00000013.pt", "step-00000026.pt", "step-00000039.pt"]
    assert names(folder) == ["last", *three]
    assert (folder / "last").read_text() == "step-00000039.pt\n"
    go_on(world, "5", "1").succeed()
    assert names(folder) == ["last", "step-00000039.pt", "step-00000052.pt", "step-00000065.pt"]


def test_an_old_one_that_cannot_be_removed_ends_no_training(folder: Path, world) -> None:
    (folder / "step-00000001.pt").mkdir()
    go_on(world, "5", "1").succeed()
    assert names(folder) == ["last", "step-00000001.pt", *(f"step-{step:08}.pt" for step in (39, 52, 65))]


def test_a_snapshot_has_all_that_the_next_step_depends_on(folder: Path) -> None:
    state = torch.load(folder / "step-00000026.pt", weights_only=True)
    assert (state["epoch"], state["position"], state["step"], state["seed"]) == (2, 0, 26, 7)
    assert all(state[part] for part in ("model", "optimizer", "scheduler"))
    assert [set(rank["random"]) for rank in state["ranks"]] == [{"python", "numpy", "torch", "cuda"}] * 2
    assert not torch.equal(state["ranks"][0]["random"]["torch"], state["ranks"][1]["random"]["torch"])


def test_a_torn_one_is_passed_over_and_told(folder: Path, world) -> None:
    newest = folder / "step-00000039.pt"
    newest.write_bytes(newest.read_bytes()[:-100])
    ran = go_on(world, "3", "1").succeed()
    assert ran.err().splitlines()[0] == "snapshots/wobbly/step-00000039.pt is torn; going on from step-00000026.pt"
    assert ran.out()[0] == "resumed from snapshots/wobbly/step-00000026.pt, written after epoch 2"


def test_where_all_are_torn_none_is_taken_and_none_touched(folder: Path, world) -> None:
    for path in folder.glob("step-*.pt"):
        path.write_bytes(path.read_bytes()[:1000])
    before = {path: path.read_bytes() for path in folder.iterdir()}
    torn = "snapshots/wobbly/step-00000039.pt is torn, and there is no older one"
    assert go_on(world).refusal() == f"error: {torn}; {AWAY}"
    assert before == {path: path.read_bytes() for path in folder.iterdir()}


def test_a_single_wrong_byte_is_noticed(folder: Path, tmp_path: Path) -> None:
    """Anywhere: what is read is either what was written, or nothing."""
    whole = folder / "step-00000039.pt"
    content, chance = whole.read_bytes(), random.Random(5)
    honest = snapshots.read(whole)
    wrong, noticed = tmp_path / "wrong.pt", 0
    for place in [*(chance.randrange(len(content)) for _ in range(150)), len(content) - 1]:
        wrong.write_bytes(content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :])
        found = snapshots.read(wrong)
        noticed += found is None
        assert found is None or equal(found, honest), place
    assert noticed > 50


def equal(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and [*one] == [*other] and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(equal, one, other))
    return one == other


def test_to_go_back_an_older_name_is_written_into_last(folder: Path, world) -> None:
    (folder / "last").write_text("step-00000013.pt\n")
    ran = go_on(world, "2", "1").succeed()
    assert ran.out()[0] == "resumed from snapshots/wobbly/step-00000013.pt, written after epoch 1"
    assert (folder / "last").read_text() == "step-00000026.pt\n"
    assert "step-00000039.pt" in names(folder), "not ours to judge"


def test_a_pointer_to_nothing_does_no_harm(folder: Path, world) -> None:
    (folder / "last").write_text("step-00000099.pt\n")
    assert "step-00000039.pt" in go_on(world).succeed().out()[0]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (lambda: {"model": torch.zeros(3)}, "is not a snapshot of wobbly"),
        (lambda: {"program": "digits", "format": 1}, "is not a snapshot of wobbly"),
        (lambda: torch.zeros(3), "is not a snapshot of wobbly"),
        (lambda: {"program": "wobbly", "format": 99}, "has another format than this program reads"),
    ],
)
def test_a_strangers_file_is_refused(folder: Path, world, content: Callable[[], object], sentence: str) -> None:
    torch.save(content(), folder / "step-00000039.pt")
    assert go_on(world).refusal() == f"error: snapshots/wobbly/step-00000039.pt {sentence}; {AWAY}"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--width", "5"), f"is of another model (0.bias is (16,) there and (5,) here); {AWAY}"),
        (("--plain",), f"is of another model (1.bias is (16,) there and missing here); {AWAY}"),
        (("--adam",), f"is of another optimizer (SGD there and AdamW here); {AWAY}"),
        (("--seed", "8"), f"was made with --seed 7; use that, or {AWAY}"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_snapshot_of_something_else_is_refused(world, arguments, sentence: str) -> None:
    assert go_on(world, "4", "1", *arguments).refusal() == f"error: snapshots/wobbly/step-00000039.pt {sentence}"


def test_nothing_that_could_run_is_read(folder: Path, world) -> None:
    import pickle

    (folder / "step-00000039.pt").write_bytes(pickle.dumps(print))
    assert "is torn; going on from step-00000026.pt" in go_on(world).succeed().err()


def test_a_full_disk_is_told_and_what_was_there_stays(folder: Path, world) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert go_on(world, "4", "1", "--limit", "9000").refusal() == (
        "error: no snapshot could be written to snapshots/wobbly/step-00000052.pt: File too large; "
        "step-00000039.pt is still there"
    )
    assert before == {path: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path, world) -> None:
    (tmp_path / "snapshots").write_text("a file in its place")
    assert go_on(world, "1").refusal() == (
        "error: no snapshot could be written to snapshots/wobbly/step-00000013.pt: Not a directory; "
        "make room and start again"
    )


@pytest.mark.parametrize(("ranks", "share"), [(1, 203), (2, 102)])
def test_a_batch_that_is_more_than_there_is_is_refused(world, ranks: int, share: int) -> None:
    who = "2 ranks share" if ranks > 1 else "1 rank has"
    assert world("wobbly.py", "1", "--batch_size", "500", ranks=ranks).refusal() == (
        f"error: --batch_size 500 is more than there is: {who} 203 samples; use {share} or less"
    )
