"""Bringing home what a living run makes, beside whoever shows or follows it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from gpuops.core.progress import Silent
from gpuops.ledger.store import RunRow
from gpuops.nodes.session import Live
from gpuops.runs.finish import fetch_now

FETCH_S = 10.0


class LiveFetch:
    """A fetch in a thread of its own, every `every_s` seconds at most, never two at once."""

    def __init__(
        self, live: Live, row: RunRow, every_s: float = FETCH_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._live = live
        self._row = row
        self._every_s = every_s
        self._clock = clock
        self._began = clock()
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """Begin a fetch where one is due and none is on; returns at once."""
        if self._clock() - self._began < self._every_s or (self._thread is not None and self._thread.is_alive()):
            return
        self._began = self._clock()
        self._thread = threading.Thread(target=self._fetch, daemon=True, name=f"fetch {self._row.name}")
        self._thread.start()

    def _fetch(self) -> None:
        try:
            fetch_now(self._live, self._row, Silent(), final=False)
        except Exception:
            pass  # the final fetch is the one that counts, and says what is wrong
