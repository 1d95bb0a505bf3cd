"""The wheel as a user gets it, built once, and environments with it in them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).parents[3]
collect_ignore = ["plugin", "heron"]
"""Their tests are run where their wheels are installed."""


def run(*argv: str | Path, cwd: Path) -> str:
    """What a program prints; it must succeed, and nothing of this checkout is on its path."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(project: Path, target: Path) -> Path:
    """A project's wheel, by the backend installed here."""
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", target, project, cwd=target)
    [path] = target.glob("*.whl")
    return path


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that the first worker to ask for it fills by `make`; the others wait for it and read it."""
    shared = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent  # of all workers of this run, and of no other run
    folder = shared / name
    with FileLock(shared / f"{name}.lock"):
        if not (folder / "made").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            (folder / "made").touch()
    return folder


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = made_once(tmp_path_factory, "dist", lambda folder: build(ROOT, folder))
    [path] = folder.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with nothing but the wheel and what it asks for."""

    def make(folder: Path) -> None:
        run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
        python = folder / "venv" / "bin" / "python"
        run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", wheel, cwd=folder)

    return made_once(tmp_path_factory, "installed", make) / "venv" / "bin" / "python"
