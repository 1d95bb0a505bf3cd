"""The service's time: real time, or none but what a test lets pass; either way it can be driven forward."""

from __future__ import annotations

import time
from datetime import UTC, datetime


class DrivenClock:
    """`frozen`: it moves by `advance` alone. Seconds UTC, as time.time()."""

    def __init__(self, frozen: bool = False) -> None:
        self._started = time.time()
        self._frozen = frozen
        self._ahead = 0.0
        self._since = time.monotonic()

    def now(self) -> float:
        passed = 0.0 if self._frozen else time.monotonic() - self._since
        return self._started + passed + self._ahead

    def advance(self, seconds: float) -> None:
        assert seconds >= 0, seconds
        self._ahead += seconds


def rfc3339(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def from_rfc3339(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
