"""A guard that cannot be started, as processes: nothing is rented without one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Shell, until

ROOT = Path(__file__).parents[3]
WITHOUT_GUARD = """
import sys
from gpuops.guard import start
start.command = lambda *_: [sys.executable, "-c", sys.argv[1]]  # the guard's
from gpuops.cli import main
main(sys.argv[2:])
"""
BROKEN = "raise SystemExit('the disk of its home is gone')"


def type_without_guard(shell: Shell, *words: str) -> subprocess.CompletedProcess[str]:
    """Type a command whose guards end as they begin."""
    return subprocess.run([sys.executable, "-c", WITHOUT_GUARD, BROKEN, *words], cwd=shell.folder, text=True,
                          env={**shell.environment(), "PYTHONPATH": str(ROOT)}, check=False,
                          stdin=subprocess.DEVNULL, capture_output=True)  # fmt: skip


@pytest.mark.parametrize(
    "words", [("up", "local", "--max-hours", "1"), ("run", "--on", "local", "--", "true")], ids=lambda words: words[0]
)
def test_nothing_stays_where_no_guard_works(shell: Shell, words: tuple[str, ...]) -> None:
    """Nodes that cost nothing are made meanwhile; what is rented waits (tests/unit/clusters/test_creation.py)."""
    done = type_without_guard(shell, *words)
    assert done.returncode == 4, done.stderr
    assert "error: the guard of local-1 ended at once: the disk of its home is gone\nhint: " in done.stderr
    assert "local-1 is undone, nothing of it is left" in done.stderr
    assert shell.cluster_states() == []
    assert not list((shell.home / "local").glob("*/n*"))


def test_no_run_starts_on_a_live_cluster_where_no_guard_works(shell: Shell) -> None:
    assert shell.run("up", "local", "--name", "lab").returncode == 0
    until(lambda: not any("guard.daemon" in line for line in shell.processes()), "the end of a guard without a lease")
    done = type_without_guard(shell, "run", "--cluster", "lab", "--", "touch", "../it-ran")
    assert done.returncode == 4, done.stderr
    assert "error: the guard of lab ended at once: the disk of its home is gone\nhint: " in done.stderr
    assert not list(shell.home.rglob("it-ran"))
    assert shell.run_states() == ["home"]
    assert shell.run("down", "lab").returncode == 0


def test_what_lives_is_looked_at_and_ended_without_a_guard(shell: Shell) -> None:
    """No command waits for a guard that it does not need."""
    assert shell.run("up", "local", "--name", "lab").returncode == 0
    until(lambda: not any("guard.daemon" in line for line in shell.processes()), "the end of a guard without a lease")
    done = type_without_guard(shell, "lease", "lab", "--extend", "1h")
    assert "note: the guard of lab ended at once: the disk of its home is gone; the next command" in done.stderr
    status = type_without_guard(shell, "status", "--json")
    assert json.loads(status.stdout)["clusters"][0]["name"] == "lab"
    assert "note: no guard works for lab: the guard of lab ended at once: the disk of its home is gone" in status.stderr
    assert type_without_guard(shell, "down", "lab").returncode == 0
    shell.expect_clean()
