"""What nodes that answer no more still tell: that it could not be written down here is no reason to give it up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuops.agent import run_files
from gpuops.core.errors import ConnectionLost, LocalDisk, NodeRefused
from gpuops.core.reporting import Silent
from gpuops.core.run_models import RunRequest
from gpuops.core.safe_folder import SafeFolder
from gpuops.runs.outcome.node_report import NodeReport, ReasonKind, lost_report, parse_report
from gpuops.runs.results.collect import Disks
from gpuops.runs.results.dead_agents import log_stream_name, salvage
from gpuops.sync.merged_outputs import OutFolder
from gpuops.sync.run_folder import RunHome

AWAY = ConnectionLost("node1 does not answer", "try again")


def salvaged(monkeypatch: pytest.MonkeyPatch, answers: list[Any], home: Path = Path()) -> Any:
    def programs(_row: Any, _machine: Any, index: int) -> Any:
        if isinstance(answers[index], Exception):
            raise answers[index]
        return SimpleNamespace(connection=SimpleNamespace(close=lambda: None))

    monkeypatch.setattr("gpuops.runs.results.dead_agents.nodes_of", lambda *_: [None] * len(answers))
    monkeypatch.setattr("gpuops.runs.results.dead_agents.open_programs", programs)
    request = RunRequest(kind="torchrun", mode="multinode", nodes=len(answers), gpus=None)
    run = SimpleNamespace(name="r-1", home=home, request=request.document())
    return salvage(cast("Any", None), cast("Any", None), cast("Any", run))


def test_every_stream_of_a_run_is_one_here(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    for name in (*run_files._OF_THE_RUN, "ranks/0.out", "ranks/11.err"):
        (tmp_path / name).touch()
    known = {
        name: str(Path(path).relative_to(tmp_path)) for name, path in run_files.list_streams(str(tmp_path)).items()
    }
    assert {name: log_stream_name(path) for name, path in known.items()} == {name: name for name in known}
    assert len(known) == 7
    assert log_stream_name("result.json") == ""


def test_each_node_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuops.runs.results.dead_agents._salvage_node", lambda *_: {"outcome": "done"})
    refused = NodeRefused("it knows no such thing", "", "no-run")
    assert salvaged(monkeypatch, [refused, AWAY, None]) == ({2: parse_report(2, {"outcome": "done"})}, {1: AWAY})


def test_a_full_disk_here_gives_up_nothing_there(monkeypatch: pytest.MonkeyPatch) -> None:
    full = LocalDisk("this computer's disk is full", "free space")
    with pytest.raises(LocalDisk, match="disk is full"):
        salvaged(monkeypatch, [full, None])


def test_a_folder_that_cannot_be_written_to_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("gpuops.runs.results.dead_agents.list_unmatched_files", lambda *_, **__: [])
    home = tmp_path / "runs" / "r-1"
    home.mkdir(parents=True)
    (home / "incoming").touch()
    with pytest.raises(LocalDisk, match="cannot write to"):
        salvaged(monkeypatch, [None], tmp_path / "runs" / "r-1")


def test_what_a_kill_leaves_is_removed_with_the_end_of_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = RunHome(tmp_path / "runs" / "r-1")

    def save(_programs: Any, _tree: str, _files: Any, folder: SafeFolder) -> None:
        left = folder.path.rename(folder.path.with_name("99999999-killed"))
        (left / "a log").touch()

    monkeypatch.setattr("gpuops.runs.results.dead_agents.list_unmatched_files", lambda *_, **__: [])
    monkeypatch.setattr("gpuops.runs.results.dead_agents.save_unmatched_files", save)
    salvaged(monkeypatch, [None], home.path)
    OutFolder(home).clear_dead()
    assert sorted(path.name for path in home.path.iterdir()) == ["out"]


@pytest.mark.parametrize(("rented", "away"), [(False, False), (False, True), (True, True)])
def test_nodes_that_ended_while_they_were_followed(monkeypatch: pytest.MonkeyPatch, rented: bool, away: bool) -> None:
    """A host of the user's own that is out of reach keeps what it has; a machine that is gone has no disk."""
    reports = {index: lost_report(index, "ended", ReasonKind.ENDED) for index in (0, 1)}
    found = parse_report(1, {"outcome": "done"})
    collected: list[dict[int, NodeReport]] = []
    world = cast("Any", SimpleNamespace(provisioner=lambda _: SimpleNamespace(capabilities={"rented": rented})))
    monkeypatch.setattr("gpuops.runs.results.collect.salvage", lambda *_: ({1: found}, {0: AWAY} if away else {}))
    monkeypatch.setattr("gpuops.runs.results.collect.nodes_of", lambda *_: [])
    monkeypatch.setattr("gpuops.runs.results.collect.left_session", lambda *_: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr("gpuops.runs.results.collect.Agents.collect", lambda self, *_: collected.append(self.reports))
    disks = Disks(cast("Any", SimpleNamespace(provider="p")), AWAY, reports=reports)
    if away and not rented:
        with pytest.raises(ConnectionLost):
            disks.collect(world, cast("Any", None), Silent())
    else:
        disks.collect(world, cast("Any", None), Silent())
        assert collected == [{**reports, 1: found}]
