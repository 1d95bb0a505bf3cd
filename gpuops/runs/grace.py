"""How long rented nodes wait, after a run, for the computer that its results are to come home to. Pure.

A node whose results nobody has fetched is worth more than an idle one, and costs as much: it waits for two hours or
for five dollars' worth, whichever is less, unless told otherwise (`--grace`), and never beyond its lease.
"""

from __future__ import annotations

from gpuops.core.models import Lease
from gpuops.core.output import clock_time, money, span

LONGEST_S = 7200.0
DOLLARS = 5.0
"""What the wait may cost, all nodes together, where nobody says how long it is to be."""


def default_s(per_hour: float) -> float:
    """The wait that nobody asked for, in seconds; `per_hour`: the price of all nodes."""
    return min(LONGEST_S, DOLLARS / per_hour * 3600) if per_hour > 0 else LONGEST_S


def hold_s(asked_s: float | None, lease: Lease, per_hour: float, *, rented: bool, ephemeral: bool) -> float | None:
    """How long the nodes of a run hold its results; None: as long as they may stand idle.

    A cluster that was brought up to stay may stand idle by its user's word: it is not ended the sooner for holding
    what is not home.
    """
    if asked_s is not None:
        return asked_s
    if not rented:
        return None
    return default_s(per_hour) if ephemeral else max(default_s(per_hour), lease.idle_s or 0.0)


def warning(hold_s: float, lease: Lease, now: float) -> str:
    """What becomes of results while this computer is away. How long the run takes nobody knows yet, so the clock can
    be named only where the lease comes first. `now`: UTC seconds."""
    lost = "results are lost unless this computer is back"
    if lease.end is None:
        return f"{lost} within {span(hold_s)} after the run's end"
    end = clock_time(lease.end, now)
    if lease.end <= now + hold_s:
        return f"{lost} by {end} (local time), when the lease ends"
    return f"{lost} within {span(hold_s)} after the run's end, and before the lease ends at {end} (local time)"


def question(per_hour: float, opened: str = "") -> str:
    """What somebody who detaches is asked to agree to. `opened`: the clock time at which a bucket closes before."""
    wait_s = default_s(per_hour)
    bucket = f", and the nodes can write to the bucket only until {opened}, when the login ends" if opened else ""
    return (
        f"with --detach nobody may be here when the run ends{bucket}: let the nodes wait up to "
        f"{span(wait_s)} for this computer to fetch the results, for at most {_cost(wait_s, per_hour)}?"
    )


def refusal(per_hour: float, opened: str = "") -> tuple[str, str]:
    """The same where nobody can be asked: what is wrong, and what to type instead."""
    wait_s = default_s(per_hour)
    wait = f"the nodes wait {span(wait_s)} for it, for at most {_cost(wait_s, per_hour)}"
    if opened:
        say = f"the nodes can write to the bucket only until {opened}, when the login ends"
        return (
            f"{say}, and with --detach nobody may be here to renew that",
            f"use a key that lasts, or say --grace {wait_s / 3600:.2g} ({wait})",
        )
    return (
        "with --detach results are lost where this computer is away when the run ends",
        f"say --grace {wait_s / 3600:.2g} ({wait}), or --sink s3://BUCKET/PREFIX or volume:NAME (which keeps them)",
    )


def _cost(wait_s: float, per_hour: float) -> str:
    return money(wait_s / 3600 * per_hour)
