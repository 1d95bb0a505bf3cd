"""Mode `init`: a node starts. Repeating it changes nothing."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Sequence

from gpuops.agent import lease_clock
from gpuops.agent.daemon.start_mode import start_mode
from gpuops.agent.files import local_disk
from gpuops.agent.node import Node, Refusal, parse_node, remove_file, write_json
from gpuops.agent.rpc.connect import ask, is_watched, refuse_ended

AGENT_START_LIMIT_S = 45.0
"""Time that a new agent may take to answer."""
REMAINS = ("ended.json", "lease.json", "live.json", "over.json")
"""What tells of a node's life: without node.json it is of an earlier one, whose removal was cut short."""
PING_LIMIT_S = 5.0
PING_INTERVAL_S = 0.02


def main(_mode: str, arguments: Sequence[str]) -> int:
    """Read `{"node": …, "lease": {"boot_in", "ends_in", "idle_s"}}` from stdin; print both process numbers.

    With `--revive` nothing is read: a node whose processes ended with a reboot goes on, under the lease it had.
    """
    node, rest = parse_node(arguments)
    if "--revive" in rest:
        if not node.settings_document():
            raise Refusal("no-node", f"there is no node in {node.dir}", "it was removed, or never started")
        os.chdir(node.dir)
        refuse_ended(node)
        return _answer(node)
    try:
        document = json.loads(sys.stdin.read())
        settings, lease_request = dict(document["node"]), dict(document["lease"])
    except (ValueError, KeyError, TypeError):
        raise Refusal("usage", "init needs one JSON document on its input", "it is started by gpuops") from None
    prepare_node(node, settings, lease_request)
    return _answer(node)


def _answer(node: Node) -> int:
    if not (node.settings().contained or is_watched(node)):
        start_mode(node, "watchdog")
    print(json.dumps(wait_for_agent(node)), flush=True)
    return 0


def prepare_node(node: Node, settings: dict[str, Any], lease_request: dict[str, float | None]) -> None:
    """Make the folder and its files; existing ones stay, so that a restart does not extend the lease.

    Raises Refusal(`ended`, `foreign`).
    """
    has_remains = os.path.isdir(node.dir) and not os.path.exists(node.path("node.json"))
    os.makedirs(node.path("runs"), mode=0o700, exist_ok=True)
    os.chmod(node.dir, 0o700)
    os.chdir(node.dir)
    for name in REMAINS if has_remains else ():  # in a new folder, `ended.json` is of an end that has just come
        remove_file(node.path(name))
    refuse_ended(node)
    refuse_foreign(node.settings_document(), settings)
    if not os.path.exists(node.path("node.json")):
        disk = settings.get("scratch")
        write_json(node.path("node.json"), {**settings, "scratch": local_disk.set_up(node, disk)} if disk else settings)
    if not os.path.exists(node.path("lease.json")):
        ends = (lease_request.get("boot_in"), lease_request.get("ends_in"), lease_request.get("idle_s"))
        lease_clock.store_lease(node, lease_clock.first_lease(lease_clock.read_clocks(), *ends))
        node.touch()


def refuse_foreign(present: dict[str, Any], requested: dict[str, Any]) -> None:
    """Raises Refusal(`foreign`) where the present node belongs to another owner, or to another attempt."""
    if not present:
        return
    for name in ("owner", "cluster"):
        if present.get(name) != requested.get(name):
            theirs = f"owner {present.get('owner')}, cluster {present.get('cluster')}"
            raise Refusal("foreign", f"this folder belongs to another gpuops ({theirs})", "take another machine")
    if present.get("token") != requested.get("token"):
        raise Refusal(
            "foreign",
            f"this folder belongs to a node of {present.get('cluster')} that was made before",
            "end that one first: gpuops down, or gpuops reap where nobody remembers it",
        )


def wait_for_agent(node: Node) -> dict[str, Any]:
    """`{"watchdog": pid, "agent": pid}` once the agent answers. Raises Refusal(`no-agent`, `ended`)."""
    deadline = time.monotonic() + AGENT_START_LIMIT_S
    while time.monotonic() < deadline:
        refuse_ended(node)
        try:
            answer = ask("ping", {}, PING_LIMIT_S)
            return {"watchdog": answer["watchdog"], "agent": answer["agent"]}
        except (OSError, ValueError, KeyError):
            time.sleep(PING_INTERVAL_S)
    raise Refusal(
        "no-agent",
        f"the agent did not answer within {AGENT_START_LIMIT_S:.0f} s",
        "see watchdog.log and agent.log",
    )
