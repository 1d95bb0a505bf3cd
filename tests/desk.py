"""The command line inside this process, for what ends before any node is there: quick enough for long tables."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuops.cli.entry import execute
from gpuops.cli.terminal import progress

PLUGIN = """
from gpuops.core.models import Option
from provisioners.local import LocalProvisioner


class Moon(LocalProvisioner):
    name = "moon"
    options = (
        Option("crater", "Which crater to land in."),
        Option("dust", "How much of it, in tons.", "float", 1.5),
        Option("far-side", "Where nobody listens.", "bool", False),
        Option("flag", "Raise one. Repeatable.", "list"),
    )

    def preflight(self, request):
        from gpuops.core.models import Problem
        return [Problem(f"no rocket for {sorted(request.options.items())}", "build one")]
"""
METADATA = "Metadata-Version: 2.1\nName: moon\nVersion: 1\n"


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
def moon(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A provider that somebody else's wheel brings, found by its entry point."""
    site = tmp_path / "site"
    (site / "moon-1.dist-info").mkdir(parents=True)
    (site / "moon_provider.py").write_text(PLUGIN)
    (site / "moon-1.dist-info" / "METADATA").write_text(METADATA)
    (site / "moon-1.dist-info" / "entry_points.txt").write_text("[gpuops.provisioners]\nmoon = moon_provider:Moon\n")
    monkeypatch.syspath_prepend(str(site))
    yield desk
    sys.modules.pop("moon_provider", None)
