"""What nodes that answer no more still tell: that it could not be written down here is no reason to give it up."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuops.agent import run_files
from gpuops.core.errors import ConnectionLost, LocalDisk, NodeRefused
from gpuops.runs.salvage import salvage, stream
from gpuops.runs.salvage import salvaged as followed

AWAY = ConnectionLost("node1 does not answer", "try again")


def salvaged(monkeypatch: pytest.MonkeyPatch, answers: list[Any], home: Path = Path()) -> Any:
    def programs(_row: Any, _machine: Any, index: int) -> Any:
        if isinstance(answers[index], Exception):
            raise answers[index]
        return SimpleNamespace(connection=SimpleNamespace(close=lambda: None))

    monkeypatch.setattr("gpuops.runs.salvage.nodes_of", lambda *_: [None] * len(answers))
    monkeypatch.setattr("gpuops.runs.salvage.programs_of", programs)
    run = SimpleNamespace(name="r-1", home=home, request={"nodes": len(answers)})
    return salvage(cast("Any", None), cast("Any", None), cast("Any", run))


def test_every_stream_of_a_run_is_one_here(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    for name in (*run_files._OF_THE_RUN, "ranks/0.out", "ranks/11.err"):
        (tmp_path / name).touch()
    known = {name: str(Path(path).relative_to(tmp_path)) for name, path in run_files.streams(str(tmp_path)).items()}
    assert {name: stream(path) for name, path in known.items()} == {name: name for name in known}
    assert len(known) == 6
    assert stream("result.json") == ""


def test_each_node_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuops.runs.salvage._salvage", lambda _programs, _run, index: {"node": index})
    refused = NodeRefused("it knows no such thing", "", "no-run")
    assert salvaged(monkeypatch, [refused, AWAY, None]) == ({2: {"node": 2}}, {1: AWAY})


def test_a_full_disk_here_gives_up_nothing_there(monkeypatch: pytest.MonkeyPatch) -> None:
    full = LocalDisk("this computer's disk is full", "free space")
    with pytest.raises(LocalDisk, match="disk is full"):
        salvaged(monkeypatch, [full, None])


def test_a_folder_that_cannot_be_written_to_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("gpuops.runs.salvage.left", lambda *_, **__: [])
    monkeypatch.setattr("gpuops.runs.salvage.secrets.token_hex", lambda _: "taken/by-a-file")
    home = tmp_path / "runs" / "r-1"
    home.mkdir(parents=True)
    (home / f".salvage-{os.getpid()}-taken").touch()
    with pytest.raises(LocalDisk, match="cannot write to"):
        salvaged(monkeypatch, [None], tmp_path / "runs" / "r-1")


@pytest.mark.parametrize(("rented", "away"), [(False, False), (False, True), (True, True)])
def test_nodes_that_ended_while_they_were_followed(monkeypatch: pytest.MonkeyPatch, rented: bool, away: bool) -> None:
    told = {0: {"node": 0, "outcome": "lost"}, 1: {"node": 1, "outcome": "lost"}}
    live = cast("Any", SimpleNamespace(row=SimpleNamespace(provider="p")))
    world = cast("Any", SimpleNamespace(provisioner=lambda _: SimpleNamespace(capabilities={"rented": rented})))
    monkeypatch.setattr("gpuops.runs.salvage.salvage", lambda *_: ({1: {"node": 1}}, {0: AWAY} if away else {}))
    monkeypatch.setattr("gpuops.runs.salvage.nodes_of", lambda *_: [])
    monkeypatch.setattr("gpuops.runs.salvage.absent", lambda *_: "what nobody answers for")
    if rented:
        assert followed(world, live, cast("Any", None), told) == (live, told), "a machine that is gone has no disk"
    elif away:
        with pytest.raises(ConnectionLost):
            followed(world, live, cast("Any", None), told)
    else:
        assert followed(world, live, cast("Any", None), told) == ("what nobody answers for", {**told, 1: {"node": 1}})
