"""`--data node:/PATH`: whether the nodes have it, by what `test` says there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuops.core.errors import ConnectionLost, UsageError
from gpuops.nodes.session import ClusterSession
from gpuops.sync import workloads_and_data
from gpuops.transport.connection import ProcessConnection


def session(argv: list[str] | None = None) -> ClusterSession:
    """A cluster of one node, this computer; `argv`: runs instead of what is asked for."""
    there = ProcessConnection("node0")
    connection = SimpleNamespace(open=lambda asked: there.open(argv or asked))
    row = SimpleNamespace(name="lab")
    return cast(
        "ClusterSession", cast("Any", SimpleNamespace(row=row, clients=[SimpleNamespace(connection=connection)]))
    )


def test_what_is_not_there_is_told_from_a_node_that_does_not_answer(tmp_path: Path) -> None:
    path = str(tmp_path)
    assert workloads_and_data._find_on_nodes(session(), 1, path) == {0: path}
    with pytest.raises(UsageError, match=r"node0 has no .*/not"):
        workloads_and_data._find_on_nodes(session(), 1, f"{path}/not")
    with pytest.raises(ConnectionLost, match="node0 does not say whether it has"):
        workloads_and_data._find_on_nodes(session(["sh", "-c", "exit 255"]), 1, path)
