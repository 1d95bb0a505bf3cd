"""Starting logins: few at once per address, and again where a busy server turned one away."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from gpuops.transport.ssh.errors import Refused
from gpuops.transport.ssh.limits import LIMITS, Limits

T = TypeVar("T")


def pause(attempt: int, chance: float) -> float:
    """Seconds before the next attempt, the first being 1: doubling, and spread so that many do not come at once."""
    return float(min(8.0, 0.3 * 2 ** (attempt - 1)) * (0.5 + chance))


class Gate:
    """At most `limits.starts` logins at once per address."""

    def __init__(
        self,
        limits: Limits = LIMITS,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._limits = limits
        self._sleep = sleep
        self._clock = clock
        self._chance = chance
        self._turns: dict[str, threading.Semaphore] = {}
        self._lock = threading.Lock()

    @contextmanager
    def turn(self, address: str) -> Iterator[None]:
        """Hold one of the address's places."""
        with self._lock:
            turns = self._turns.setdefault(address, threading.Semaphore(self._limits.starts))
        with turns:
            yield

    def start(self, address: str, act: Callable[[], T]) -> T:
        """`act` in its turn, and again while it raises Refused, within the limits. Nothing else is tried again."""
        begin = self._clock()
        attempt = 1
        while True:
            try:
                with self.turn(address):
                    return act()
            except Refused:
                wait = pause(attempt, self._chance())
                late = self._clock() + wait - begin > self._limits.retry_s
                if attempt >= self._limits.tries or late:
                    raise
            self._sleep(wait)
            attempt += 1


GATE = Gate()
"""The process's own: addresses are counted across everything that logs in."""
