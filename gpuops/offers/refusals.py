"""Why offers could not be had: capacity and quota, which get opposite advice, and prices beyond what was agreed to."""

from __future__ import annotations

from gpuops.core.errors import NoCapacity, QuotaExceeded
from gpuops.core.models import Offer
from gpuops.offers import table

WAIT_HINT = "try again later, let it be tried for you (--wait 2h), or allow more kinds of machine"


class Refusals:
    """What came of one round of offers, none of which was had in the end."""

    def __init__(self) -> None:
        self._capacity: list[NoCapacity] = []
        self._quota: list[QuotaExceeded] = []
        self._spent: set[str] = set()
        """Quotas that are used up: none of their offers is asked for again in this round."""
        self._passed = 0
        self._dear: tuple[Offer, str] | None = None

    def passes(self, offer: Offer) -> bool:
        """Whether an offer falls under a quota that another was refused for."""
        passed = _quota(offer) in self._spent
        self._passed += passed
        return passed

    def too_dear(self, offer: Offer, why: str) -> None:
        self._dear = self._dear or (offer, why)

    def refused(self, offer: Offer, error: NoCapacity | QuotaExceeded) -> None:
        """One was asked for in vain. Raises the error where nobody says which others its quota counts for."""
        if isinstance(error, NoCapacity):
            self._capacity.append(error)
        elif quota := _quota(offer):
            self._quota.append(error)
            self._spent.add(quota)
        else:
            raise error

    def error(self) -> NoCapacity | QuotaExceeded:
        """All of it in one: QuotaExceeded only where waiting would help nobody."""
        said = {"no capacity": _said(self._capacity), "beyond the quota": _said(self._quota)}
        count = len(self._capacity) + len(self._quota) + self._passed
        short = "; ".join(f"{what}: {why}" for what, why in said.items() if why)
        if self._quota and not self._capacity:
            short = said["beyond the quota"]
        elif not self._quota:
            short = said["no capacity"]
        none = f"none of {count} offers could be had: {short}" if count > 1 else short
        whys = [*([none] if short else []), *([self._dear[1]] if self._dear else [])]
        quota = self._quota[0].hint if self._quota else ""
        if quota and not self._capacity and not self._dear:
            return QuotaExceeded("; ".join(whys), quota)
        allow = _wait(self._capacity)
        if self._dear:
            or_wait = f"; or {allow}" if self._capacity else ""
            allow = f"allow it: {table.allowing(self._dear[0].per_hour)}{or_wait}"
        what = "for what is dearer" if self._dear else "for the capacity"
        return NoCapacity("; ".join(whys), f"{what}: {allow}; for the quota: {quota}" if quota else allow)


def _quota(offer: Offer) -> str:
    return str(offer.data.get("quota") or "")


def _said(errors: list[NoCapacity] | list[QuotaExceeded]) -> str:
    """Each reason once."""
    return "; ".join(dict.fromkeys(error.say for error in errors))


def _wait(errors: list[NoCapacity]) -> str:
    hints: set[str] = {error.hint for error in errors}
    return hints.pop() if len(hints) == 1 else WAIT_HINT
