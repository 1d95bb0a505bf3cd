"""The agent as one file: the same bytes from the same sources, and it runs."""

from __future__ import annotations

import ast
import hashlib
import json
import sys
import zipfile
from pathlib import Path

import pytest

from gpuops.agent import __main__ as entrance
from gpuops.nodes import bootstrap


def test_its_name_is_its_content_and_it_is_made_once(tmp_path: Path) -> None:
    path, sha = bootstrap.build_agent(tmp_path / "cache")
    assert path == tmp_path / "cache" / f"{sha}.pyz"
    assert hashlib.sha256(path.read_bytes()).hexdigest()[:12] == sha
    before = path.stat()
    assert bootstrap.build_agent(tmp_path / "cache") == (path, sha)
    assert path.stat().st_ino == before.st_ino
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == [path.name]
    assert bootstrap.build_agent(tmp_path / "other")[0].read_bytes() == path.read_bytes()


def test_it_holds_the_agent_and_nothing_else(tmp_path: Path) -> None:
    with zipfile.ZipFile(bootstrap.build_agent(tmp_path)[0]) as archive:
        names = archive.namelist()
        assert archive.read("gpuops/__init__.py") == b""
    assert names[0] == "__main__.py"
    assert all(name.startswith("gpuops/agent/") and name.endswith(".py") for name in names[2:])
    assert {f"gpuops/agent/{module.replace('.', '/')}.py" for module in entrance.MODES.values()} <= set(names)


def test_the_entrance_can_be_read_by_old_pythons() -> None:
    source = Path(entrance.__file__).read_text()
    assert source.isascii()
    newer = (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.Nonlocal, ast.AsyncFunctionDef, ast.YieldFrom)
    tree = ast.parse(source, feature_version=(3, 4))
    assert not [node for node in ast.walk(tree) if isinstance(node, newer)]
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.returns]
    assert not [name for name in ast.walk(tree) if isinstance(name, ast.ImportFrom) and name.module == "__future__"]


def test_an_old_python_gets_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 6, 15, "final", 0))
    assert entrance.main(["agent.pyz", "init"]) == 3
    error = json.loads(capsys.readouterr().err)["error"]
    assert error["kind"] == "old-python"
    assert error["say"] == "the agent needs Python 3.8, this is 3.6.15"
