"""A computer that gpuops runs on, for what needs a real ledger and no node."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuops.cli.terminal.output import Output
from gpuops.core.context import Context
from gpuops.core.signals import Signals
from gpuops.guard.services import SERVICES


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Context]:
    home = tmp_path / "home"
    home.mkdir()
    one = Context(
        home=home, owner="me", folder=tmp_path, env=dict(os.environ), out=Output(), signals=Signals(), services=SERVICES
    )
    yield one
    one.ledger.close()
