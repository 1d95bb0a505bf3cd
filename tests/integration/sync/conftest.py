"""A project and a node, for whatever is pushed; two nodes and a home, for whatever comes home."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.inprocess import InProcessClient
from tests.integration.sync.node_here import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "lib").mkdir(parents=True)
    (folder / "train.py").write_text("print('one')\n")
    (folder / "lib" / "util.py").write_text("x = 1\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    return folder


@pytest.fixture
def node(tmp_path: Path) -> InProcessClient:
    return InProcessClient(tmp_path / "root" / "cluster" / "n0")
