"""Time as a parameter: what waits gets its clock handed in, so that a test can hold every state for ever."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Self

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

    def since_boot(self) -> float:
        """Seconds since the boot; those that the computer slept count where the system can tell."""
        kind = getattr(time, "CLOCK_BOOTTIME", None)
        return time.monotonic() if kind is None else time.clock_gettime(kind)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def pause(self, wanted: float, deadline: float, wait: Callable[[float], object] | None = None) -> None:
        """Sleep as long as wanted, but neither beyond `deadline` (monotonic) nor absurdly long. `wait`: see Poller."""
        (wait or self.sleep)(self.bounded_pause(wanted, deadline))

    def bounded_pause(self, wanted: float, deadline: float) -> float:
        """The seconds that `pause` sleeps."""
        return max(0.0, min(wanted, deadline - self.monotonic(), LONGEST_S))


@dataclass(frozen=True)
class Attempt:
    """One look at something that is waited for."""

    started: float
    """Monotonic seconds. An answer that comes late is as old as its question: it is judged by this instant."""
    is_last: bool
    """Whether it started at the deadline or later: what an earlier attempt did has been looked at once more."""


class Poller:
    """Attempts until a deadline, with pauses that grow: `for attempt in poller: …`. The last attempt starts at the
    deadline or later, however long an answer before it took; after that one the loop ends.

    `wait`: waits for an event for that many seconds at most (`Event.wait`, `Thread.join`), instead of a plain sleep.
    """

    def __init__(
        self,
        clock: Clock,
        deadline: float,
        first_pause_s: float,
        longest_pause_s: float,
        factor: float = 1.5,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self._clock = clock
        self._deadline = deadline
        self._pauses = _growing_pauses(first_pause_s, longest_pause_s, factor)
        self._pause_s = next(self._pauses)
        self._wait = wait
        self._asked_s: float | None = None

    @classmethod
    def every(
        cls,
        clock: Clock,
        interval_s: float,
        deadline: float = math.inf,
        wait: Callable[[float], object] | None = None,
    ) -> Self:
        """Attempts at one interval; without a deadline until the loop is left."""
        return cls(clock, deadline, interval_s, interval_s, 1.0, wait)

    @classmethod
    def with_pauses(cls, clock: Clock, deadline: float, pauses_s: Sequence[float]) -> Self:
        """Attempts with these pauses between them; the last one repeats."""
        first, *others = pauses_s
        poller = cls(clock, deadline, first, first)
        poller._pauses = chain(others, repeat(pauses_s[-1]))
        return poller

    def end_at(self, deadline: float) -> None:
        """Another deadline, from the next pause on."""
        self._deadline = deadline

    def retry_after(self, seconds: float | None) -> None:
        """The next pause alone, as a provider asks for it; None or 0: as it would be."""
        self._asked_s = seconds

    @property
    def next_pause_s(self) -> float:
        """How long the pause before the next attempt will be, if it starts now."""
        return self._clock.bounded_pause(self._asked_s or self._pause_s, self._deadline)

    def __iter__(self) -> Iterator[Attempt]:
        while True:
            started = self._clock.monotonic()
            attempt = Attempt(started, started >= self._deadline)
            self._asked_s = None
            yield attempt
            if attempt.is_last:
                return
            self._clock.pause(self._asked_s or self._pause_s, self._deadline, self._wait)
            self._pause_s = next(self._pauses)


def _growing_pauses(first_s: float, longest_s: float, factor: float) -> Iterator[float]:
    pause_s = first_s
    while True:
        yield pause_s
        pause_s = min(pause_s * factor, longest_s)
