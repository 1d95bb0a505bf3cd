"""A node without processes, and the folder of a project."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.agent.node import Node


@pytest.fixture
def node(tmp_path: Path) -> Node:
    (tmp_path / "n0").mkdir()
    return Node(str(tmp_path / "n0"))


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return tmp_path / "here"
