"""Who is connected to this agent: those who may still fetch something before the node ends."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import Iterator

_LOCK = threading.Lock()
_connected = 0
_heard = float("-inf")


@contextmanager
def connected() -> Iterator[None]:
    """For the length of one conversation."""
    global _connected
    with _LOCK:
        _connected += 1
    try:
        yield
    finally:
        with _LOCK:
            _connected -= 1


def count() -> int:
    return _connected


def heard() -> None:
    """Somebody has asked something, or was given an answer."""
    global _heard
    _heard = time.monotonic()


def silent_s() -> float:
    """Seconds since anybody was heard of."""
    return time.monotonic() - _heard
