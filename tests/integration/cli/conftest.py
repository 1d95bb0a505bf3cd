"""The command line inside this process, for what ends before any node is there: quick enough for long tables."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuops.cli.entry import execute
from gpuops.cli.terminal import progress
from tests.conftest import Shell
from tests.fakes.bucket import FakeBucket
from tests.fakes.tent import pitch
from tests.integration.cli.renter import fake, money, no_guard_stays, renter  # noqa: F401 - fixtures for every file here
from tests.integration.cli.tenant import tenant  # noqa: F401
from tests.sshd import Sshd, can_serve, serving


@dataclass(frozen=True)
class Said:
    """What a command came to."""

    code: int
    out: str
    err: str


@dataclass
class Desk:
    """A home and a project folder that commands are typed in."""

    home: Path
    folder: Path
    capture: pytest.CaptureFixture[str]

    def type(self, *words: str) -> Said:
        self.capture.readouterr()
        code = execute(words)
        out, err = self.capture.readouterr()
        return Said(code, out, err)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    for name in [name for name in os.environ if name.startswith("GPUOPS_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.setenv("GPUOPS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(
        progress, "FIRST_LINE_AFTER_S", 86400.0
    )  # what drags is said, and here a busy machine would decide it
    monkeypatch.chdir(folder)
    return Desk(tmp_path / "home", folder, capsys)


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
