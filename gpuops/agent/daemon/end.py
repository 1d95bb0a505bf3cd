"""Mode `end`: a node goes, with every process of every run. Asking again is harmless."""

from __future__ import annotations

import glob
import json
import os
import shutil
import signal
import time
from typing import Any, Sequence

from gpuops.agent import processes
from gpuops.agent.files.folder import mounts_below
from gpuops.agent.node import Node, Refusal, node_of, read_json, write_json
from gpuops.agent.processes import descendants, lives, marked, table
from gpuops.agent.rpc.connect import watched
from gpuops.agent.run_files import markers

SHARED = {"agent", "env", "data"}
ORDERLY_S = 20.0
"""How long the watchdog may take to end everything by itself, in seconds."""


def main(mode: str, arguments: Sequence[str]) -> int:
    """Mode `end` prints `{"ended": n, "left": n}`, exit code 1 when something is left; mode `nodes`: `print_nodes`."""
    if mode == "nodes":
        return print_nodes(arguments)
    node, rest = node_of(arguments)
    counts = end(node) if os.path.isdir(node.dir) else {"ended": 0, "left": 0}
    if "--remove" in rest and not counts["left"]:
        try:
            remove(node)
        except FileNotFoundError:
            pass  # another one removes it as well: whether it is gone is looked at by whoever asked
        if "--root" in rest:
            remove_root(node.root)
    print(json.dumps(counts), flush=True)
    return 1 if counts["left"] else 0


def end(node: Node) -> dict[str, int]:
    """End watchdog, agent and runs; how many processes ended, and how many could not be."""
    if not os.path.exists(node.path("ended.json")):
        try:
            write_json(node.path("ended.json"), {"at": time.time(), "why": "it was ended"})
        except OSError:
            pass  # a full disk keeps nothing alive
    ours = dict(_ours(node))
    watchdog = _noted(node, "watchdog.json")
    if watchdog is not None:
        processes.send([watchdog], signal.SIGTERM)
        _wait(node)
    everyone = dict(ours)

    def left() -> set[int]:
        everyone.update(_ours(node))
        seen = table()
        return {pid for pid, start in everyone.items() if pid in seen and seen[pid].start == start}

    count = processes.end_all(left, polite_s=0.0)
    return {"ended": len(everyone) - count, "left": count}


def _wait(node: Node) -> None:
    deadline = time.monotonic() + ORDERLY_S
    while _noted(node, "watchdog.json") is not None and time.monotonic() < deadline:
        time.sleep(0.05)


def _noted(node: Node, name: str) -> int | None:
    """The process that a file names, if it lives."""
    noted = read_json(node.path(name))
    return noted["pid"] if noted and lives(noted["pid"], noted["start"]) else None


def _ours(node: Node) -> list[tuple[int, str]]:
    """(pid, start) of watchdog and agent, of all below them, and of what carries the marker of a run."""
    seen = table()
    heads = {pid for pid in (_noted(node, "watchdog.json"), _noted(node, "agent.json")) if pid is not None}
    found = heads | descendants(seen, heads) | marked(seen, markers(node))
    return [(pid, seen[pid].start) for pid in found - {os.getpid()} if pid in seen]


def remove(node: Node) -> None:
    """Remove the node's folder, and the cluster's when it is empty. node.json goes last, so it can be repeated.

    Raises Refusal(`remains`) where something cannot be removed, or is mounted there: that is not the node's.
    """
    mounted = mounts_below(node.dir) + mounts_below(node.roomy())
    if mounted:
        raise Refusal("remains", f"{mounted[0]} is mounted from elsewhere", f"unmount it: umount {mounted[0]}")
    if os.path.exists(node.path("node.json")):
        if node.scratch():
            shutil.rmtree(node.roomy(), ignore_errors=True)
        for name in os.listdir(node.dir):
            path = node.path(name)
            if name == "node.json":
                continue
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)
        remains = [name for name in os.listdir(node.dir) if name != "node.json"]
        if remains:
            raise Refusal("remains", f"{node.path(remains[0])} cannot be removed", "remove it by hand, then try again")
        os.unlink(node.path("node.json"))
    for folder in (node.dir, os.path.dirname(node.dir)):
        try:
            os.rmdir(folder)
        except OSError:
            return  # not empty: something is not ours, or another node lives there; or gone already


def remove_root(root: str) -> None:
    """Remove what all nodes of this root share (this program, environments, data sets) once no node is left.

    A cluster may be called like one of these folders: its nodes are then in there.
    """
    nodes = glob.glob(os.path.join(glob.escape(root), "*", "n*", "node.json"))
    try:
        if set(os.listdir(root)) <= SHARED and not nodes and not mounts_below(root):
            for name in SHARED:
                shutil.rmtree(os.path.join(root, name), ignore_errors=True)
            os.rmdir(root)
    except OSError:
        pass  # gone already, or something is not ours


def print_nodes(arguments: Sequence[str]) -> int:
    """`--root DIR [--host NAME]`: prints `{"nodes": [{"folder", "state", …node.json…}]}`.

    `NAME` is what the provisioner calls this machine: where several share one home, each tells of its own nodes.
    """
    options = dict(zip(arguments[::2], arguments[1::2]))
    if not options.get("--root"):
        raise Refusal("usage", "the folder of all nodes is missing", "add --root DIR")
    folders = sorted(glob.glob(os.path.join(glob.escape(options["--root"]), "*", "n*")))
    nodes = [look(Node(folder)) for folder in folders if os.path.basename(folder)[1:].isdigit()]
    host = options.get("--host")
    mine = [node for node in nodes if host is None or node.get("host") in (None, host)]
    print(json.dumps({"nodes": mine}), flush=True)
    return 0


def look(node: Node) -> dict[str, Any]:
    """A node whose life is over still lies there until somebody removes it: `ended`. One that a reboot left
    without processes can go on, and is `running`."""
    ended = os.path.exists(node.path("ended.json")) and not watched(node)
    return {**node.settings(), "folder": node.dir, "state": "ended" if ended else "running"}
