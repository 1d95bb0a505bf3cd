"""One more provider, in a wheel of somebody else's: found, driven and proven, with nothing changed for it here."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.cli.heard import spoken
from tests.system.packaging.conftest import build, run

PLUGIN = Path(__file__).parent / "plugin"


@pytest.fixture(scope="module")
def python(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with gpuops, the plugin's wheel, and pytest."""
    folder = tmp_path_factory.mktemp("tents")
    shutil.copytree(installed.parents[1], folder / "venv", symlinks=True)
    shutil.copytree(PLUGIN, folder / "plugin")
    (folder / "dist").mkdir()
    wheel = build(folder / "plugin", folder / "dist")
    own = folder / "venv" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", own, "install", "--quiet", wheel, "pytest", cwd=folder)
    return own


def typed(python: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command as typed in an empty folder, with a home of its own."""
    own = ("GPUOPS_", "VIRTUAL_ENV", "PYTHONPATH")
    env = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return subprocess.run([python, "-m", *words], cwd=folder, env={**env, "GPUOPS_HOME": str(folder / "home")},
                          capture_output=True, text=True, timeout=600, check=False)  # fmt: skip


def test_it_knows_nothing_of_gpuops_but_the_contract() -> None:
    tree = ast.parse((PLUGIN / "gpuops_tent.py").read_text())
    used = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    used |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    ours = {name for name in used if str(name).partition(".")[0] in ("gpuops", "provisioners")}
    assert ours == {"gpuops.core.models", "gpuops.core.errors", "provisioners.base"}
    assert {str(name).partition(".")[0] for name in used - ours} <= sys.stdlib_module_names


def test_its_own_options_are_in_the_help(python: Path, tmp_path: Path) -> None:
    said = typed(python, tmp_path, "gpuops", "up", "tent", "--help")
    assert said.returncode == 0, said.stderr
    assert "Options of tent:\n  --size" in said.stdout
    refused = typed(python, tmp_path, "gpuops", "up", "tent", "--size", "huge")
    assert (refused.returncode, spoken(refused.stderr)) == (
        3,
        ["error: no tent is huge", "hint: --size is small or large"],
    )


def test_it_is_proven(python: Path, tmp_path: Path) -> None:
    prove = ("gpuops", "prove", "tent", "--spend", "0.10", "--yes", "--json", "--record", "tent.json")
    done = typed(python, tmp_path, *prove)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record == json.loads((tmp_path / "tent.json").read_text())
    assert record.keys() == {
        "schema", "kind", "provider", "gpuops", "date", "client", "machine", "nodes", "per_hour", "spend", "scenarios",
        "seconds", "cost", "balance", "left", "exit_code",
    }  # fmt: skip
    assert {one["outcome"] for one in record["scenarios"]} == {"proven"}
    assert (record["provider"], record["machine"], record["left"]) == ("tent", "1 tent (small)", [])
    assert 0 < record["balance"]["before"] - record["balance"]["after"] < 0.1
    assert list((tmp_path / "home" / "tent" / "ground").iterdir()) == []
    again = typed(python, tmp_path, *prove)
    assert (again.returncode, again.stderr.splitlines()[0]) == (2, "error: tent.json exists already")


def test_it_passes_the_contract_as_its_author_tests_it(python: Path, tmp_path: Path) -> None:
    shutil.copy(PLUGIN / "test_tent.py", tmp_path)
    done = typed(python, tmp_path, "pytest", "-q", "-p", "no:cacheprovider", "test_tent.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "17 passed" in done.stdout
