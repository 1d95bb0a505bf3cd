"""Sleeping until a signal or a time: how the watchdog's and the agent's first threads spend their lives."""

from __future__ import annotations

import os
import select
import signal
from typing import Any, Iterable


class Wake:
    """Signals become bytes in a pipe. To be made by the first thread; one per process."""

    def __init__(self, signals: Iterable[int]) -> None:
        self._reader, writer = os.pipe()
        for end in (self._reader, writer):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for sign in signals:
            # A handler, even one that does nothing: an ignored signal would stay ignored in our children.
            signal.signal(sign, _nothing)

    def wait(self, limit_s: float) -> set[int]:
        """The signals that came, as soon as one does; none after `limit_s`."""
        ready, _, _ = select.select([self._reader], [], [], max(0.0, limit_s))
        return set(os.read(self._reader, 4096)) if ready else set()


def _nothing(_sign: int, _frame: Any) -> None:
    pass
