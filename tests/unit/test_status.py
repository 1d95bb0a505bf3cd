"""The table of what is up: one calm line each, and which node is not as it should be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpuops import status


def document(state: str, nodes: list[str]) -> dict[str, Any]:
    return {"name": "lab", "provider": "ssh", "nodes": nodes, "state": state, "run": None, "age_s": 5.0,
            "per_hour": 0.0, "lease": "no end"}  # fmt: skip


@pytest.mark.parametrize(
    ("ledger", "nodes", "expected"),
    [
        ("up", ["running", "running"], "up"),
        ("up", ["running", "unknown"], "partly up"),
        ("up", ["unknown", "unknown"], "out of reach"),
        ("up", ["ended", "ended"], "ended"),
        ("up", [], "up"),
        ("ending", ["running", "ended"], "ending"),
    ],
)
def test_what_the_machines_say_of_a_cluster(ledger: str, nodes: list[str], expected: str) -> None:
    assert status._state(SimpleNamespace(state=ledger), nodes) == expected  # type: ignore[arg-type]


def test_the_table_names_the_node_that_is_missing() -> None:
    assert status.lines([]) == ["nothing is up"]
    table = status.lines([document("partly up", ["running", "unknown", "ended"]), document("up", ["running"])])
    assert [line.split()[0] for line in table[:3]] == ["NAME", "lab", "lab"]
    assert table[3:] == ["lab: node1 does not answer, node2 has ended"]
