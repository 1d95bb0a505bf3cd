"""What tests/unit/core/test_platform.py leaves to real processes or sockets."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from gpuops.core.platform import System
from tests.conftest import TESTS
from tests.fakes.lacking import play
from tests.unit.core.test_platform import HOMES, KINDS, WINDOWS


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs ssh")
@KINDS
def test_openssh_reads_it(system: System) -> None:
    config = str(TESTS / "golden" / f"ssh_config.{system.kind}")
    said = subprocess.run(
        ["ssh", "-G", "-F", config, "gpuops-lab-0"], check=True, capture_output=True, text=True
    ).stdout
    home = HOMES[system].as_posix()
    assert f"identityfile {home}/.ssh/id_ed25519\n" in said
    assert f"userknownhostsfile {home}/.gpuops/ssh/lab.known_hosts\n" in said
    assert ("controlmaster auto\n" in said) == (system is not WINDOWS)


@pytest.mark.parametrize("kind", ["windows", "macos"])
def test_without_what_that_system_lacks(tmp_path: Path, kind: str) -> None:
    """Every module can be imported, commands answer, and what cannot work says so in one sentence."""
    (tmp_path / "train.py").write_text("print('é → ok')\n", encoding="utf-8")
    answer = play(
        kind, tmp_path / "home", tmp_path,
        ["--version"], ["--help"], ["train", "--help"], ["status"], ["status", "--json"], ["runs"],
        ["push", "--dry-run"], ["up", "local", "--dry-run"], ["logs"],
        env={"PYTHONIOENCODING": "cp1252"},
    )  # fmt: skip
    assert answer["broken"] == []
    said = dict(
        zip(("version", "help", "train", "status", "json", "runs", "push", "up", "logs"), answer["said"], strict=True)
    )
    works = [name for name, one in said.items() if one["code"] == 0]
    assert works == ["version", "help", "train", "status", "json", "runs", "push", *(["up"] if kind == "macos" else [])]
    assert said["json"]["out"].startswith('{"schema": 1, "kind": "status"')
    assert "train.py" in said["push"]["out"]
    assert said["logs"]["code"] == 2
    if kind == "windows":
        assert said["up"]["code"] == 3
        assert said["up"]["err"].startswith("error: local nodes need Linux or macOS\nhint: ")
    assert not any("bug" in one["err"] for one in said.values())
