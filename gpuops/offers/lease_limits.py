"""Until when a cluster may live, and what it may cost: hard, idle and money ends, in numbers and in words. Pure.

Flags (`LeaseLimits`) and the account's balance (`Funds`) limit it; the result is a `core.models.Lease`.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from gpuops.core.errors import UsageError
from gpuops.core.format import clock_time, money, span
from gpuops.core.models import Lease, Offer, Request, Resource

RENTED_HOURS = 24.0
"""Hard end of rented machines without `--max-hours`."""
RENTED_IDLE_MIN = 30.0
"""Idle end of rented machines without `--idle`."""
SPAN_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(s|min|m|h|d)")
MAX_SPAN_S = 3.2e9
"""A hundred years: a longer span is a mistake."""
UNIT_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
BALANCE_RESERVE_S = 300.0
"""The lease ends this much before the balance is used up: results come home while the nodes are still there."""
MIN_LEASE_S = 600.0
"""No balance shortens a lease below this: a stale balance must not end a cluster immediately."""
BOOT_MARGIN_S = 600.0
"""The boot lease is this much longer than `--timeout`: the command gives up, and undoes, before the machines do."""
LOW_BALANCE_S = 3600.0
"""A balance that lasts less is warned of: some providers do not rent for less than an hour."""


@dataclass(frozen=True)
class Funds:
    """The account's money as its provider states it, in $ and $/h; None: not stated."""

    balance: float | None = None
    spend_per_hr: float | None = None
    """What everything on the account costs now, ours and others'."""
    spend_limit: float | None = None
    """The provider refuses what would exceed this rate."""
    asked: float = 0.0
    """When the answer was given, UTC seconds."""

    def lasts(self, per_hour: float) -> float | None:
        """Seconds until the balance is used up if `per_hour` more is spent; None where unknown."""
        rate = per_hour + max(self.spend_per_hr or 0.0, 0.0)
        return None if self.balance is None or rate <= 0 else max(self.balance, 0.0) / rate * 3600


@dataclass(frozen=True)
class LeaseLimits:
    """The flags that shape a lease; None: the provider's default."""

    max_hours: float | None = None
    max_cost: float | None = None
    """In $."""
    idle_min: float | None = None
    until: float | None = None
    """Absolute UTC end that holds besides `max_hours`: that of a job whose first machines were preempted, or of an
    offer that ends by itself."""


def within_offer(limits: LeaseLimits, offer: Offer) -> LeaseLimits:
    """The limits for an offer that may end by itself (`Offer.data["ends"]`, UTC seconds), and those that it has
    where the flags name none (`idle_min`)."""
    ends, idle_min = offer.data.get("ends"), offer.data.get("idle_min")
    until = limits.until if ends is None else min(ends, limits.until or ends)
    return dataclasses.replace(limits, until=until, idle_min=idle_min if limits.idle_min is None else limits.idle_min)


def limits_after(limits: LeaseLimits, spent: float, per_hour: float) -> tuple[LeaseLimits, str]:
    """The limits once `spent` $ of them are used up, and, where that leaves too little for machines at `per_hour`,
    why."""
    if limits.max_cost is None or spent <= 0:
        return limits, ""
    rest, why = max(0.0, limits.max_cost - spent), ""
    if rest * 3600 < MIN_LEASE_S * per_hour:
        least = span(MIN_LEASE_S)
        why = f"{money(spent)} of --max-cost {money(limits.max_cost)} are spent: less than {least} are left"
    return dataclasses.replace(limits, max_cost=rest), why


def machines_end(machines: Sequence[Resource]) -> float | None:
    """When the first of these machines ends by itself, UTC seconds; None where none does."""
    return min((float(machine.data["ends"]) for machine in machines if machine.data.get("ends")), default=None)


def within_life(lease: Lease, machines: Sequence[Resource]) -> Lease:
    """The lease, no longer than its machines live."""
    ends = machines_end(machines)
    return lease if ends is None else dataclasses.replace(lease, hard_end=min(lease.hard_end or ends, ends))


