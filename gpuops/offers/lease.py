"""Until when a cluster may live, and what it may cost: pure decisions about hard, idle and money ends."""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass

from gpuops.core.errors import UsageError
from gpuops.core.format import clock_time, money, span
from gpuops.core.models import Lease

RENTED_HOURS = 24.0
RENTED_IDLE_MIN = 30.0
SPAN = re.compile(r"([0-9]+(?:\.[0-9]+)?)(s|min|m|h|d)")
ENDLESS_S = 3.2e9
"""No lease is longer: a hundred years."""
UNIT_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
EARLIER_S = 300.0
"""So long before the money is used up a lease ends: what is on the nodes comes home while they are still there."""
LEAST_S = 600.0
"""A balance shortens no lease to less: it may have been told late, and what ends at once is of no use to anybody."""
HOUR_S = 3600.0
"""Money for less than this is warned of: some providers do not rent for less."""


@dataclass(frozen=True)
class Funds:
    """What a provider tells of the account, in $ and $/h; None: it does not say."""

    balance: float | None = None
    spend_per_hr: float | None = None
    """What all that is up on the account costs, ours and others'."""
    spend_limit: float | None = None
    """More than this per hour is refused."""
    asked: float = 0.0
    """When, in UTC seconds."""

    def lasts(self, per_hour: float) -> float | None:
        """How many seconds the balance lasts when this is paid for as well; None where that is not known."""
        rate = per_hour + max(self.spend_per_hr or 0.0, 0.0)
        return None if self.balance is None or rate <= 0 else max(self.balance, 0.0) / rate * 3600


def make(
    *,
    rented: bool,
    per_hour: float,
    now: float,
    since: float | None = None,
    max_hours: float | None = None,
    max_cost: float | None = None,
    idle_min: float | None = None,
    until: float | None = None,
) -> Lease:
    """The lease of a new cluster. Rented machines get 24 h and 30 idle minutes unless told otherwise;
    machines of the user's own get no end that was not asked for. `since`: from when on they cost money; `until`: an end
    that is there already (UTC seconds), whatever the hours say."""
    hours = max_hours if max_hours is not None else (RENTED_HOURS if rented else None)
    idle = idle_min if idle_min is not None else (RENTED_IDLE_MIN if rented else None)
    began = now if since is None else since
    money_end = began + max_cost / per_hour * 3600 if max_cost is not None and per_hour > 0 else None
    ends = [end for end in (now + hours * 3600 if hours is not None else None, until) if end is not None]
    return Lease(
        hard_end=min(ends, default=None),
        idle_s=idle * 60 if idle is not None else None,
        money_end=money_end,
    )


def within(lease: Lease, funds: Funds, per_hour: float, now: float) -> tuple[Lease, str]:
    """The lease, no longer than the balance lasts, and what is to be said of that; empty: nothing.

    A balance of nothing shortens no lease: whether it may be overdrawn only the provider knows.
    """
    lasts = funds.lasts(per_hour)
    if not lasts or math.isinf(lasts):
        return lease, ""
    end = max(funds.asked + lasts - min(EARLIER_S, lasts / 10), now + LEAST_S)
    if lease.end is not None and lease.end <= end:
        return lease, ""
    return dataclasses.replace(
        lease, hard_end=end
    ), f"{_lasting(funds, lasts, per_hour)}: the lease ends shortly before"


def _lasting(funds: Funds, lasts: float, per_hour: float) -> str:
    """`the balance of $11.20 lasts 4 h 40 min at $2.40/h`."""
    others = funds.spend_per_hr or 0.0
    beside = f" beside {money(others)}/h that are spent already" if others > 0 else ""
    return f"the balance of {money(funds.balance or 0.0)} lasts {span(lasts)} at {money(per_hour)}/h{beside}"


def beyond(lease: Lease, funds: Funds, per_hour: float, now: float) -> str:
    """Why a lease of machines that cost `per_hour` already will not come to its end; empty where it may."""
    rate = funds.spend_per_hr or per_hour
    lasts = dataclasses.replace(funds, spend_per_hr=None).lasts(rate)
    if lasts is None or lease.end is None or lease.end <= funds.asked + lasts:
        return ""
    until = clock_time(funds.asked + lasts, now)
    return f"the balance of {money(funds.balance or 0.0)} lasts until {until} at {money(rate)}/h, which is sooner"


def doubt(funds: Funds, per_hour: float) -> str:
    """What should be known of the balance before anything is rented; empty: nothing."""
    lasts = funds.lasts(per_hour)
    if lasts is None:
        return "the balance is unknown" if funds.balance is None else ""
    if lasts == 0:
        return f"the balance is {money(funds.balance or 0.0)}: the provider may refuse, or end it all at any time"
    if lasts < HOUR_S:
        return f"{_lasting(funds, lasts, per_hour)}: some providers rent for an hour at least"
    return ""


def over_limit(funds: Funds, per_hour: float) -> str:
    """Why the account may not spend so much more per hour; empty where it may, or where that is not known."""
    if funds.spend_limit is None or per_hour + (funds.spend_per_hr or 0.0) <= funds.spend_limit:
        return ""
    spends = f" and spends {money(funds.spend_per_hr)}/h already" if funds.spend_per_hr else ""
    return f"{money(per_hour)}/h is too much: the account may spend {money(funds.spend_limit)}/h{spends}"


def spent(per_hour: float, since: float, now: float) -> float:
    """What has been spent so far, in $."""
    return per_hour * max(0.0, now - since) / 3600


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
    """One sentence part: `ends in 2 h 00 min (at 14:30), or after 30:00 min without use`. `ephemeral`: its run ends
    it, too."""
    parts = []
    if lease.end is not None:
        parts.append(f"ends in {span(lease.end - now)} (at {clock_time(lease.end, now)})")
    if lease.idle_s is not None:
        parts.append(f"{'or ' if parts else 'ends '}after {span(lease.idle_s)} without use")
    return ", ".join(parts) or ("ends with its run" if ephemeral else "no end: `gpuops down` ends it")


def ending(name: str, lease: Lease, now: float) -> str:
    """What ends a cluster that costs money."""
    itself = f"; it ends by itself at {clock_time(lease.end, now)}" if lease.end is not None else ""
    return f"`gpuops down {name}` ends it{itself}"


def back_by(lease: Lease, now: float) -> str:
    """Until when this computer must be back for what is on the nodes to come home: `before 14:30, and within
    30:00 min of the run's end`; empty: whenever it likes."""
    parts = []
    if lease.end is not None:
        parts.append(f"before {clock_time(lease.end, now)}")
    if lease.idle_s is not None:
        parts.append(f"within {span(lease.idle_s)} of the run's end")
    return ", and ".join(parts)
