"""An agent whose watchdog was killed."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuops.agent.daemon import main
from gpuops.agent.node import Node
from gpuops.agent.run import run_verbs


def test_results_that_take_long_to_store_leave_no_machine_without_its_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A volume that hangs, or hours of upload: nothing would end the machine meanwhile."""
    storing = SimpleNamespace(done=threading.Event(), stop_everywhere=lambda *_: None)
    monkeypatch.setattr(run_verbs, "_latest", storing)
    monkeypatch.setattr(run_verbs, "_leaving", None)
    monkeypatch.setattr(main, "UNWATCHED_LIMIT_S", 0.01)
    guard = threading.Timer(30.0, storing.done.set)
    guard.start()
    (tmp_path / "node.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    watchdogs: list[str] = []
    monkeypatch.setattr(main, "start_mode", lambda _node, mode: watchdogs.append(mode))
    monkeypatch.setattr(main.processes, "end_all", lambda _find: 0)
    monkeypatch.setattr(main.os, "_exit", lambda _code: None)
    main.close_orphaned(Node(str(tmp_path)))
    guard.cancel()
    assert not storing.done.is_set(), "it is not waited for"
    assert watchdogs == ["watchdog"]


def test_a_watchdog_that_cannot_be_started_at_once_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has killed it may refuse another process, too, and without one nothing ends the machine."""
    (tmp_path / "node.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    answers: list[OSError | None] = [OSError(12, "Cannot allocate memory"), None]

    def start(_node: Node, _mode: str) -> None:
        if error := answers.pop(0):
            raise error

    monkeypatch.setattr(main, "start_mode", start)
    monkeypatch.setattr(main, "PARENT_CHECK_INTERVAL_S", 0.0)
    monkeypatch.setattr(main.run_verbs, "end_runs", lambda *_: None)
    monkeypatch.setattr(main.processes, "end_all", lambda _find: 0)
    monkeypatch.setattr(main.os, "_exit", lambda _code: None)
    main.close_orphaned(Node(str(tmp_path)))
    assert not answers
