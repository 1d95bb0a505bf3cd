"""Which key does a host present? Asked without logging in."""

from __future__ import annotations

from collections.abc import Sequence

from gpuops.transport.ssh import login
from gpuops.transport.ssh.gate import GATE, Gate
from gpuops.transport.ssh.target import Target


def scan(target: Target, timeout_s: float = 15.0, prefer: Sequence[str] = (), gate: Gate = GATE) -> tuple[str, ...]:
    """The host key that the server presents, of the first type in `prefer` (types, or whole keys) that it has.

    One key, from one connection: newer servers punish hosts that only look. Raises ConnectionLost.
    """

    def look() -> tuple[str, ...]:
        below, transport = login.handshake(target, timeout_s, prefer)
        try:
            return (login.presented(transport),)
        finally:
            login.end(below, transport)

    return gate.start(target.address, look)
