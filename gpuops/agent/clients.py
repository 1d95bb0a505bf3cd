"""Who is connected to this agent: those who may still fetch something before the node ends."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Iterator

_LOCK = threading.Lock()
_connected = 0


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
