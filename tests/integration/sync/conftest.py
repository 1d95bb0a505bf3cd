"""Two nodes and a home, for whatever comes home."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.sync.node_here import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)
