"""What tests/unit/agent/test_sessions.py leaves to real processes or sockets."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuops.agent import client_activity
from gpuops.agent.client_activity import is_person_at_work, login_terminals
from gpuops.agent.node import Node
from tests.conftest import until


@pytest.fixture
def titled() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes of this test; ended after it."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.skipif(not os.path.exists("/proc/self/cmdline"), reason="needs /proc")
def test_titles_are_read_from_the_machine(titled: list[subprocess.Popen[bytes]]) -> None:
    process = subprocess.Popen(["sshd: nobody@notty"], executable="/bin/cat", stdin=subprocess.PIPE)
    titled.append(process)
    until(
        lambda: dict(login_terminals(client_activity.command_lines())).get(process.pid) is False,
        "it shows its new name",
    )


@pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="needs /proc")
@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "PBS_JOBID"])
def test_a_shell_in_a_batch_job_is_a_person_at_work(
    titled: list[subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The job ends with its node, and so does what is typed there. Another job's shell on this machine is none of it,
    nor is what has no terminal."""
    (tmp_path / "node.json").write_text("{}")
    (tmp_path / "hold.json").write_text("{}")
    monkeypatch.setenv(name, "77.test")

    terminals = []

    def start(job: str, *, terminal: bool) -> subprocess.Popen[bytes]:
        ours, its = pty.openpty()
        terminals.append(ours)
        code = "import fcntl, sys, termios; sys.argv[1] and fcntl.ioctl(0, termios.TIOCSCTTY, 0); print(); input()"
        argv = [sys.executable, "-S", "-c", code, "1" if terminal else ""]
        process = subprocess.Popen(
            argv, stdin=its, stdout=subprocess.PIPE, env={**os.environ, name: job}, start_new_session=True
        )
        titled.append(process)
        assert process.stdout
        process.stdout.readline()
        os.close(its)
        return process

    start("76.test", terminal=True)
    start("77.test", terminal=False)
    assert not is_person_at_work(Node(str(tmp_path)))
    shell = start("77.test", terminal=True)
    assert is_person_at_work(Node(str(tmp_path)))
    shell.kill()
    shell.wait()
    assert not is_person_at_work(Node(str(tmp_path)))
    for one in terminals:
        os.close(one)
