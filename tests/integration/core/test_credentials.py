"""What tests/unit/core/test_credentials.py leaves to real processes or sockets."""

from __future__ import annotations

from tests.conftest import Shell
from tests.unit.core.test_credentials import RUNPOD


def test_a_key_of_the_project_reaches_no_node(shell: Shell) -> None:
    """Neither the environment of what runs, nor any file of it, nor this computer's other processes."""
    key = "rpa_" + "W8y" * 14
    shell.write(".env", f"{RUNPOD}={key}\n")
    found = shell.run("run", "--", "sh", "-c", "env; cat .env; echo the end")
    assert "the end" in found.stdout
    assert key not in found.stdout + found.stderr
    elsewhere = [path for path in [*shell.home.rglob("*"), *(shell.folder / "runs").rglob("*")] if path.is_file()]
    assert [path for path in elsewhere if key.encode() in path.read_bytes()] == []
