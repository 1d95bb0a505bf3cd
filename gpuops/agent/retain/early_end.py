"""When a node that was brought up for one run has nothing left to live for: its results are safe elsewhere.

Decided by the agent, which knows who is connected, and noted in `over.json`, which the watchdog obeys.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Mapping, Sequence

from gpuops.agent import lease, presence, sessions
from gpuops.agent.node import Node, log, read_json, write_json
from gpuops.agent.retain import bucket, sink

FILE = "over.json"
LOOK_S = 1.0
PRESENT_S = 120.0
"""Who has said nothing for so long is not there, whatever their connection seems to be: a laptop fell asleep."""
LEFT_S = 20.0
"""Who is not connected any more may come back within so long: a guard that takes over from a command."""
OTHERS_S = 600.0
"""How long a node waits in vain for the others' results to be safe as well, in seconds: some providers end the
machines of a cluster together. One that shows that it goes on is not waited for in vain."""


def may_end(present: bool, all_safe: bool, waited_s: float) -> bool:
    """Whether a node whose results are safe ends now. `present`: somebody is here, and sees to it themselves."""
    return not present and (all_safe or waited_s >= OTHERS_S)


def watch(node: Node, name: str) -> None:
    """In a thread of its own: end this node once it may, where its run asked for that and its results are safe."""
    spec, state = read_json(os.path.join(node.run(name), "spec.json")) or {}, sink.known(node, name) or {}
    if (spec.get("sink") or {}).get("end") and state.get("state") == "safe":
        threading.Thread(target=_watch, args=(node, spec, state["folder"]), name="over " + name, daemon=True).start()


def _watch(node: Node, spec: Mapping[str, Any], folder: str) -> None:
    used = Used(lease.touched(node))
    others, seen = Others(), _Seen(node, spec, folder)
    while True:
        if lease.is_live():
            return  # another run is on: this node is there for more than one
        waited_s = others.waited_s(seen.alive(), time.monotonic())
        if may_end(_is_present(node, used), seen.all_safe(), waited_s) and not sessions.at_work(node):
            break
        time.sleep(LOOK_S)
    try:
        write_json(node.path(FILE), {"why": f"its results are safe in {folder}"})
    except OSError as error:
        log(f"this node stays until its lease ends: {error}")


class _Seen:
    """What is seen of a run's nodes where it is kept."""

    def __init__(self, node: Node, spec: Mapping[str, Any], folder: str) -> None:
        self._bucket = bucket.Others(node.run(spec["run"])) if bucket.is_one(spec) else None
        self._folder = folder
        self._nodes = int(spec["nodes"])

    def all_safe(self) -> bool:
        return self._bucket.all_safe(self._nodes) if self._bucket else all_safe(self._folder, self._nodes)

    def alive(self) -> Sequence[Any]:
        return self._bucket.alive() if self._bucket else alive(self._folder, self._nodes)


def all_safe(folder: str, nodes: int) -> bool:
    return all(os.path.exists(os.path.join(folder, f"node{index}", sink.SAFE)) for index in range(nodes))


def alive(folder: str, nodes: int) -> list[float]:
    """When each node last showed that it goes on, by its own clock."""
    return [_touched(os.path.join(folder, f"node{index}", sink.ALIVE)) for index in range(nodes)]


def _touched(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


class Others:
    """How long nothing was seen of the other nodes, by the clock of this one."""

    def __init__(self) -> None:
        self._seen: Sequence[Any] | None = None
        self._since = 0.0

    def waited_s(self, seen: Sequence[Any], mono: float) -> float:
        """`seen`: what `alive` says now; `mono`: monotonic seconds."""
        if seen != self._seen:
            self._seen, self._since = seen, mono
        return mono - self._since


class Used:
    """How long ago `activity` was touched by somebody since we began to look; our own work was over by then."""

    def __init__(self, touched: float) -> None:
        self._touched = touched
        self._at = float("-inf")

    def within(self, touched: float, mono: float, limit_s: float) -> bool:
        """`touched`: the file's mtime; `mono`: monotonic seconds."""
        if touched != self._touched:
            self._touched, self._at = touched, mono
        return mono - self._at < limit_s


def _is_present(node: Node, used: Used) -> bool:
    talking = is_there(presence.count(), presence.silent_s())
    return talking or used.within(lease.touched(node), time.monotonic(), PRESENT_S)


def is_there(connected: int, silent_s: float) -> bool:
    """Whether a client sees to this node. `silent_s`: seconds since one was heard of."""
    return silent_s < (PRESENT_S if connected else LEFT_S)


def why(node: Node) -> str:
    """Why this node's life is over; empty where it is not."""
    return str((read_json(node.path(FILE)) or {}).get("why") or "")
