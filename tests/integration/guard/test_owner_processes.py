"""Whom the guard takes for dead: a command that was stopped for long, but none in another container."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from gpuops.core import heartbeat
from tests.conftest import HANG_S, Shell, until

ROOT = Path(__file__).parents[3]
COMMAND = """
import sys
from gpuops.core import heartbeat
heartbeat.SILENCE_MAX_S = 1.0  # what this command takes for long
from gpuops.cli import main
main(sys.argv[1:])
"""
CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def age_heartbeat(shell: Shell, pid: int) -> None:
    """As after minutes."""
    (path,) = (shell.home / heartbeat.FOLDER).glob(f"{pid}-*.json")
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "at": document["at"] - 2 * heartbeat.SILENCE_MAX_S}))


def test_a_command_that_is_stopped_loses_nothing(shell: Shell) -> None:
    """Ctrl-Z and a closed laptop: the guard brings the run home, and who types `fg` is told so."""
    (shell.folder / "job.sh").write_text("until test -e go; do sleep 0.1; done; echo done | tee result.txt\n")
    words = ["run", "--on", "local", "--out", "result.txt", "--", "sh", "job.sh"]
    command = subprocess.Popen([sys.executable, "-c", COMMAND, *words], cwd=shell.folder, text=True,
                               env={**shell.environment(), "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    shell.started.append(command)
    until(lambda: shell.run_states() == ["running"], "the run")
    command.send_signal(signal.SIGSTOP)
    until(lambda: psutil.Process(command.pid).status() == psutil.STATUS_STOPPED, "its stop")
    age_heartbeat(shell, command.pid)
    until(lambda: shell.read_ledger(lambda ledger: [run for run in ledger.runs() if run.owner_process and
          run.owner_process.pid != command.pid]), "the guard's takeover")  # fmt: skip
    (node,) = (shell.home / "local").glob("*/n0/project")
    (node / "go").touch()
    until(lambda: shell.run_states() == ["home"] and not shell.cluster_states(), "the guard's work")
    (result,) = (shell.folder / "runs").glob("*/**/result.txt")
    assert result.read_text() == "done\n"
    command.send_signal(signal.SIGCONT)
    out, err = command.communicate(timeout=HANG_S)
    assert "the guard finished sh-1 while this command was stopped; results are in " in out + err
    assert command.returncode == 0
    shell.expect_clean()


def test_a_command_in_another_container_is_let_be(shell: Shell) -> None:
    """They share a home, and a pid of one is nobody's in the other."""
    if os.getuid() or subprocess.run([*CONTAINER, "true"], check=False, capture_output=True).returncode:
        pytest.skip("pids of its own: needs root, and unshare of util-linux")
    assert shell.run("up", "local", "--name", "lab", "--max-hours", "1").returncode == 0
    shell.prefix = CONTAINER
    done = shell.run("run", "--cluster", "lab", "--", "sh", "-c", "sleep 4; echo done")
    assert (done.returncode, "done" in done.stdout) == (0, True), done.stderr
    shell.prefix = ()
    assert "sh-1" not in shell.run("status").stderr, "no guard has taken it for abandoned"
    assert shell.run("down", "lab").returncode == 0
    shell.expect_clean()
