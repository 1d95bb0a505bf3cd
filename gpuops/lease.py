"""Until when a cluster may live: pure decisions about hard, idle and money ends."""

from __future__ import annotations

import re

from gpuops.errors import UsageError
from gpuops.models import Lease

RENTED_HOURS = 24.0
RENTED_IDLE_MIN = 30.0
SPAN = re.compile(r"([0-9]+(?:\.[0-9]+)?)(s|min|m|h|d)")
ENDLESS_S = 3.2e9
"""No lease is longer: a hundred years."""
UNIT_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def make(
    *,
    rented: bool,
    per_hour: float,
    now: float,
    since: float | None = None,
    max_hours: float | None = None,
    max_cost: float | None = None,
    idle_min: float | None = None,
) -> Lease:
    """The lease of a new cluster. Rented machines get 24 h and 30 idle minutes unless told otherwise;
    machines of the user's own get no end that was not asked for. `since`: from when on they cost money."""
    hours = max_hours if max_hours is not None else (RENTED_HOURS if rented else None)
    idle = idle_min if idle_min is not None else (RENTED_IDLE_MIN if rented else None)
    began = now if since is None else since
    money_end = began + max_cost / per_hour * 3600 if max_cost is not None and per_hour > 0 else None
    return Lease(
        hard_end=now + hours * 3600 if hours is not None else None,
        idle_s=idle * 60 if idle is not None else None,
        money_end=money_end,
    )


def extended(lease: Lease, by_s: float, now: float) -> Lease:
    """The hard end moved by so many seconds, from itself or, where it has passed or is none, from now."""
    return Lease(max(lease.hard_end or now, now) + by_s, lease.idle_s, lease.money_end)


def parse_span(text: str) -> float:
    """`90s`, `30min`, `2h`, `1.5d`, `1h30m` as seconds. Raises UsageError."""
    position, total = 0, 0.0
    compact = "".join(text.lower().split())
    while position < len(compact):
        match = SPAN.match(compact, position)
        if not match:
            break
        total += float(match[1]) * UNIT_S[match[2]]
        position = match.end()
    if not compact or position != len(compact) or not 0 < total <= ENDLESS_S:
        raise UsageError(f"'{text}' is not a length of time", "write it like 90s, 30min, 2h or 1h30m")
    return total


def describe(lease: Lease, now: float, *, ephemeral: bool = False) -> str:
    """One sentence part: `ends in 2 h 00 min, or after 30 min without use`. `ephemeral`: its run ends it, too."""
    from gpuops.output import span

    parts = []
    if lease.end is not None:
        parts.append(f"ends in {span(lease.end - now)}")
    if lease.idle_s is not None:
        parts.append(f"{'or ' if parts else 'ends '}after {span(lease.idle_s)} without use")
    return ", ".join(parts) or ("ends with its run" if ephemeral else "no end: `gpuops down` ends it")
