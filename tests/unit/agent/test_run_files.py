"""A run's files as another version, another program or a bad disk may leave them: they keep no node from its end."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from gpuops.agent.node import Node
from gpuops.agent.result_storage import wait_for_download
from gpuops.agent.result_storage.wait_for_download import HeldRuns
from gpuops.agent.run_files import run_markers

SOUND = {"cluster": "lab", "run": "a-1", "node": 0}
DONE = {"outcome": "done", "reason": {"kind": "command"}}


def a_run(node: Node, name: str, spec: Any) -> None:
    folder = Path(node.path("runs", name))
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps(spec))
    (folder / "result.json").write_text(json.dumps(DONE))


@pytest.mark.parametrize(
    "strange",
    [{"hold_s": "2h"}, {"here": {}}, {"master": {}}, {"gang": 7}, {"outs": 7}, {"kind": "of another version"}],
)
def test_a_field_that_cannot_be_read_hides_no_process(tmp_path: Path, strange: dict[str, Any]) -> None:
    node = Node(str(tmp_path))
    a_run(node, "a-1", {**SOUND, **strange})
    assert [marker[0] for marker in run_markers(node)] == ["lab-a-1-0"]
    assert HeldRuns(node).hold_s() is None


@pytest.mark.parametrize("spec", [{}, [], {"run": "b-1"}, "text"])
def test_a_spec_without_a_name_hides_no_other(tmp_path: Path, spec: Any) -> None:
    node = Node(str(tmp_path))
    a_run(node, "b-1", spec)
    a_run(node, "a-1", SOUND)
    assert [marker[0] for marker in run_markers(node)] == ["lab-a-1-0"]


def test_what_others_put_beside_the_runs_is_no_run(tmp_path: Path) -> None:
    node = Node(str(tmp_path))
    a_run(node, "a-1", SOUND)
    for name in (".nfs0001", ".ipynb_checkpoints", "Über"):
        Path(node.path("runs", name)).mkdir()
    assert node.runs() == ["a-1"]
    assert HeldRuns(node).hold_s() is None


def test_the_last_run_is_the_one_that_began_last(tmp_path: Path) -> None:
    """A client that has an earlier run's results by now writes into that run's folder."""
    node = Node(str(tmp_path))
    for age, name in ((20, "b-1"), (10, "a-1")):
        a_run(node, name, SOUND)
        os.utime(node.path("runs", name, "spec.json"), (time.time() - age,) * 2)
    os.utime(node.path("runs", "a-1"), (0, 0))
    wait_for_download.record_download(node.run("b-1"))
    assert node.runs() == ["b-1", "a-1"]


def test_notices_that_are_no_object_hide_no_end(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text(json.dumps({"index": 0, "end": ["poweroff"], "notices": "http://x"}))
    assert Node(str(tmp_path)).settings().end == ["poweroff"]
