"""A fake of RunPod, and somebody who asks it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.runpod import FakeRunPod
from tests.integration.fakes.runpod.client import Client


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeRunPod]:
    """Time stands still but for `advance`."""
    with FakeRunPod(tmp_path / "runpod", frozen=True) as one:
        yield one


@pytest.fixture
def call(fake: FakeRunPod) -> Client:
    return Client(fake)
