"""The agent's modules are compiled once for a node's Python; what cannot be trusted is not used."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from gpuops.agent import compiled_code
from gpuops.agent.compiled_code import CompiledCode
from gpuops.nodes.bootstrap import build_agent


@pytest.fixture(autouse=True)
def meta_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test adds to Python's finders goes with it."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return build_agent(tmp_path)[0]


def compiled(archive: Path) -> Path:
    (path,) = archive.parent.glob("*.code")
    return path


def added() -> list[CompiledCode]:
    return [finder for finder in sys.meta_path if isinstance(finder, CompiledCode)]


def test_it_serves_every_module_of_the_archive(archive: Path) -> None:
    compiled_code.use(str(archive), makes=True)
    (finder,) = added()
    spec = finder.find_spec("gpuops.agent.daemon.watchdog")
    assert spec is not None
    assert spec.origin == f"{archive}/gpuops/agent/daemon/watchdog.py"
    module = importlib.util.module_from_spec(spec)
    finder.exec_module(module)
    assert module.main.__code__.co_filename == spec.origin
    assert (finder.get_source(spec.name) or "").splitlines()[0] == f'"""{(module.__doc__ or "").splitlines()[0]}'
    package = finder.find_spec("gpuops.agent.daemon")
    assert package is not None
    assert package.submodule_search_locations == [f"{archive}/gpuops/agent/daemon"]
    assert finder.find_spec("json") is None


def test_it_is_made_once_and_only_where_a_node_starts(archive: Path) -> None:
    compiled_code.use(str(archive), makes=False)
    assert not added()
    compiled_code.use(str(archive), makes=True)
    path = compiled(archive)
    assert path.stat().st_mode & 0o777 == 0o600
    before = path.stat()
    compiled_code.use(str(archive), makes=True)
    assert path.stat().st_ino == before.st_ino
    assert len(list(archive.parent.iterdir())) == 2


@pytest.mark.parametrize("harm", ["torn", "empty", "changed", "another Python"])
def test_what_is_harmed_is_not_used_and_made_again(harm: str, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_code.use(str(archive), makes=True)
    path = compiled(archive)
    whole = path.read_bytes()
    changed = {"torn": whole[: len(whole) // 2], "empty": b"", "changed": whole[:-1] + b"\0"}
    path.write_bytes(changed.get(harm, whole))
    if harm == "another Python":
        monkeypatch.setattr(sys, "version", "3.11.99 (main)")
    count = len(added())
    compiled_code.use(str(archive), makes=False)
    assert len(added()) == count
    compiled_code.use(str(archive), makes=True)
    assert len(added()) == count + 1


def test_a_folder_that_takes_no_file_costs_nothing_but_time(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(compiled_code.os, "replace", refuses)
    compiled_code.use(str(archive), makes=True)
    assert len(added()) == 1
    assert [one.name for one in archive.parent.iterdir()] == [archive.name]


def test_a_program_that_is_no_archive_is_left_alone(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("pass\n")
    compiled_code.use(str(program), makes=True)
    assert not added()
