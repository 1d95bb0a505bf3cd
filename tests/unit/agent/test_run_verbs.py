"""Which run is on, where starting one fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuops.agent.node import Node
from gpuops.agent.run import run_verbs


def test_a_run_whose_thread_cannot_be_started_leaves_the_node_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may have no more threads for a moment; the node would be busy until its end."""

    def fail(_supervisor: run_verbs.Supervisor) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(run_verbs, "_latest", None)
    monkeypatch.setattr(run_verbs.Supervisor, "start", fail)
    node = Node(str(tmp_path / "lab" / "n0"))
    for name in ("project", "runs"):
        os.makedirs(node.path(name))
    with pytest.raises(RuntimeError):
        run_verbs.start(node, {"spec": {"run": "a-1", "tree": "project", "argv": ["true"]}}, lambda _item: None)
    assert run_verbs.live_run() is None
