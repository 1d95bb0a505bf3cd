"""Quotas of an account at a provider: limits, what a request would take of them, and requests to raise them.

Everything here is frozen and JSON-able. Times are UTC seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class QuotaIncrease:
    """A request for more of a quota, as the provider reports it."""

    id: str
    status: str
    """The provider's own word."""
    wanted: float
    """The new total, not what is added."""
    created: float | None = None
    open: bool = True
    """Whether it is still to be decided."""
    granted: bool | None = None
    """How it was decided; None: not yet, or the provider does not say (the limit itself tells)."""
    case: str = ""
    """The number of the provider's support case for it."""
    decided: float | None = None
    """When the provider last changed it (UTC seconds)."""
    advice: Sequence[str] = ()
    """What to do about it now, in plain lines."""


@dataclass(frozen=True)
class Quota:
    """How much of something an account may have at once in a region, and what a request would take of it."""

    region: str
    code: str
    """The provider's name for it; empty where it has none, and then nothing is known of it."""
    name: str
    unit: str
    limit: float | None
    """None: not known (no permission to read it, or no answer)."""
    used: float | None
    need: float | None = None
    """What the request takes, in its smallest form; None: nothing of this one."""
    sum: str = ""
    """How `need` is computed: `2 x 48 vCPU`."""
    machines: str = ""
    """What it is for: `2 x g5.12xlarge`."""
    asked: bool = False
    """Whether the request counts against this quota (spot and on-demand have different ones)."""
    usual: bool = False
    """Whether this is the likely quota where only spot or on-demand was named."""
    increases: Sequence[QuotaIncrease] | None = ()
    """The open requests for more; None: not known."""
    why: str = ""
    """Why something is not known."""

    @property
    def free(self) -> float | None:
        return None if self.limit is None or self.used is None else max(self.limit - self.used, 0.0)

    @property
    def missing(self) -> float | None:
        """How much more the request needs; None: not known, or nothing is needed."""
        return None if self.need is None or self.free is None else max(self.need - self.free, 0.0)


@dataclass(frozen=True)
class QuotaReport:
    """An account's quotas, and what follows from them for a request."""

    quotas: Sequence[Quota]
    advice: Sequence[str] = ()
    """Plain sentences, the most useful first; commands to copy stand at their ends, after a colon."""
    notes: Sequence[str] = ()
    """What could not be read, and why."""
