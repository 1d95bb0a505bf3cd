"""Asks whoever trains to save a snapshot and to go on: before its node's lease ends, and where the node's provider says
that it may take the machine back soon.

Asked by a file that appears, or is written anew (`$GPUOPS_SNAPSHOT_FILE`), and by no signal: SIGUSR1 means stop, and
ends a program that has no handler for it.
"""

from __future__ import annotations

import math
import os
import threading
import time
from typing import Any, Callable, Mapping, NamedTuple

from gpuops.agent import lease, run_files
from gpuops.agent.node import Node, log, write_json

LEAD_S = 600.0
"""So long before a node's end a snapshot is asked for; of a run with less than twice that left, halfway."""
MOVED_S = 30.0
"""An end that was moved by more is another one. A client that tells the same end again is never so far off."""
ONE_S = 30.0
"""What is asked within so many seconds is one request: all nodes of a run near their end, and tell each other."""
LOOK_S = 2.0


class Plan(NamedTuple):
    """For one end of a node; both by the machine's monotonic clock."""

    end: float
    ask: float
    """When a snapshot is asked for; infinite once it was."""


def plan(before: Plan | None, left_s: float | None, now: float) -> Plan | None:
    """What holds from `now` on; `left_s`: seconds until the node's hard end, None where it has none."""
    if left_s is None or left_s <= 0:
        return None
    end = now + left_s
    if before is not None and abs(end - before.end) <= MOVED_S:
        return before
    return Plan(end, end - min(LEAD_S, left_s / 2))


class Saving:
    """What one run is asked for. `note(kind, reason=…)` writes an event of the run."""

    def __init__(
        self, node: Node, spec: Mapping[str, Any], note: Callable[..., None], clocks: Callable[[], lease.Now]
    ) -> None:
        self._node = node
        self._index: int = spec["node"]
        self._file = os.path.join(node.run(spec["run"]), run_files.SNAPSHOT)
        self._note = note
        self._clocks = clocks
        self._lock = threading.Lock()
        self._plan: Plan | None = None
        self._looked = self._asked = -math.inf
        self._heard: set[tuple[int, float]] = set()

    def due(self) -> dict[str, Any] | None:
        """Why a snapshot is to be asked for now, once for each end of the lease."""
        if time.monotonic() - self._looked < LOOK_S:
            return None
        self._looked = time.monotonic()
        now = self._clocks()
        left_s = lease.hard_left(lease.read(self._node), now)
        self._plan = plan(self._plan, left_s, now.mono)
        if self._plan is None or left_s is None or now.mono < self._plan.ask:
            return None
        self._plan = self._plan._replace(ask=math.inf)
        say = f"its lease ends in {lease.spoken(left_s)}"
        return {"kind": "lease", "say": say, "at": now.wall + left_s, "node": self._index}

    def ask(self, reason: Mapping[str, Any]) -> bool:
        """Ask now. False where that was done a moment ago, which serves this reason as well."""
        with self._lock:
            if self._clocks().mono - self._asked < ONE_S:
                return False
            self._asked = self._clocks().mono
        try:
            write_json(self._file, reason)
        except OSError as error:
            log(f"a snapshot could not be asked for: {error}")  # a full disk has no room for one either
            return False
        self._note("snapshot", reason=reason)
        return True

    def hear(self, event: Mapping[str, Any]) -> None:
        """Another node of the run asks. What a link says again when it comes back, own words too, is no request."""
        said = (event["node"], event["at"])
        if event["node"] != self._index and said not in self._heard:
            self._heard.add(said)
            self.ask({**event["reason"], "from": event["node"]})
