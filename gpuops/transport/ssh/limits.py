"""Limits of the SSH layer: how long, how many, how often; and the two locks that keep to them (Gate, Once)."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from gpuops.core.errors import NodeError
from gpuops.transport.ssh import errors
from gpuops.transport.ssh.errors import Refused


@dataclass(frozen=True)
class Limits:
    """Seconds (`…_s`) and counts, in one place so that tests can shorten them."""

    connect_s: float = 10.0
    """Time for the TCP connection, and again for the SSH server's banner."""
    login_s: float = 90.0
    """Time for a whole login by the system's OpenSSH: a security key waits for its user's touch."""
    ping_s: float = 5.0
    """Silence after which a keepalive is sent."""
    silence_s: float = 20.0
    """Silence after which a connection is dead."""
    idle_s: float = 30.0
    """How long a login is kept without users."""
    noise_s: float = 60.0
    """Time for a program's start, with all that the shell's start-up files do."""
    close_s: float = 2.0
    """How long ending a program may block its caller."""
    starts: int = 8
    """Logins at once per address: sshd refuses at random from the tenth on (MaxStartups 10:30:100)."""
    tries: int = 5
    """How often a refused login is attempted."""
    retry_s: float = 30.0
    """How long a refused login is retried."""
    logins: int = 3
    """Logins to one host, where the server limits the programs of one (MaxSessions)."""
    programs: int = 8
    """Programs per login of the system's OpenSSH, below sshd's MaxSessions 10: others may share it."""


LIMITS = Limits()


Made = TypeVar("Made")


def pause(attempt: int, chance: float) -> float:
    """Seconds to wait after attempt number `attempt` (from 1): doubling, and spread by `chance` (0 to 1), so that many
    clients do not come at once."""
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
        """Hold one of the address's `limits.starts` places."""
        with self._lock:
            turns = self._turns.setdefault(address, threading.Semaphore(self._limits.starts))
        with turns:
            yield

    def start(self, address: str, act: Callable[[], Made]) -> Made:
        """The result of `act`, which is called in its turn, and again while it raises Refused, within the limits."""
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
"""Shared by all logins of this process."""


class Once(Generic[Made]):
    """Lets one thread at a time log in. Servers ban clients after failed logins, so those that waited do not retry."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._attempts = 0
        self._failure: NodeError | None = None

    def get(self, there: Callable[[], Made | None], make: Callable[[], Made]) -> Made:
        """What `there` finds, else what `make` makes. Raises the error of another `make` that failed meanwhile."""
        if (found := there()) is not None:
            return found
        seen = self._attempts
        with self._turn:
            if (found := there()) is not None:
                return found
            if self._attempts != seen and self._failure is not None:
                raise errors.again(self._failure)
            self._failure = None
            try:
                return make()
            except NodeError as error:
                self._failure = error
                raise
            finally:
                self._attempts += 1
