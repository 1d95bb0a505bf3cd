"""The addresses of files, as the client hands them out: some at a time, since presigned ones hold for minutes only."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Callable, Iterable, Sequence

from gpuops.agent.fetch.web import Address

AHEAD = 64
"""So many are asked for at once: each question takes the time of a round trip."""
FRESH_S = 60.0
"""An address that is refused within this time of its arrival, and never served, is not permitted."""


class HandedOut:
    """An address that the client has given."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.has_served = False
        """Whether data have come from it."""
        self._received = time.monotonic()

    @property
    def may_have_ended(self) -> bool:
        """Whether a refusal may mean that it holds no longer, instead of that it never did."""
        return self.has_served or time.monotonic() - self._received > FRESH_S


class Addresses:
    """Asks for addresses in the order in which files are fetched, and again for those that have ended."""

    def __init__(self, ask: Callable[[Sequence[int]], None], order: Iterable[int]) -> None:
        self._ask = ask
        self._waiting = deque(order)
        """Files whose addresses nobody has asked for yet."""
        self._asked: set[int] = set()
        self._known: dict[int, HandedOut] = {}
        self._changed = threading.Condition()

    def get(self, index: int) -> HandedOut:
        """A file's address; waits for it."""
        with self._changed:
            while index not in self._known:
                if index in self._asked:
                    self._changed.wait()
                    continue
                batch = [self._waiting.popleft() for _ in range(min(AHEAD, len(self._waiting)))]
                self._asked.update(batch)
                self._ask(batch)
            return self._known[index]

    def renew(self, index: int) -> None:
        """Ask for a file's address again."""
        with self._changed:
            del self._known[index]
            self._ask([index])

    def forget(self, index: int) -> None:
        with self._changed:
            self._known.pop(index, None)

    def put(self, index: int, address: Address) -> None:
        with self._changed:
            self._known[index] = HandedOut(address)
            self._changed.notify_all()
