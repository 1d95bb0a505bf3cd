"""A run's size is decided once, from what was typed and from the machines that are available."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuops.commands.plan import Size, resolve_size
from gpuops.core.run_models import RunRequest

MULTINODE = RunRequest(kind="torchrun", mode="multinode", nodes=0, gpus=None)
COMMAND = RunRequest(kind="command", mode="run", nodes=0, gpus=None)


@pytest.mark.parametrize(
    ("asked", "available", "nodes"),
    [
        (MULTINODE, 1, 2),
        (MULTINODE, 5, 5),
        (replace(MULTINODE, nodes=3), 5, 3),
        (replace(MULTINODE, nodes=1), 5, 1),
        (replace(MULTINODE, nodes=4), 1, 4),
        (replace(MULTINODE, mode="single"), 5, 1),
        (replace(MULTINODE, mode="multigpu", gpus=4), 5, 1),
        (COMMAND, 5, 1),
        (replace(COMMAND, nodes=2), 5, 1),
        (replace(COMMAND, all_nodes=True), 5, 5),
        (replace(COMMAND, all_nodes=True), 0, 1),
        (replace(COMMAND, all_nodes=True, nodes=2), 5, 2),
    ],
)
def test_the_nodes_of_a_run(asked: RunRequest, available: int, nodes: int) -> None:
    assert resolve_size(asked, available) == Size(nodes, asked.gpus)
