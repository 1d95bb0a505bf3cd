"""Results that exist only here: the node waits for a client to download them, instead of its idle time.

The state is in files, since neither the agent nor the watchdog may have lived all the time: a run is held from its
`result.json` on, until `home.json` says that its results are where its user wants them.
"""

from __future__ import annotations

import os
import time
from typing import Any

from gpuops.agent import run_files
from gpuops.agent.node import Emit, Node, write_json
from gpuops.agent.run_documents import LaunchSpec, Reason

HOME = "home.json"


class HeldRuns:
    """The held runs of one node. A run that asks for no hold is read once only."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._durations: dict[str, float] = {}
        """Held runs, and the seconds for which each asks to be held."""
        self._never_held: set[str] = set()

    def hold_s(self) -> float | None:
        """For how many seconds results are held: the longest time of all runs. None: nothing is held."""
        for name in self._node.runs():
            if name not in self._never_held:
                self._check(name)
        return max(self._durations.values(), default=None)

    def _check(self, name: str) -> None:
        folder = self._node.run(name)
        if is_downloaded(folder):
            self._durations.pop(name, None)  # for now: files that another node hands over are held again
        elif name not in self._durations and (reason := run_files.read_end_reason(folder)):
            try:
                hold_s = hold_duration_s(run_files.read_spec(self._node, name), reason)
            except (AttributeError, KeyError, TypeError, ValueError):
                hold_s = None  # a spec that cannot be read holds nothing, and must not stop the watchdog
            if hold_s is None:
                self._never_held.add(name)
            else:
                self._durations[name] = hold_s


def hold_duration_s(spec: LaunchSpec | None, end_reason: Reason) -> float | None:
    """For how many seconds the results of an ended run are held; None if it never started, or does not ask for it."""
    return None if spec is None or end_reason.kind == "start" else spec.hold_s


def home(node: Node, args: dict[str, Any], _emit: Emit) -> dict[str, Any]:
    """Verb: a client has downloaded everything that the run left here; the node holds it no longer."""
    folder = node.run(args["run"])
    if not os.path.isdir(folder):
        raise run_files.unknown_run(args["run"])
    record_download(folder)
    spec = run_files.read_spec(node, args["run"])
    if spec and spec.uses_bucket:
        from gpuops.agent.result_storage import bucket_sink

        bucket_sink.finish(folder)
    return {}


def is_downloaded(folder: str) -> bool:
    """Whether a run's results are safe elsewhere."""
    return os.path.exists(os.path.join(folder, HOME))


def holds_handed_files(folder: str) -> bool:
    """Whether files that another node has handed over exist only here."""
    return os.path.exists(os.path.join(folder, run_files.HANDED_FILE)) and not is_downloaded(folder)


def record_download(folder: str) -> None:
    """Record that a run's results are safe elsewhere. Raises OSError."""
    write_json(os.path.join(folder, HOME), {"at": time.time()})
