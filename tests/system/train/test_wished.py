"""A snapshot that somebody wishes for, by a file: all ranks keep the same step, and go on as if nothing had been."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SAVED = re.compile(r"saved snapshots/wobbly/step-(\d+)\.pt, as it was asked for")
SELDOM = ("3", "100")
"""Three epochs of 203 samples, and no snapshot that is due before the last one's end."""


def kept(folder: Path) -> list[int]:
    return sorted(int(path.stem[5:]) for path in (folder / "snapshots/wobbly").glob("step-*.pt"))


@pytest.fixture
def run(world, tmp_path: Path) -> Callable[..., Any]:
    """`run("name", …, ranks=2)`: each rank in a folder, and with a file, of its own, as on nodes."""

    def start(name: str, *arguments: str, ranks: int = 2) -> Any:
        cwds = [tmp_path / f"{name}{rank}" for rank in range(ranks)]
        for cwd in cwds:
            cwd.mkdir()
        env = {"GPUOPS_SNAPSHOT_FILE": "wish", "GPUOPS_PROGRESS": "progress"}
        return world("wobbly.py", *SELDOM, *arguments, ranks=ranks, cwds=cwds, **env).succeed()

    return start


def test_one_rank_sees_it_and_all_keep_that_step(run, tmp_path: Path) -> None:
    """Of two nodes the second is told in the fifth step; the first in the eighth, which is the same wish."""
    plain = run("plain")
    asked = run("asked", "--wish", "1", "5", "--wish", "0", "8")
    assert SAVED.findall(asked.err()) == ["00000005"]
    assert kept(tmp_path / "asked0") == [5, 39]
    assert kept(tmp_path / "plain0") == [39]
    assert asked.out() == plain.out(), "the same losses, the same weights"
    assert json.loads((tmp_path / "asked0/progress").read_text())["saved"] == 39


@pytest.mark.parametrize(("ranks", "steps"), [(1, 26), (2, 13)])
def test_at_the_end_of_an_epoch_its_snapshot_serves(run, tmp_path: Path, ranks: int, steps: int) -> None:
    run("asked", "--wish", str(ranks - 1), str(steps), ranks=ranks)
    assert kept(tmp_path / "asked0") == [steps, 3 * steps]


def test_a_process_that_is_alone_keeps_the_step_in_which_it_sees_it(run) -> None:
    asked = run("asked", "--wish", "0", "5", "--wish", "0", "9", ranks=1)
    assert SAVED.findall(asked.err()) == ["00000005"]
    assert asked.out() == run("plain", ranks=1).out()


def test_a_snapshot_that_was_wished_for_is_gone_on_from(run, world, tmp_path: Path) -> None:
    plain = run("plain")
    cwds = [tmp_path / "killed0", tmp_path / "killed1"]
    for cwd in cwds:
        cwd.mkdir()
    killed = world("wobbly.py", *SELDOM, "--wish", "0", "17", "--kill", "1", "25", ranks=2, cwds=cwds,
                   GPUOPS_SNAPSHOT_FILE="wish")  # fmt: skip
    killed.die()
    assert kept(cwds[0]) == [17]
    resumed = world("wobbly.py", *SELDOM, ranks=2, cwds=cwds).succeed()
    assert resumed.out()[0].startswith("resumed from snapshots/wobbly/step-00000017.pt")
    assert resumed.out()[-1] == plain.out()[-1]


def test_a_file_that_is_there_before_the_ranks_are_is_a_wish_too(world, tmp_path: Path) -> None:
    """It was asked for while torch was imported."""
    wish = tmp_path / "wish"
    wish.touch()
    ranks = world("wobbly.py", *SELDOM, ranks=2, GPUOPS_SNAPSHOT_FILE=str(wish)).succeed()
    assert SAVED.findall(ranks.err()) == ["00000001"]
