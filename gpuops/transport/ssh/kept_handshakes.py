"""Connections on which a host has shown its key, and nothing else has happened: the login that follows goes on there.

A second connection would cost the host and this computer another key exchange, and servers punish clients that only
look at their keys.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpuops.transport.deadlines import DEADLINES, Deadline

if TYPE_CHECKING:
    import paramiko

    from gpuops.transport.ssh.proxy import Wire

KEEP_S = 10.0
"""A server waits this long for a login, and longer: LoginGraceTime is 120 s, and seldom below 20."""


class KeptHandshakes:
    """Thread-safe; one for each address. `end` closes a connection that is not used."""

    def __init__(self, end: Callable[[Wire, paramiko.Transport], None], keep_s: float = KEEP_S) -> None:
        self._end = end
        self._keep_s = keep_s
        self._kept: dict[str, tuple[Wire, paramiko.Transport, Deadline]] = {}
        self._lock = threading.Lock()

    def keep(self, address: str, wire: Wire, transport: paramiko.Transport) -> None:
        """Keep one for a while, in place of the former one of that address."""
        with self._lock:
            former = self._kept.pop(address, None)
            deadline = DEADLINES.after(self._keep_s, lambda: self._expire(address, transport))
            self._kept[address] = (wire, transport, deadline)
        if former is not None:
            former[2].cancel()
            self._end(*former[:2])

    def take(self, address: str) -> tuple[Wire, paramiko.Transport] | None:
        """The one that was kept, where it is still connected; it is the caller's from now on."""
        with self._lock:
            kept = self._kept.pop(address, None)
        if kept is None:
            return None
        wire, transport, deadline = kept
        deadline.cancel()
        if transport.is_active():
            return wire, transport
        self._end(wire, transport)
        return None

    def _expire(self, address: str, transport: paramiko.Transport) -> None:
        with self._lock:
            kept = self._kept.get(address)
            if kept is None or kept[1] is not transport:
                return  # it was taken, or replaced
            del self._kept[address]
        self._end(*kept[:2])
