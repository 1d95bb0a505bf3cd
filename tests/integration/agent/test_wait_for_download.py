"""Results that nobody has fetched: a node waits for whoever does, longer than it would stand idle, and not for ever."""

from __future__ import annotations

import json
import os
import signal
import time

from tests.files import change
from tests.integration.agent.conftest import RealNode, alive, until


def why_ended(node: RealNode) -> str:
    path = node.folder / "ended.json"
    until(path.exists, "the node has ended")
    return str(json.loads(path.read_text())["why"])


def lease(node: RealNode, ends_in: float | None, idle_s: float) -> None:
    client = node.client()
    client.call("lease", ends_in=ends_in, idle_s=idle_s)
    client.close()


def test_it_outlives_its_idle_end_until_they_are_home(node: RealNode) -> None:
    node.start("r-1", ["true"], hold_s=600)
    node.result("r-1")
    lease(node, None, 1.0)
    time.sleep(4.0)  # twice what it would have stood idle, and a tick
    assert not (node.folder / "ended.json").exists()
    client = node.client()
    client.call("home", run="r-1")
    client.close()
    assert why_ended(node) == "nothing was run on it for 1 s"


def test_what_it_holds_is_in_files_and_outlives_agent_and_watchdog(node: RealNode) -> None:
    node.start("r-1", ["true"], hold_s=5.0)
    node.result("r-1")
    agent, watchdog = node.process("agent"), node.process("watchdog")
    os.kill(watchdog, signal.SIGSTOP)  # so that it starts no other agent
    for pid in (agent, watchdog):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(agent) and not alive(watchdog), "both are gone")
    until(lambda: node.init(), "another watchdog")
    lease(node, None, 0.5)
    assert why_ended(node) == "no client downloaded the results of its run for 5 s"


def test_the_hard_end_waits_for_nobody(node: RealNode) -> None:
    node.start("r-1", ["true"], hold_s=600)
    node.result("r-1")
    lease(node, 1.0, 1.0)
    assert why_ended(node) == "its lease ended"


def test_a_new_lease_is_told_to_the_machines_first_watchdog(node: RealNode) -> None:
    watch = node.folder.parent / "watch"
    watch.mkdir()
    change(node.folder / "node.json", boot_watch=str(watch))
    before = time.time()
    lease(node, 3600.0, 600.0)
    assert before + 3719 <= int((watch / "end").read_text()) <= time.time() + 3720
    client = node.client()
    client.call("lease", ends_in=None, idle_s=None)
    assert (watch / "end").read_text() == "none\n"
    watch.joinpath("end").unlink()
    watch.rmdir()
    client.call("lease", ends_in=60.0, idle_s=None)
    assert client.call("hello").lease.hard_wall > before
    client.close()
