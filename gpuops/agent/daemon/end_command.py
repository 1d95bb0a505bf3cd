"""Modes `end` and `nodes`: end a node with every process of every run, remove its folder; list the nodes of a root.

Repeating `end` is harmless: what has ended or was removed already counts as success.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import signal
import time
from contextlib import suppress
from typing import Any, Sequence

from gpuops.agent import processes
from gpuops.agent.files.folder import mounts_below
from gpuops.agent.node import Node, Refusal, parse_node, parse_options, read_json, write_json
from gpuops.agent.process_table import descendants, find_marked, is_living, list_processes
from gpuops.agent.rpc.connect import is_watched
from gpuops.agent.run_files import run_markers

SHARED = {"agent", "env", "data"}
"""Folders of a root that all its nodes use."""
GONE = ".gone-"
"""Behind the name of a root that is being deleted, and before the number of the process that does it."""
WATCHDOG_END_LIMIT_S = 20.0
"""Time that the watchdog may take to end everything by itself."""
WATCHDOG_POLL_INTERVAL_S = 0.01


def main(mode: str, arguments: Sequence[str]) -> int:
    """Mode `end` prints `{"ended": n, "left": n}`, exit code 1 if processes are left; with `--root`, `nodes` as well:
    what is left under the root then. `--token T`: a node with another one, made in the place of the one that is meant,
    stays. Mode `nodes`: `print_nodes`."""
    if mode == "nodes":
        return print_nodes(arguments)
    node, rest = parse_node(arguments)
    token = _word_behind(rest, "--token")
    is_meant = not token or node.settings_document().get("token", token) == token
    answer: dict[str, Any] = {"ended": 0, "left": 0}
    if is_meant and os.path.isdir(node.dir):
        answer.update(end_node(node))
    if "--remove" in rest and not answer["left"]:
        try:
            if is_meant:
                remove_node(node)
        except FileNotFoundError:
            pass  # another process removes it as well; the caller checks that it is gone
        if "--root" in rest:
            remove_root(node.root)
            answer["nodes"] = list_nodes(node.root, _word_behind(rest, "--host"))
    print(json.dumps(answer), flush=True)
    return 1 if answer["left"] else 0


def _word_behind(words: Sequence[str], option: str) -> str | None:
    return words[words.index(option) + 1] if option in words[:-1] else None


def end_node(node: Node) -> dict[str, int]:
    """End watchdog, agent and runs. Returns how many processes ended, and how many are left."""
    if not os.path.exists(node.path("ended.json")):
        try:
            write_json(node.path("ended.json"), {"at": time.time(), "why": "it was ended"})
        except OSError:
            pass  # a full disk must not keep a node alive
    node_processes = dict(_find_processes(node))
    watchdog = _living_pid(node, "watchdog.json")
    if watchdog is not None:
        processes.send_signal([watchdog], signal.SIGTERM)
        _wait_for_watchdog(node)

    def remaining() -> set[int]:
        node_processes.update(_find_processes(node))
        living = list_processes()
        return {pid for pid, start in node_processes.items() if pid in living and living[pid].start == start}

    count = processes.end_all(remaining, term_grace_s=0.0)
    return {"ended": len(node_processes) - count, "left": count}


def _wait_for_watchdog(node: Node) -> None:
    deadline = time.monotonic() + WATCHDOG_END_LIMIT_S
    while _living_pid(node, "watchdog.json") is not None and time.monotonic() < deadline:
        time.sleep(WATCHDOG_POLL_INTERVAL_S)


def _living_pid(node: Node, name: str) -> int | None:
    """Number of the process recorded in a file, if it lives."""
    record = read_json(node.path(name))
    return record["pid"] if record and is_living(record["pid"], record["start"]) else None


def _find_processes(node: Node) -> list[tuple[int, str]]:
    """(pid, start) of watchdog and agent, of their descendants, and of processes with the marker of a run."""
    living = list_processes()
    daemons = {pid for pid in (_living_pid(node, "watchdog.json"), _living_pid(node, "agent.json")) if pid is not None}
    pids = daemons | descendants(living, daemons) | find_marked(living, run_markers(node))
    return [(pid, living[pid].start) for pid in pids - {os.getpid()} if pid in living]


def remove_node(node: Node) -> None:
    """Remove the node's folder, and the cluster's when it is empty. node.json goes last, so that it can be repeated.

    Raises Refusal(`remains`) where something cannot be removed, or is mounted there and so not the node's.
    """
    mounted = mounts_below(node.dir) + mounts_below(node.large_trees())
    if mounted:
        raise Refusal("remains", f"{mounted[0]} is mounted from elsewhere", f"unmount it: umount {mounted[0]}")
    if os.path.exists(node.path("node.json")):
        if node.scratch():
            shutil.rmtree(node.large_trees(), ignore_errors=True)
        for name in os.listdir(node.dir):
            path = node.path(name)
            if name == "node.json":
                continue
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                with suppress(OSError):
                    os.unlink(path)
        remains = [name for name in os.listdir(node.dir) if name != "node.json"]
        if remains:
            raise Refusal("remains", f"{node.path(remains[0])} cannot be removed", "remove it by hand, then try again")
        os.unlink(node.path("node.json"))
    for folder in (node.dir, os.path.dirname(node.dir)):
        try:
            os.rmdir(folder)
        except OSError:
            return  # another node or somebody's files are in it, or it was removed already


def remove_root(root: str) -> None:
    """Remove the shared folders (this program, environments, data sets) once no node of this root is left.

    They are deleted under another name, beside the root: that takes minutes, and what is created here meanwhile has a
    root of its own. What an earlier removal left is deleted, too.
    """
    removed = f"{root}{GONE}{os.getpid()}"
    try:
        if _holds_no_node(root):
            os.rename(root, removed)
            if not _holds_no_node(removed):
                os.rename(removed, root)  # a node was created in this moment
    except OSError:
        pass  # removed already
    for folder in glob.glob(f"{glob.escape(root)}{GONE}*"):
        if _holds_no_node(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _holds_no_node(root: str) -> bool:
    """Whether nothing but shared folders is in a root, and nothing mounted. False where there is no such folder.

    A cluster may have the name of a shared folder: its nodes then lie in that folder.
    """
    nodes = glob.glob(os.path.join(glob.escape(root), "*", "n*", "node.json"))
    try:
        return not mounts_below(root) and not nodes and set(os.listdir(root)) <= SHARED
    except OSError:
        return False


def print_nodes(arguments: Sequence[str]) -> int:
    """`--root DIR [--host NAME]`: prints `{"nodes": [{"folder", "state", …node.json…}]}`.

    `NAME` is the provisioner's name of this machine: where machines share one home, each lists only its own nodes.
    """
    options = parse_options(arguments)
    if not options.get("root"):
        raise Refusal("usage", "the folder of all nodes is missing", "add --root DIR")
    print(json.dumps({"nodes": list_nodes(options["root"], options.get("host"))}), flush=True)
    return 0


def list_nodes(root: str, host: str | None) -> list[dict[str, Any]]:
    """Each node under a root, of this `host` alone where it is named."""
    folders = sorted(glob.glob(os.path.join(glob.escape(root), "*", "n*")))
    nodes = [describe_node(Node(folder)) for folder in folders if os.path.basename(folder)[1:].isdigit()]
    return [node for node in nodes if host is None or node.get("host") in (None, host)]


def describe_node(node: Node) -> dict[str, Any]:
    """The node's settings, `folder` and `state`.

    `ended`: its life is over and its folder still exists. A node that a reboot left without processes can go on, and
    is `running`.
    """
    ended = os.path.exists(node.path("ended.json")) and not is_watched(node)
    return {**node.settings_document(), "folder": node.dir, "state": "ended" if ended else "running"}
