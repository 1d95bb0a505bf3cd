"""Time as a parameter: what waits gets its clock handed in, so that a test can hold every state for ever."""

from __future__ import annotations

import time

LONGEST_S = 120.0
"""The longest single pause, whatever a provider asks for."""


class Clock:
    """The computer's own time."""

    def now(self) -> float:
        """UTC seconds; may jump when somebody sets the clock."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since some instant; what deadlines are counted with."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def pause(self, wanted: float, deadline: float) -> None:
        """Sleep as long as wanted, but neither beyond `deadline` (monotonic) nor absurdly long."""
        self.sleep(max(0.0, min(wanted, deadline - self.monotonic(), LONGEST_S)))
