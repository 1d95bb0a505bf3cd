"""Where a command's time goes, and whose it is: every moment belongs to the innermost piece of work under way."""

from __future__ import annotations

import enum
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


class Whose(enum.StrEnum):
    """Who decides how long a piece of work takes."""

    PROVIDER = "provider"
    NETWORK = "network"
    NODE = "node"
    SCRIPT = "script"
    GPUOPS = "gpuops"


@dataclass(frozen=True)
class Spent:
    """All the time that one piece of work took, in seconds."""

    whose: Whose
    work: str
    seconds: float


Work = tuple[Whose, str]
OWN: Work = (Whose.GPUOPS, "everything else")
SHOWN_FROM_S = 0.05
"""Shorter work is in the sum of its owner, and not named."""


class Timings:
    """A stack of work, and the time that each piece was on top. Safe to call from several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, began: float | None = None) -> None:
        """`began`: when the command began, by the same clock; None: now."""
        self._clock = clock
        self._lock = threading.Lock()
        self._stack: list[Work] = []
        self._seconds: dict[Work, float] = {}
        self._since = clock() if began is None else began

    @contextmanager
    def during(self, work: str, whose: Whose) -> Iterator[None]:
        """For as long as the block, but for what begins and ends within it."""
        with self._lock:
            self._count()
            depth = len(self._stack)
            self._stack.append((whose, work))
        try:
            yield
        finally:
            with self._lock:
                self._count()
                del self._stack[depth:]

    def turn_to(self, work: str, whose: Whose) -> None:
        """From here on this takes the place of the innermost work."""
        with self._lock:
            self._count()
            self._stack[-1:] = [(whose, work)]

    def _count(self) -> None:
        now = self._clock()
        work = self._stack[-1] if self._stack else OWN
        self._seconds[work] = self._seconds.get(work, 0.0) + now - self._since
        self._since = now

    def spent(self) -> list[Spent]:
        """What took how long until now, in the order in which it began; together the whole command."""
        with self._lock:
            self._count()
            return [Spent(whose, work, seconds) for (whose, work), seconds in self._seconds.items()]


def process_began() -> float:
    """When this process began, by `time.monotonic`; now where the system does not tell."""
    from gpuops.core.processes import linux_age_s

    return time.monotonic() - (linux_age_s(os.getpid()) or 0.0)


def document(spent: list[Spent]) -> list[dict[str, object]]:
    """For `--json`."""
    return [{"whose": str(one.whose), "work": one.work, "seconds": round(one.seconds, 3)} for one in spent]


def lines(spent: list[Spent]) -> list[str]:
    """The sum, then a line for each owner: its seconds, and its work, what took longest first."""
    total = sum(one.seconds for one in spent)
    found = [f"where {total:.1f} s went:"]
    for whose in Whose:
        own = sorted((one for one in spent if one.whose is whose), key=lambda one: -one.seconds)
        seconds = sum(one.seconds for one in own)
        shown = [f"{one.work}: {one.seconds:.1f} s" for one in own if one.seconds >= SHOWN_FROM_S]
        if shown:
            found.append(f"  {whose:<9}{seconds:6.1f} s  {'; '.join(shown)}")
    return found
