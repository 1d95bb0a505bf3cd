"""A node whose disk takes no byte any more, played by a limit on the size of files: it still says how its run ended,
and its idle end counts again."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuops.core.errors import GpuopsError
from tests.integration.agent.conftest import RealNode, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits another process")

WAITS = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)\n"


def fill_disk(node: RealNode, process: str) -> None:
    """From now on neither this process of the node's nor its children can write to a file."""
    resource.prlimit(node.process(process), resource.RLIMIT_FSIZE, (0, 0))


def outcome(node: RealNode, run: str) -> str:
    """How the run ended; empty while it has not, and while no agent answers."""
    try:
        client = node.client()
        result = client.call("run", run=run).result
        client.close()
    except GpuopsError:
        return ""
    return str(result["outcome"]) if result else ""


def test_a_run_that_ends_on_a_full_disk_is_told_and_counts_as_ended(node: RealNode) -> None:
    node.python("r", WAITS)
    fill_disk(node, "agent")
    (node.folder / "project" / "go").touch()
    assert until(lambda: outcome(node, "r"), "the run has ended") == "done"
    until(lambda: not (node.folder / "live.json").exists(), "the idle end counts")
    assert not (node.folder / "runs/r/result.json").exists()


def test_an_agent_that_starts_on_a_full_disk_tells_how_earlier_runs_ended(node: RealNode) -> None:
    node.python("first", "print('hello')")
    node.result("first")
    node.python("second", WAITS)
    fill_disk(node, "watchdog")
    os.kill(node.process("agent"), signal.SIGKILL)
    assert until(lambda: outcome(node, "second"), "another agent answers") == "lost"
    assert outcome(node, "first") == "done"
    assert not (node.folder / "live.json").exists()


CANNOT_BEGIN = """
import os, sys
from gpuops.agent.daemon import start_mode
from gpuops.agent.node import Node

start_mode.MODULES["agent"] = "no_such_module"
here = os.getpid()
try:
    child = start_mode.start_mode(Node(sys.argv[1]), "agent")
finally:
    if os.getpid() != here:
        open(sys.argv[1] + "/goes-on", "w").close()
os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
sys.exit(child.poll())
"""


def test_an_agent_that_cannot_even_log_why_it_does_not_begin_ends(tmp_path: Path) -> None:
    """It would go on as what it was forked from: a second watchdog, which starts agents of its own."""
    (tmp_path / "agent.log").symlink_to("/dev/full")
    code = subprocess.run([sys.executable, "-c", CANNOT_BEGIN, str(tmp_path)], timeout=120, check=False).returncode
    assert (code, (tmp_path / "goes-on").exists()) == (1, False)
