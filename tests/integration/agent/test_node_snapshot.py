"""A run that is asked for a snapshot before its lease ends saves it and goes on."""

from __future__ import annotations

import json
from typing import Any

from tests.integration.agent.conftest import RealNode, until

SAVES = """
import os, sys, time
wish, served, step = os.environ["GPUOPS_SNAPSHOT_FILE"], 0, 0
while not os.path.exists("enough"):
    step += 1
    print("step", step, flush=True)
    asked = os.stat(wish).st_mtime_ns if os.path.exists(wish) else 0
    if asked != served:
        served = asked
        with open("saved-%s.pt" % os.environ["GPUOPS_NODE"], "a") as file:
            file.write("%d\\n" % step)
    time.sleep(0.05)
"""
"""What docs/scripts.md shows, each node for itself; no handler for any signal."""


def events(node: RealNode, kind: str) -> list[dict[str, Any]]:
    lines = node.file("r-1", "events.jsonl").decode().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def saved(node: RealNode) -> int:
    """How many snapshots there are."""
    file = node.folder / f"project/saved-{node.index}.pt"
    return len(file.read_text().split()) if file.exists() else 0


def steps(node: RealNode, run: str = "r-1") -> int:
    return node.file(run, "launcher.out").count(b"step")


def goes_on(node: RealNode) -> None:
    """It is at work, and was not signalled."""
    before = steps(node)
    until(lambda: steps(node) > before + 3, "it goes on")
    assert events(node, "ask") == events(node, "term") == []


def ends_well(*nodes: RealNode) -> None:
    for node in nodes:
        (node.folder / "project/enough").touch()
    for node in nodes:
        assert node.result("r-1")["outcome"] == "done"


def reasons(node: RealNode) -> list[dict[str, Any]]:
    return [event["reason"] for event in events(node, "snapshot")]


def test_before_the_lease_ends(node: RealNode) -> None:
    """What is left is halved, where it is less than twenty minutes."""
    client = node.client()
    client.call("lease", ends_in=3600.0, idle_s=None)
    node.python("r-1", SAVES)
    goes_on(node)
    assert not (node.folder / "runs/r-1/snapshot").exists()
    client.call("lease", ends_in=40.0, idle_s=None)
    lease = json.loads((node.folder / "lease.json").read_text())
    until(lambda: saved(node) == 1, "it has saved")
    [reason] = until(lambda: reasons(node), "that it was asked is noted")
    assert (reason["kind"], reason["node"]) == ("lease", 0)
    assert reason["say"].startswith("its lease ends in ")
    assert abs(reason["at"] - lease["hard_wall"]) < 1.0
    goes_on(node)
    client.call("lease", ends_in=3600.0, idle_s=None)
    ends_well(node)
    assert saved(node) == len(reasons(node)) == 1


def test_a_further_attempt_begins_without_the_wish_of_the_one_before(node: RealNode) -> None:
    node.client().call("lease", ends_in=4.0 + 3600.0, idle_s=None)
    node.python("r-1", "import sys; sys.exit(3)", attempt=1)
    node.result("r-1")
    (node.folder / "runs/r-1/snapshot").write_text("{}")
    node.python("r-1", SAVES, attempt=2)
    until(lambda: steps(node) > 3, "the second attempt is at work")
    assert not (node.folder / "runs/r-1/snapshot").exists()
    assert saved(node) == 0
    ends_well(node)
