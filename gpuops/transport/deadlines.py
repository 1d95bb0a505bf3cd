"""Actions at a time that mostly does not come, all by one thread: limits of what is waited for elsewhere."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable

from gpuops.agent.workers import WORKERS

RETRY_S = 1.0
"""After so many seconds an action is tried again for which there was no thread."""


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
        """Call `act` after so many seconds, in a thread of its own: it may block.

        Raises RuntimeError where the system allows no more threads.
        """
        deadline = Deadline(act)
        with self._changed:
            if not self._runs:
                WORKERS.start(self._watch, "deadlines")
                self._runs = True  # only now: where it could not begin, the next deadline tries again
            self._put(seconds, deadline)
        return deadline

    def _put(self, seconds: float, deadline: Deadline) -> None:
        heapq.heappush(self._ordered, (time.monotonic() + seconds, next(self._ids), deadline))
        if self._ordered[0][2] is deadline:
            self._changed.notify()

    def _watch(self) -> None:
        while (deadline := self._next()) is not None:
            if (act := deadline.act) is not None:
                try:
                    WORKERS.start(act, "deadline")
                except RuntimeError:  # the system allows no more threads now
                    with self._changed:
                        self._put(RETRY_S, deadline)

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
