"""Why no offer of a round could be had: capacity, quota (with its own advice), or a price that was not approved."""

from __future__ import annotations

from gpuops.core.errors import NoCapacity, QuotaExceeded
from gpuops.core.models import Offer
from gpuops.offers.price_approval import max_price_flag

WAIT_HINT = "try again later, let it be tried for you (--wait 2h), or allow more kinds of machine"


class Refusals:
    """Why the offers of one round were refused."""

    def __init__(self) -> None:
        self._capacity: list[NoCapacity] = []
        self._quota: list[QuotaExceeded] = []
        self._exhausted: set[str] = set()
        """Quotas that refused an offer: no other offer under them is tried in this round."""
        self._skipped = 0
        self._too_expensive: tuple[Offer, str] | None = None

    def skips(self, offer: Offer) -> bool:
        """Whether an offer falls under a quota that refused another one."""
        skipped = _quota_name(offer) in self._exhausted
        self._skipped += skipped
        return skipped

    def add_too_expensive(self, offer: Offer, why: str) -> None:
        """Record an offer above the approved price; the first one counts."""
        self._too_expensive = self._too_expensive or (offer, why)

    def add_refusal(self, offer: Offer, error: NoCapacity | QuotaExceeded) -> None:
        """Record a refusal. Raises `error` for a quota whose other offers are unknown."""
        if isinstance(error, NoCapacity):
            self._capacity.append(error)
        elif quota := _quota_name(offer):
            self._quota.append(error)
            self._exhausted.add(quota)
        else:
            raise error

    def error(self) -> NoCapacity | QuotaExceeded:
        """All refusals as one error: QuotaExceeded only where waiting cannot help."""
        reasons = [
            reason
            for reason in (self._describe_refusals(), self._too_expensive[1] if self._too_expensive else "")
            if reason
        ]
        quota_hint = self._quota[0].hint if self._quota else ""
        if quota_hint and not self._capacity and not self._too_expensive:
            return QuotaExceeded("; ".join(reasons), quota_hint)
        hint = _wait_hint(self._capacity)
        if self._too_expensive:
            or_wait = f"; or {hint}" if self._capacity else ""
            hint = f"allow it: {max_price_flag(self._too_expensive[0].per_hour)}{or_wait}"
        if quota_hint:
            topic = "for what is dearer" if self._too_expensive else "for the capacity"
            hint = f"{topic}: {hint}; for the quota: {quota_hint}"
        return NoCapacity("; ".join(reasons), hint)

    def _describe_refusals(self) -> str:
        """Why capacity or quota refused offers; empty where they refused none."""
        capacity, quota = _unique_reasons(self._capacity), _unique_reasons(self._quota)
        both = f"no capacity: {capacity}; beyond the quota: {quota}"
        reasons = both if capacity and quota else capacity or quota
        count = len(self._capacity) + len(self._quota) + self._skipped
        return f"none of {count} offers could be had: {reasons}" if count > 1 and reasons else reasons


def _quota_name(offer: Offer) -> str:
    return str(offer.data.get("quota") or "")


def _unique_reasons(errors: list[NoCapacity] | list[QuotaExceeded]) -> str:
    """Each reason once."""
    return "; ".join(dict.fromkeys(error.message for error in errors))


def _wait_hint(errors: list[NoCapacity]) -> str:
    hints: set[str] = {error.hint for error in errors}
    return hints.pop() if len(hints) == 1 else WAIT_HINT
