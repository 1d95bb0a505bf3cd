"""The report at a run's end fails nothing, and takes no longer than it may."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuops.core.context import Context
from gpuops.core.models import Lease
from gpuops.core.run_models import RunRequest
from gpuops.ledger.rows import ClusterRow, ClusterState, RunFacts, RunRow, RunState
from gpuops.runs.report import report
from gpuops.sync.run_record import RunRecord

NOW = 1_700_000_000.0
RECORD = RunRecord(run="a-1")


def make_rows(home: Path, **more: Any) -> tuple[RunRow, ClusterRow]:
    request = RunRequest(kind="torchrun", mode="multinode", nodes=2, gpus=1, script="a.py", **more).document()
    facts = RunFacts(per_hour=3.6, skews=[0.0, 0.0])
    run = RunRow(1, "a-1", 1, home.parent.parent, home, "project", request, RunState.HOME, facts, None, None, NOW,
                 NOW + 60, NOW + 600)  # fmt: skip
    cluster = ClusterRow(1, "lab", "runpod", home.parent.parent, ClusterState.GONE, True, "", {}, {}, 0.0,
                         Lease(None, None, None), None, NOW - 90, NOW - 5, NOW + 700, "")  # fmt: skip
    return run, cluster


def reported(home: Path) -> tuple[str, list[str]]:
    said: list[str] = []
    ctx = SimpleNamespace(out=SimpleNamespace(say=said.append), clock=SimpleNamespace(now=lambda: NOW + 700))
    return report.try_report(cast("Context", ctx), *make_rows(home), RECORD, NOW + 650), said


def test_what_is_known_of_a_run_without_files(tmp_path: Path) -> None:
    home = tmp_path / "runs/a-1"
    home.mkdir(parents=True)
    path, said = reported(home)
    assert (path, said) == (str(home / "report.html"), [])
    page = Path(path).read_text()
    for part in ("Where 13:10 min, $0.79 went", "rent and boot", "end the machines", "a.py"):
        assert part in page, part


def test_a_report_that_cannot_be_made_is_one_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").write_text("no folder")
    path, [note] = reported(tmp_path / "runs/a-1")
    assert path == ""
    assert note.startswith("note: the report of a-1 could not be made: ")

    def fail(*_: Any) -> str:
        raise RecursionError("too deep")

    monkeypatch.setattr(report, "render", fail)
    assert reported(tmp_path / "runs/a-1") == ("", ["note: the report of a-1 could not be made: too deep"])


def test_what_takes_too_long_is_left_out_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "runs/a-1"
    (home / "logs/node0").mkdir(parents=True)
    (home / "logs/node0/rank0.out").write_text("loss 2\nloss 1\n")
    monkeypatch.setattr(report, "AT_END_LIMIT_S", -1.0)
    path, said = reported(home)
    assert said == []
    page = Path(path).read_text()
    assert "does not show all" in page
    assert "What it learnt" not in page


def page_of(home: Path, **more: Any) -> str:
    return report.make_page(*make_rows(home, **more), RECORD, NOW + 650, NOW + 700, lambda: False)


def test_a_run_of_an_array_is_not_told_the_time_of_the_others(tmp_path: Path) -> None:
    page = page_of(tmp_path / "runs/a-1", array_index=3)
    assert "Where 10:50 min, $0.65 went" in page
    assert "rent and boot" not in page


def test_a_nodes_clock_that_is_ahead_adds_no_time(tmp_path: Path) -> None:
    logs = tmp_path / "runs/a-1/logs/node0"
    logs.mkdir(parents=True)
    (logs / "times.jsonl").write_text(json.dumps({"at": NOW + 7200, "sizes": {"rank0.out": 5}}) + "\n")
    assert "Where 13:10 min, $0.79 went" in page_of(tmp_path / "runs/a-1")
