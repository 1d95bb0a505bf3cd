"""Every limit of the SSH layer, in one place, so that tests can shorten them."""

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
    """Seconds, unless a name says otherwise."""

    connect_s: float = 10.0
    """Reaching a host and its SSH server's first words; each of the two."""
    login_s: float = 90.0
    """A whole login by the system's OpenSSH: a security key waits for a finger."""
    ping_s: float = 5.0
    """Silence after which the other side is asked whether it is there."""
    silence_s: float = 20.0
    """Silence after which a connection is dead."""
    idle_s: float = 30.0
    """How long a login is kept without users."""
    noise_s: float = 60.0
    """How long a program's start may take, with all that the shell's start-up files do."""
    close_s: float = 2.0
    """How long ending a program may hold up whoever ends it."""
    starts: int = 8
    """Logins at once per address: sshd refuses at random from the tenth on (MaxStartups 10:30:100)."""
    tries: int = 5
    retry_s: float = 30.0
    """How long refused starts are tried again."""
    logins: int = 3
    """Logins per host, where one does not carry enough programs (MaxSessions)."""
    programs: int = 8
    """Programs per login of the system's OpenSSH, below sshd's MaxSessions 10: others may share it."""


LIMITS = Limits()


Made = TypeVar("Made")


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

    def start(self, address: str, act: Callable[[], Made]) -> Made:
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


class Once(Generic[Made]):
    """One login at a time. A server counts failed ones and bans, so that those who waited do not try again each."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._attempts = 0
        self._failure: NodeError | None = None

    def get(self, there: Callable[[], Made | None], make: Callable[[], Made]) -> Made:
        """What is `there` already, else what `make` makes; or the failure of who made it while we waited."""
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
