"""A node that fetches and only says that it lives: how long that is believed, and what is said of it meanwhile."""

from __future__ import annotations

from gpuops.core.errors import ConnectionLost
from gpuops.core.format import span
from gpuops.core.polling import Clock
from gpuops.transport.program_schemas import FetchLine

STALL_S = 2400.0
"""How long a node may bring no byte. Its agent gives its server up after half an hour (`agent.fetch.download`)."""
CHECKED_BYTES_PER_S = 50e6
"""What is there already is read again before the first byte comes: at this rate by a slow disk,"""
MAX_CHECK_S = 4 * 3600.0
"""and for no longer than this, whatever size a node tells."""
TOLD_S = 300.0
"""After so long without a byte that is said."""
MAX_STALLS = 1
"""How often a program that brings nothing is started again."""


class Stalled(ConnectionLost):
    """A node says that it lives, and has brought no byte for too long."""


class StallWatch:
    """Since when nothing has come to one node, by what it tells. A node that tells of bytes that do not come is
    believed: its lease ends it."""

    def __init__(self, clock: Clock, label: str) -> None:
        self._clock = clock
        self._label = label
        self._moved = clock.monotonic()
        self._at = 0
        self._total = 0

    def restart(self) -> None:
        """The node was kept waiting until now, or has said something else that was waited for."""
        self._moved = self._clock.monotonic()

    def note(self, line: FetchLine) -> str:
        """What to say of a line with its progress. Raises Stalled."""
        if line.at > self._at:
            self.restart()
        self._at, self._total = line.at, max(self._total, line.total)
        quiet_s = self._clock.monotonic() - self._moved
        if quiet_s > STALL_S + min(self._total / CHECKED_BYTES_PER_S, MAX_CHECK_S):
            why = f" ({line.waits})" if line.waits else ""
            raise Stalled(
                f"{self._label} fetches, and nothing has come for {span(quiet_s)}{why}",
                "check the address and the node, then try again: what has arrived is not fetched again",
            )
        quiet = f"nothing has come for {span(quiet_s)}" if quiet_s > TOLD_S else ""
        return "; ".join(filter(None, (line.waits, quiet)))
