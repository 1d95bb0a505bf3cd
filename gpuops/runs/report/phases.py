"""What a run's time and money went into: the moments between the first dollar and the last machine. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Moments:
    """UTC seconds by this computer's clock; None: not known, or not yet."""

    rented: float | None = None
    """Of a cluster that was brought up for this run alone; else the run begins with `prepared`."""
    booted: float | None = None
    prepared: float | None = None
    """Its preparation began."""
    launched: float | None = None
    first_step: float | None = None
    """Of a program that tells no steps, its first line."""
    last_step: float | None = None
    """Its last line."""
    ended: float | None = None
    home: float | None = None
    gone: float | None = None
    billed_until: float | None = None
    """When the cluster ended; what came home later, as from a bucket, cost no machine."""


@dataclass(frozen=True)
class Phase:
    name: str
    began: float
    seconds: float
    cost: float
    """Dollars."""


NAMES = {
    "booted": "rent and boot",
    "launched": "prepare and push",
    "first_step": "start",
    "last_step": "train",
    "ended": "end",
    "home": "bring home",
    "gone": "end the machines",
}
"""What goes on until each moment."""


def phases(moments: Moments, per_hour: float) -> Sequence[Phase]:
    """What took how long, and cost what. A moment that is not known makes one phase of two; one that lies before the
    one before it, as by a node's wrong clock, is taken as that."""
    at = moments.rented if moments.rented is not None else moments.prepared
    found: list[Phase] = []
    if at is None:
        return found
    for moment, name in NAMES.items():
        until = getattr(moments, moment)
        if until is None or (moment == "booted" and moments.rented is None):
            continue
        seconds = max(0.0, until - at)
        billed_s = seconds if moments.billed_until is None else max(0.0, min(until, moments.billed_until) - at)
        found.append(Phase(name, at, seconds, per_hour * billed_s / 3600))
        at += seconds
    return found
