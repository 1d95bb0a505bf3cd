"""Which runs a node keeps results of, told from its files alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpuops.agent.node import Node, Refusal
from gpuops.agent.result_storage.wait_for_download import HOME, HeldRuns, hold_duration_s, home
from gpuops.agent.run_documents import LaunchSpec, Reason


def a_run(node: Node, name: str, spec: dict[str, Any], result: dict[str, Any] | None) -> Path:
    folder = Path(node.run(name))
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps(spec))
    if result is not None:
        (folder / "result.json").write_text(json.dumps(result))
    return folder


DONE = {"outcome": "done", "reason": {"kind": "command"}}


@pytest.mark.parametrize(
    ("spec", "result", "seconds"),
    [
        ({"hold_s": 60}, DONE, 60.0),
        ({"hold_s": None}, DONE, None),
        ({}, DONE, None),
        ({"hold_s": 60}, {"outcome": "failed", "reason": {"kind": "start"}}, None),
        ({"hold_s": 60}, {"outcome": "lost", "reason": {"kind": "agent"}}, 60.0),
    ],
)
def test_a_run_that_ended_is_held_as_long_as_it_asked(
    spec: dict[str, Any], result: dict[str, Any], seconds: float | None
) -> None:
    assert hold_duration_s(LaunchSpec.parse({"run": "r-1", **spec}), Reason.parse(result["reason"])) == seconds


def test_what_is_held_until_it_is_home(tmp_path: Path) -> None:
    node = Node(str(tmp_path))
    held = HeldRuns(node)
    assert held.hold_s() is None
    first = a_run(node, "a-1", {"hold_s": 60}, None)
    assert held.hold_s() is None, "it goes on"
    (first / "result.json").write_text(json.dumps(DONE))
    assert held.hold_s() == 60.0
    a_run(node, "b-1", {"hold_s": 90}, DONE)
    assert held.hold_s() == HeldRuns(node).hold_s() == 90.0
    assert home(node, {"run": "b-1"}, None) == {}
    assert held.hold_s() == HeldRuns(node).hold_s() == 60.0
    home(node, {"run": "a-1"}, None)
    assert held.hold_s() is HeldRuns(node).hold_s() is None
    (first / HOME).unlink()
    assert held.hold_s() == HeldRuns(node).hold_s() == 60.0, "another node has handed something over"


def test_only_a_run_that_was_here_can_be_home(tmp_path: Path) -> None:
    with pytest.raises(Refusal) as refused:
        home(Node(str(tmp_path)), {"run": "a-1"}, None)
    assert refused.value.kind == "no-run"
