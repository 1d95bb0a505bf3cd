"""A run's files that one node handed to another: a resumed run is given them, and not what came home before."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuops.core.errors import UsageError
from gpuops.sync.merged_outputs import OutFolder, inherit
from gpuops.sync.merged_outputs_record import Arrival
from gpuops.sync.restore_snapshots import check_resumable, select_places
from gpuops.sync.run_folder import RunHome

LAST, OLD, NEW = "snapshots/toy/last", "snapshots/toy/step-100.pt", "snapshots/toy/step-120.pt"


class Home:
    def __init__(self, folder: Path) -> None:
        self.home = RunHome(folder / "runs/r-1")
        self.home.create()

    def comes(self, node: int, path: str, text: str, mtime_ns: int) -> None:
        out = OutFolder(self.home)
        with out.staging() as staging:
            sha256 = staging.create("file", io.BytesIO(text.encode()), len(text))
            assert out.publish([Arrival(node, path, (len(text), mtime_ns), sha256, "file")], staging) == []

    def put_back(self, node: int) -> dict[str, str]:
        """What a node is given of a run that is resumed."""
        places = select_places(OutFolder(self.home).memory(), node)
        return {path: (self.home.out / place).read_text() for path, place in places.items()}

    def files(self) -> set[str]:
        out = self.home.out
        return {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()} - {".gpuops.jsonl"}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Node 0 has come home as far as step 100; what it did then it handed to node 1."""
    home = Home(tmp_path)
    home.comes(0, OLD, "weights of 100", 100)
    home.comes(0, LAST, "step-100", 101)
    home.comes(1, NEW, "weights of 120", 120)
    home.comes(1, LAST, "step-120", 121)
    return home


def test_what_was_handed_over_is_what_a_resumed_run_gets(home: Home) -> None:
    assert home.put_back(0)[LAST] == "step-100", "so it would be without"
    inherit(home.home, {1: {NEW: 0, LAST: 0, "never/came.pt": 0}})
    every = {OLD: "weights of 100", NEW: "weights of 120", LAST: "step-120"}
    assert home.put_back(0) == home.put_back(1) == home.put_back(2) == every
    assert home.files() == {OLD, NEW, LAST}, "one file of each"
    inherit(home.home, {1: {NEW: 0, LAST: 0}})
    assert home.files() == {OLD, NEW, LAST}


def test_what_came_from_the_node_itself_after_that_stays(home: Home) -> None:
    home.comes(0, LAST, "step-130", 131)
    inherit(home.home, {1: {LAST: 0}})
    assert home.put_back(0)[LAST] == "step-130"
    assert home.put_back(1)[LAST] == "step-120"


def test_what_each_node_made_for_itself_stays_its_own(home: Home) -> None:
    inherit(home.home, {1: {}})
    assert home.put_back(0)[LAST] == "step-100"


def test_results_that_are_gone_are_not_called_none(tmp_path: Path) -> None:
    row: Any = SimpleNamespace(name="r-1", home=tmp_path / "runs/r-1", tree="project", started=1.0)
    with pytest.raises(UsageError, match=r"the results of r-1 are gone: there is no .*/runs/r-1"):
        check_resumable(row, "project")