def new_lease(limits: LeaseLimits, *, rented: bool, per_hour: float, now: float, since: float | None = None) -> Lease:
    """The lease of a new cluster. Rented machines have a hard and an idle end in any case; the user's own machines only
    those that `limits` names. `since`: when the machines began to cost money (UTC seconds), if not now."""
    hours = RENTED_HOURS if limits.max_hours is None and rented else limits.max_hours
    idle_min = RENTED_IDLE_MIN if limits.idle_min is None and rented else limits.idle_min
    ends = [end for end in (None if hours is None else now + hours * 3600, limits.until) if end is not None]
    money_end = None
    if limits.max_cost is not None and per_hour > 0:
        money_end = (now if since is None else since) + limits.max_cost / per_hour * 3600
    return Lease(min(ends, default=None), None if idle_min is None else idle_min * 60, money_end)


@dataclass(frozen=True)
class Most:
    """The most that a request can come to, as it is told before it is agreed to."""

    until: float
    """UTC seconds."""
    cost: float
    """In $."""

    def describe(self, now: float) -> str:
        """`until 14:50 at the latest, $8.64 at most`."""
        return f"until {clock_time(self.until, now)} at the latest, {money(self.cost)} at most"


def find_most(limits: LeaseLimits, request: Request, cheapest: float, dearest: float, now: float) -> Most:
    """The end and the cost where rented machines are found and become ready as late as the request allows. Prices in
    $/h; `cheapest` is 0 where it is not known."""
    created = now + (request.wait_s or 0.0)
    ready = created + request.timeout_min * 60
    end = new_lease(limits, rented=True, per_hour=cheapest, now=ready, since=created).end
    latest = max(ready + BOOT_MARGIN_S, end or 0.0)
    most = money_spent(dearest, created, latest)
    return Most(latest, most if limits.max_cost is None else min(most, limits.max_cost))


def cut_to_balance(lease: Lease, funds: Funds, per_hour: float, now: float) -> tuple[Lease, str]:
    """The lease, cut to what the balance lasts, and the note on that, empty where nothing was cut.

    A balance of 0 shortens no lease: only the provider knows whether it may be overdrawn.
    """
    lasts = funds.lasts(per_hour)
    if not lasts or math.isinf(lasts):
        return lease, ""
    end = max(funds.asked + lasts - min(BALANCE_RESERVE_S, lasts / 10), now + MIN_LEASE_S)
    if lease.end is not None and lease.end <= end:
        return lease, ""
    note = f"{_describe_balance(funds, lasts, per_hour)}: the lease ends shortly before"
    return dataclasses.replace(lease, hard_end=end), note


def _describe_balance(funds: Funds, lasts: float, per_hour: float) -> str:
    """`the balance of $11.20 lasts 4 h 40 min at $2.40/h`."""
    others = funds.spend_per_hr or 0.0
    beside = f" beside {money(others)}/h that are spent already" if others > 0 else ""
    return f"the balance of {money(funds.balance or 0.0)} lasts {span(lasts)} at {money(per_hour)}/h{beside}"


def balance_ends_first(lease: Lease, funds: Funds, per_hour: float, now: float) -> str:
    """Why the balance ends before the lease of machines that are running; empty where it does not."""
    rate = funds.spend_per_hr or per_hour
    lasts = dataclasses.replace(funds, spend_per_hr=None).lasts(rate)
    if lasts is None or lease.end is None or lease.end <= funds.asked + lasts:
        return ""
    until = clock_time(funds.asked + lasts, now)
    return f"the balance of {money(funds.balance or 0.0)} lasts until {until} at {money(rate)}/h, which is sooner"


