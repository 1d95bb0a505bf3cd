"""Mode `contain`, the first program of a container: it ends when its node does."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuops.core.processes import start_apart
from tests.integration.agent.conftest import HANG_S, RealNode, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="containers are Linux's")


def hold(node: RealNode) -> subprocess.Popen[bytes]:
    node.folder.mkdir(parents=True, exist_ok=True)
    return start_apart(node.paths.argv("contain"), stdin=subprocess.DEVNULL)


def init(node: RealNode) -> None:
    document = {"node": {"cluster": "lab", "index": 0, "end": None, "contained": True}, "lease": {}}
    code, out, errors = node.mode("init", stdin=json.dumps(document))
    assert code == 0, errors
    assert json.loads(out)["watchdog"] == node.process("watchdog")


def test_it_is_the_watchdogs_parent_and_ends_with_it(make_node: Callable[..., RealNode]) -> None:
    node = make_node(init=False)
    held = hold(node)
    init(node)
    assert status(node.process("watchdog"))["PPid"] == str(held.pid)
    node.end("--remove")
    assert held.wait(HANG_S) == 0


@pytest.mark.parametrize("made", [False, True], ids=["before there is a node", "with a node"])
def test_a_signal_ends_it_with_all(make_node: Callable[..., RealNode], made: bool) -> None:
    node = make_node(init=False)
    held = hold(node)
    if made:
        init(node)
        node.python("run-1", "import time; print('on', flush=True); time.sleep(1000)")
        until(lambda: b"on" in node.file("run-1", "launcher.out"), "the run is on")
    else:
        until(lambda: handles_term(held.pid), "it is ready")
    held.send_signal(signal.SIGTERM)
    assert held.wait(HANG_S) == (0 if made else 1)
    if made:
        assert node.result("run-1")["outcome"] == "stopped", "its run was stopped in order"


def status(pid: int) -> dict[str, str]:
    """What the kernel says of a process, by name."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def handles_term(pid: int) -> bool:
    return bool(int(status(pid)["SigCgt"], 16) >> (signal.SIGTERM - 1) & 1)
