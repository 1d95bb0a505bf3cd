"""A node that was started for one run ends once its results are safe elsewhere and no client is there.

The agent decides it, since it knows who is connected, and writes `over.json`, which the watchdog obeys.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Sequence

from gpuops.agent import client_activity, lease_clock, run_files
from gpuops.agent.node import Node, log, modified_at, read_json, write_json
from gpuops.agent.result_storage import sink, wait_for_download
from gpuops.agent.run_documents import LaunchSpec, SinkPhase
from gpuops.agent.workers import WORKERS

if TYPE_CHECKING:
    from gpuops.agent.result_storage.bucket_sink import StoredArchives

END_FILE = "over.json"
POLL_INTERVAL_S = 1.0
PRESENT_TIMEOUT_S = 120.0
"""A connected client that was silent for longer does not count as present: its laptop fell asleep."""
RECONNECT_TIMEOUT_S = 20.0
"""Time in which a client may reconnect: a guard that takes over from a command."""
OTHERS_LIMIT_S = 600.0
"""How long a node waits for the results of other nodes to be safe as well while none of them shows progress: some
providers end the machines of a cluster together."""


def may_end(is_present: bool, all_safe: bool, waited_s: float) -> bool:
    """Whether a node whose results are safe ends now. A present client ends it by itself."""
    return not is_present and (all_safe or waited_s >= OTHERS_LIMIT_S)


def start_watch(node: Node, name: str) -> None:
    """End this node once it may, from a thread, if its run asked for that and its results are safe."""
    spec, state = run_files.read_spec(node, name), sink.read_state(node, name)
    if not (spec and spec.sink and spec.sink.end and state and state.state == SinkPhase.SAFE):
        return
    WORKERS.start(partial(_end_when_stored, node, spec, state.folder or ""), "over " + name)


def _end_when_stored(node: Node, spec: LaunchSpec, folder: str) -> None:
    activity = LastActivity(lease_clock.last_used_at(node))
    stall, nodes = StallTimer(), _StoredNodes(node, spec, folder)
    while True:
        if lease_clock.is_run_live():
            return  # another run is on: this node serves more than one
        waited_s = stall.seconds(nodes.alive(), time.monotonic())
        if (
            may_end(_is_present(node, activity), nodes.all_safe(), waited_s)
            and not wait_for_download.holds_handed_files(node.run(spec.run))
            and not client_activity.is_person_at_work(node)
        ):
            break
        time.sleep(POLL_INTERVAL_S)
    try:
        write_json(node.path(END_FILE), {"why": f"its results are safe in {folder}"})
    except OSError as error:
        log(f"this node stays until its lease ends: {error}")


class _StoredNodes:
    """The state of a run's nodes, as their sink shows it."""

    def __init__(self, node: Node, spec: LaunchSpec, folder: str) -> None:
        self._bucket: StoredArchives | None = None
        if spec.uses_bucket:
            from gpuops.agent.result_storage.bucket_sink import StoredArchives

            self._bucket = StoredArchives(node.run(spec.run))
        self._folder = folder
        self._nodes = spec.nodes

    def all_safe(self) -> bool:
        return self._bucket.all_safe(self._nodes) if self._bucket else all_safe(self._folder, self._nodes)

    def alive(self) -> Sequence[Any]:
        return self._bucket.alive() if self._bucket else last_progress_times(self._folder, self._nodes)


def all_safe(folder: str, nodes: int) -> bool:
    return all(os.path.exists(os.path.join(folder, f"node{index}", sink.SAFE)) for index in range(nodes))


def last_progress_times(folder: str, nodes: int) -> list[float]:
    """When each node last showed progress, by the file system's clock."""
    return [modified_at(os.path.join(folder, f"node{index}", sink.ALIVE)) for index in range(nodes)]


class StallTimer:
    """For how long the other nodes have shown no progress, by this node's clock."""

    def __init__(self) -> None:
        self._signs: Sequence[Any] | None = None
        self._since = 0.0

    def seconds(self, signs: Sequence[Any], now: float) -> float:
        """`signs`: the last sign of progress of each node, as it is now; `now`: monotonic seconds."""
        if signs != self._signs:
            self._signs, self._since = signs, now
        return now - self._since


class LastActivity:
    """When a client last touched `activity` after this run's end; the run's own touches are older."""

    def __init__(self, touched: float) -> None:
        self._touched = touched
        self._at = float("-inf")

    def within(self, touched: float, now: float, limit_s: float) -> bool:
        """Whether the last touch was at most `limit_s` ago. `touched`: the file's mtime; `now`: monotonic seconds."""
        if touched != self._touched:
            self._touched, self._at = touched, now
        return now - self._at < limit_s


def _is_present(node: Node, activity: LastActivity) -> bool:
    is_connected = is_attended(client_activity.count_clients(), client_activity.silent_for_s())
    return is_connected or activity.within(lease_clock.last_used_at(node), time.monotonic(), PRESENT_TIMEOUT_S)


def is_attended(connected: int, silent_s: float) -> bool:
    """Whether a client attends to this node. `silent_s`: seconds since any client was heard."""
    return silent_s < (PRESENT_TIMEOUT_S if connected else RECONNECT_TIMEOUT_S)


def end_reason(node: Node) -> str:
    """Why this node may end; empty where it may not."""
    return str((read_json(node.path(END_FILE)) or {}).get("why") or "")
