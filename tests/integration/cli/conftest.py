"""Shells in which tents can be rented, a bucket, a host; and the desk, for what ends before any node is there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Shell
from tests.desk import desk, moon  # noqa: F401
from tests.fakes.bucket import FakeBucket
from tests.fakes.tent import pitch
from tests.integration.cli.renter import fake, money, no_guard_stays, renter  # noqa: F401 - fixtures for every file here
from tests.integration.cli.tenant import tenant  # noqa: F401
from tests.sshd import Sshd, can_serve, serving


@pytest.fixture
def camp(shell: Shell, tmp_path: Path) -> Shell:
    """A shell in which tents can be rented."""
    root = str(Path(__file__).parents[3])
    shell.env["PYTHONPATH"] = os.pathsep.join([*pitch(tmp_path / "site"), root])
    return shell


@pytest.fixture
def store(camp: Shell, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBucket]:
    """A bucket, and its keys in the camp's environment."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    with FakeBucket() as one:
        camp.env.update(one.env, HOME=str(camp.folder.parent))
        yield one


@pytest.fixture
def host() -> Iterator[Sshd]:
    """A host of one's own."""
    if why := can_serve():
        pytest.skip(why)
    with serving() as server:
        yield server