def balance_warning(funds: Funds, per_hour: float) -> str:
    """What a user should know of the balance before anything is rented; empty where all is well."""
    lasts = funds.lasts(per_hour)
    if lasts is None:
        return "the balance is unknown" if funds.balance is None else ""
    if lasts == 0:
        return f"the balance is {money(funds.balance or 0.0)}: the provider may refuse, or end it all at any time"
    if lasts < LOW_BALANCE_S:
        return f"{_describe_balance(funds, lasts, per_hour)}: some providers rent for an hour at least"
    return ""


def explain_spend_limit(funds: Funds, per_hour: float) -> str:
    """Why the account's spend limit forbids `per_hour` more; empty where it allows it, or is unknown."""
    if funds.spend_limit is None or per_hour + (funds.spend_per_hr or 0.0) <= funds.spend_limit:
        return ""
    spends = f" and spends {money(funds.spend_per_hr)}/h already" if funds.spend_per_hr else ""
    return f"{money(per_hour)}/h is too much: the account may spend {money(funds.spend_limit)}/h{spends}"


def money_spent(per_hour: float, since: float, now: float) -> float:
    """$ spent between two UTC times."""
    return per_hour * max(0.0, now - since) / 3600


def extend_lease(lease: Lease, by_s: float, now: float) -> Lease:
    """The lease with its hard end `by_s` later, counted from now where that end has passed or there is none."""
    return Lease(max(lease.hard_end or now, now) + by_s, lease.idle_s, lease.money_end)


def parse_span(text: str) -> float:
    """`90s`, `30min`, `2h`, `1.5d`, `1h30m` as seconds. Raises UsageError."""
    position, total = 0, 0.0
    compact = "".join(text.lower().split())
    while position < len(compact):
        match = SPAN_PART.match(compact, position)
        if not match:
            break
        total += float(match[1]) * UNIT_S[match[2]]
        position = match.end()
    if not compact or position != len(compact) or not 0 < total <= MAX_SPAN_S:
        raise UsageError(f"'{text}' is not a length of time", "write it like 90s, 30min, 2h or 1h30m")
    return total


def describe_lease(lease: Lease, now: float, *, ephemeral: bool = False) -> str:
    """`ends in 2 h 00 min (at 14:30), or after 30 min without use`; later on `overdue by 1:10 min (since 14:30)`.
    `ephemeral`: the end of its run ends it, too."""
    if lease.end is not None and now > lease.end:
        return f"overdue by {span(now - lease.end)} (since {clock_time(lease.end, now)})"
    parts = []
    if lease.end is not None:
        parts.append(f"ends in {span(lease.end - now)} (at {clock_time(lease.end, now)})")
    if lease.idle_s is not None:
        parts.append(f"{'or ' if parts else 'ends '}after {span(lease.idle_s)} without use")
    return ", ".join(parts) or ("ends with its run" if ephemeral else "no end: `gpuops down` ends it")


class EndedBy(Enum):
    """Who ends a cluster that costs money once its lease is over, as a clause."""

    MACHINES = "it ends by itself at {at}"
    GUARD = "the guard on this computer ends it at {at}, while this computer is on"
    NOBODY = "nothing else does when its lease is over, at {at}: neither these machines nor the guard can"


def describe_how_to_end(name: str, lease: Lease, now: float, by: EndedBy) -> str:
    """How a cluster that costs money ends, the command first:
    `gpuops down lab` ends it; it ends by itself at 14:50, or after 30 min without use."""
    ends = [] if lease.end is None else [by.value.format(at=clock_time(lease.end, now))]
    if lease.idle_s is not None:
        ends.append(f"{'or' if ends else 'it ends'} after {span(lease.idle_s)} without use")
    return "; ".join(filter(None, [f"`gpuops down {name}` ends it", ", ".join(ends)]))


def describe_bill(name: str, per_hour: float, lease: Lease, now: float, by: EndedBy) -> str:
    """What a cluster goes on to cost, and how it ends."""
    return f"{name} goes on at {money(per_hour)}/h: {describe_how_to_end(name, lease, now, by)}"
