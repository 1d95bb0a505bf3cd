"""Mode `init`: a node comes to life. Asking again changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any, Sequence

from gpuops.agent import lease, local_disk
from gpuops.agent.node import Node, Refusal, node_of, program, write_json
from gpuops.agent.rpc.connect import ask, refuse_ended, watched

ANSWER_S = 45.0
"""How long a new agent may take to answer, in seconds."""


def main(_mode: str, arguments: Sequence[str]) -> int:
    """Reads `{"node": …, "lease": {"boot_in", "ends_in", "idle_s"}}` on stdin; prints both process numbers.

    With `--revive` nothing is read: a node whose processes a reboot has ended goes on, under the lease it had.
    """
    node, rest = node_of(arguments)
    if "--revive" in rest:
        if not node.settings():
            raise Refusal("no-node", f"there is no node in {node.dir}", "it was removed, or never started")
        os.chdir(node.dir)
        refuse_ended(node)
        return _answer(node)
    try:
        document = json.loads(sys.stdin.read())
        settings, wish = dict(document["node"]), dict(document["lease"])
    except (ValueError, KeyError, TypeError):
        raise Refusal("usage", "init needs one JSON document on its input", "it is started by gpuops") from None
    prepare(node, settings, wish)
    return _answer(node)


def _answer(node: Node) -> int:
    if not watched(node):
        start_watchdog(node)
    print(json.dumps(wait_for_agent(node)), flush=True)
    return 0


def prepare(node: Node, settings: dict[str, Any], wish: dict[str, float | None]) -> None:
    """Make the folder and its files; those that exist stay, so a restart does not restart the lease's count.

    Raises Refusal(`ended`, `foreign`).
    """
    os.makedirs(node.path("runs"), mode=0o700, exist_ok=True)
    os.chmod(node.dir, 0o700)
    os.chdir(node.dir)
    refuse_ended(node)
    refuse_foreign(node.settings(), settings)
    if not os.path.exists(node.path("node.json")):
        disk = settings.get("scratch")
        write_json(node.path("node.json"), {**settings, "scratch": local_disk.lay(node, disk)} if disk else settings)
    if not os.path.exists(node.path("lease.json")):
        ends = (wish.get("boot_in"), wish.get("ends_in"), wish.get("idle_s"))
        write_json(node.path("lease.json"), lease.first(lease.read_clocks(), *ends))
        node.touch()


def refuse_foreign(present: dict[str, Any], asked: dict[str, Any]) -> None:
    """Raises Refusal(`foreign`) when the node that is here is another's, or was made by another attempt."""
    if not present:
        return
    for name in ("owner", "cluster"):
        if present.get(name) != asked.get(name):
            theirs = f"owner {present.get('owner')}, cluster {present.get('cluster')}"
            raise Refusal("foreign", f"this folder belongs to another gpuops ({theirs})", "take another machine")
    if present.get("token") != asked.get("token"):
        raise Refusal(
            "foreign",
            f"this folder belongs to a node of {present.get('cluster')} that was made before",
            "end that one first: gpuops down, or gpuops reap where nobody remembers it",
        )


def start_watchdog(node: Node) -> None:
    """Start it detached: a session of its own, no stdio of ours, the node's folder as working directory."""
    with open_log(node, "watchdog.log") as errors:
        subprocess.Popen(
            [*program(), "watchdog", "--node", node.dir],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            cwd=node.dir,
            start_new_session=True,
        )


def open_log(node: Node, name: str) -> Any:
    """A log file to append to, for this user's eyes only."""
    return os.fdopen(os.open(node.path(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")


def wait_for_agent(node: Node) -> dict[str, Any]:
    """`{"watchdog": pid, "agent": pid}` once the agent answers. Raises Refusal(`no-agent`, `ended`)."""
    deadline = time.monotonic() + ANSWER_S
    while time.monotonic() < deadline:
        refuse_ended(node)
        try:
            answer = ask("ping", {}, limit_s=5.0)
            return {"watchdog": answer["watchdog"], "agent": answer["agent"]}
        except (OSError, ValueError, KeyError):
            time.sleep(0.02)
    raise Refusal("no-agent", f"the agent did not answer within {ANSWER_S:.0f} s", "see watchdog.log and agent.log")
