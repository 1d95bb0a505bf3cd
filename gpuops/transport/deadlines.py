"""Actions at a time that mostly does not come, all by one thread: limits of what is waited for elsewhere."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable

from gpuops.agent.workers import WORKERS


class Deadline:
    """One action to come."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act: Callable[[], object] | None = act

    def cancel(self) -> None:
        """Leave it undone, unless it has begun."""
        self.act = None


class Deadlines:
    """Thread-safe. Its thread runs as long as there is a deadline."""

    def __init__(self) -> None:
        self._ordered: list[tuple[float, int, Deadline]] = []
        self._ids = itertools.count()
        self._changed = threading.Condition()
        self._runs = False

    def after(self, seconds: float, act: Callable[[], object]) -> Deadline:
        """Call `act` after so many seconds, in a thread of its own: it may block."""
        deadline = Deadline(act)
        with self._changed:
            heapq.heappush(self._ordered, (time.monotonic() + seconds, next(self._ids), deadline))
            if not self._runs:
                self._runs = True
                WORKERS.start(self._watch, "deadlines")
            elif self._ordered[0][2] is deadline:
                self._changed.notify()
        return deadline

    def _watch(self) -> None:
        while (deadline := self._next()) is not None:
            if (act := deadline.act) is not None:
                WORKERS.start(act, "deadline")

    def _next(self) -> Deadline | None:
        """Waits for the next one that is due; None where there is none any more."""
        with self._changed:
            while self._ordered:
                due, _, deadline = self._ordered[0]
                left_s = due - time.monotonic()
                if deadline.act is None or left_s <= 0:
                    heapq.heappop(self._ordered)
                    if deadline.act is not None:
                        return deadline
                else:
                    self._changed.wait(left_s)
            self._runs = False
            return None


DEADLINES = Deadlines()
"""Those of this process."""
