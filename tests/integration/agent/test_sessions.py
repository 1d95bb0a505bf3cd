"""What tests/unit/agent/test_sessions.py leaves to real processes or sockets."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from gpuops.agent import client_activity
from gpuops.agent.client_activity import login_terminals
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
