"""Asks a run to save a snapshot and go on: before its node's lease ends, and when its machine may be preempted.

The request is a file that appears, or gets another mtime (`$GPUOPS_SNAPSHOT_FILE`). It is no signal: SIGUSR1 means
stop, and ends a program without a handler for it.
"""

from __future__ import annotations

import math
import os
import threading
import time
from typing import Callable, NamedTuple

from gpuops.agent import lease_clock, run_files
from gpuops.agent.node import Node, log, write_json
from gpuops.agent.peers.events import SnapshotRequested
from gpuops.agent.run_documents import LaunchSpec, Reason

REQUEST_LEAD_S = 600.0
"""Time between the request and the node's end; half of what is left where that is shorter."""
SAME_END_S = 30.0
"""Ends that differ by less are the same: a client that renews a lease with the same end is never further off."""
SAME_REQUEST_S = 30.0
"""Requests within this time are one: all nodes of a run come near their end together, and tell each other."""
LEASE_CHECK_INTERVAL_S = 2.0


class RequestPlan(NamedTuple):
    """For one end of a node; both by the machine's monotonic clock."""

    end: float
    ask: float
    """When to ask for a snapshot; infinite after that."""


def plan_request(before: RequestPlan | None, left_s: float | None, now: float) -> RequestPlan | None:
    """The plan from `now` on; `left_s`: seconds until the node's hard end, None without one."""
    if left_s is None or left_s <= 0:
        return None
    end = now + left_s
    if before is not None and abs(end - before.end) <= SAME_END_S:
        return before
    return RequestPlan(end, end - min(REQUEST_LEAD_S, left_s / 2))


class SnapshotRequests:
    """The requests to one run. `event(kind, reason=…)` records an event of the run."""

    def __init__(
        self, node: Node, spec: LaunchSpec, event: Callable[..., None], clocks: Callable[[], lease_clock.ClockReading]
    ) -> None:
        self._node = node
        self._index = spec.node
        self._file = os.path.join(node.run(spec.run), run_files.SNAPSHOT_FILE)
        self._event = event
        self._clocks = clocks
        self._lock = threading.Lock()
        self._plan: RequestPlan | None = None
        self._checked = self._asked = -math.inf
        self._received: set[tuple[int, float]] = set()

    def due(self) -> Reason | None:
        """The reason to ask for a snapshot now; not None once for each end of the lease."""
        if time.monotonic() - self._checked < LEASE_CHECK_INTERVAL_S:
            return None
        self._checked = time.monotonic()
        now = self._clocks()
        left_s = lease_clock.hard_end_s(lease_clock.read_lease(self._node), now)
        self._plan = plan_request(self._plan, left_s, now.mono)
        if self._plan is None or left_s is None or now.mono < self._plan.ask:
            return None
        self._plan = self._plan._replace(ask=math.inf)
        say = f"its lease ends in {lease_clock.format_duration(left_s)}"
        return Reason("lease", say, at=now.wall + left_s, node=self._index)

    def ask(self, reason: Reason) -> bool:
        """Ask now. False where another request within SAME_REQUEST_S serves this reason as well."""
        with self._lock:
            if self._clocks().mono - self._asked < SAME_REQUEST_S:
                return False
            self._asked = self._clocks().mono
        try:
            write_json(self._file, reason.document())
        except OSError as error:
            log(f"a snapshot could not be asked for: {error}")  # a full disk has no room for one either
            return False
        self._event("snapshot", reason=reason.document())
        return True

    def receive(self, event: SnapshotRequested) -> None:
        """Another node of the run asks. A link that reconnects repeats events, also our own: these are no requests."""
        key = (event.node, event.at)
        if event.node != self._index and key not in self._received:
            self._received.add(key)
            self.ask(event.reason._replace(sender=event.node))
