"""A fake of AWS, and somebody who rents there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.aws import FakeAWS
from tests.integration.fakes.aws.renter import Renter


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeAWS]:
    with FakeAWS(tmp_path / "aws") as one:
        one.ending_s = 0.1  # what comes after the end is looked at, mostly
        yield one


@pytest.fixture
def renter(fake: FakeAWS) -> Renter:
    return Renter(fake)
