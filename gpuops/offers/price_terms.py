"""The terms of one cluster: the price that is accepted, how long machines may boot, and until when they live."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gpuops.core.context import Context
from gpuops.core.errors import Rejected
from gpuops.core.format import clock_time, money
from gpuops.core.models import Lease, Offer, Payer, Request
from gpuops.ledger.store import ClusterRow
from gpuops.offers import lease_limits
from gpuops.offers.lease_limits import BOOT_MARGIN_S, MIN_LEASE_S, LeaseLimits, limits_after, within_offer
from gpuops.offers.price_approval import PRICE_ROUNDING, PriceApproval, max_price_flag
from gpuops.offers.search import ACCOUNT_WAIT_S, OfferSearch


class Terms:
    """Price and lease of the machines that one request asks for; each note is printed once."""

    def __init__(
        self,
        ctx: Context,
        request: Request,
        limits: LeaseLimits,
        rented: bool,
        search: OfferSearch,
        approval: PriceApproval,
    ) -> None:
        self._ctx = ctx
        self._request = request
        self._limits = limits
        self._rented = rented
        self._search = search
        self._approval = approval
        self._said: set[str] = set()
        self._confirmed: Offer | None = None
        """What the question has told, which is not told again."""

    def confirm_price(self, offers: Sequence[Offer]) -> None:
        """Ask the one question before money is spent. Raises UsageError."""
        self.warn_of_balance(offers[0])
        if self._approval.confirm_offers(self._ctx, self._request, offers, self.payer, self._limits):
            self._confirmed = offers[0]

    def warn_of_balance(self, first: Offer) -> None:
        """Print how long the balance lasts, where it is known already and shortens the lease."""
        funds = self._search.account.answer(0.0)
        if funds is not None and funds.balance is not None:
            now = self._ctx.clock.now()
            requested = self._requested_lease(first, now, self._approval.spent_before)
            _, note = lease_limits.cut_to_balance(requested, funds, first.per_hour, now)
            self._note(lease_limits.balance_warning(funds, first.per_hour) or note)

    def payer(self, offer: Offer) -> Payer | None:
        """Who pays for an offer; None for what is free."""
        return self._search.payer(offer) if self._rented else None

    def explain_refusal(self, offer: Offer) -> str:
        """Why an offer may not be tried; empty where it may."""
        return self._approval.refusal(offer, self._request, yes=self._ctx.yes)

    def check_price(self, name: str, offer: Offer, price: float) -> None:
        """Compare the price of the created machines, as their provider now says (`price`, $/h), with the approved one.
        Raises Rejected: another attempt would cost the same."""
        limit = max(self._approval.limit(self._request, yes=self._ctx.yes), offer.per_hour)
        if self._rented and price > limit * (1 + PRICE_ROUNDING):
            raise Rejected(
                f"{name} costs {money(price)}/h, as {offer.provider} tells it now, and {money(limit)}/h was agreed to",
                f"where that is worth it: {max_price_flag(price)}",
            )

    def check_spent(self, name: str, spent: float) -> None:
        """Raises Rejected where machines that boot have used up `--max-cost` with `spent` $."""
        most = self._limits.max_cost
        if most is not None and spent >= most:
            raise Rejected(f"{money(most)} (--max-cost) were spent before {name} was ready", "raise --max-cost")

    def announce(self, row: ClusterRow, offer: Offer) -> None:
        """Print the offer that is tried now, each once however often it is tried; its notes, too."""
        price = f", {money(offer.per_hour)}/h" if offer.per_hour else ""
        if offer != self._confirmed:
            self._say_once(f"{row.name}: {offer.say}{price}")
        for note in offer.notes:
            self._note(note)

    def check_limits(self, offer: Offer, now: float, spent: float) -> None:
        """Raises Rejected where attempts that came to nothing have left too little of `--max-cost`, of which `spent` $
        are gone, or of the time that was agreed to."""
        if why := limits_after(self._limits, spent, offer.per_hour)[1]:
            raise Rejected(f"{why}, with what was given back since a part of it could not be had", "raise --max-cost")
        until = self._approval.until
        if self._rented and until is not None and until - now < MIN_LEASE_S:
            told = f"machines were to live until {clock_time(until, now)}, which is too soon by now"
            raise Rejected(told, "type it again")

    def boot_end(self, offer: Offer, now: float, spent: float) -> float:
        """The end of the boot lease: machines that are not ready yet cost money, too. `spent`: as for `lease`."""
        requested, until = self._requested_lease(offer, now, spent), self._within(offer).until
        longest = now + offer.queue_s + self._request.timeout_min * 60 + BOOT_MARGIN_S
        return min(end for end in (longest, requested.money_end, until) if end is not None)

    def lease(
        self, offer: Offer, now: float, spent: float, since: float | None = None, per_hour: float | None = None
    ) -> Lease:
        """The cluster's lease on such an offer, no longer than the balance lasts. `spent`: $ of the limit that are used
        up already; `since`: when the machines began to cost money; `per_hour`: what they cost, where that is not the
        offer's price."""
        per_hour = offer.per_hour if per_hour is None else per_hour
        lease = self._requested_lease(offer, now, spent, since, per_hour)
        funds = self._search.account.answer(0.0 if since is None else ACCOUNT_WAIT_S)
        if funds is None:
            return lease
        lease, note = lease_limits.cut_to_balance(lease, funds, per_hour, now)
        if since is not None:
            self._note(note or lease_limits.balance_warning(funds, per_hour))
        return lease

    def _requested_lease(
        self, offer: Offer, now: float, spent: float, since: float | None = None, per_hour: float | None = None
    ) -> Lease:
        """The lease that the flags and the offer name, however long the balance lasts."""
        per_hour = offer.per_hour if per_hour is None else per_hour
        limits = limits_after(self._within(offer), spent, per_hour)[0]
        return lease_limits.new_lease(limits, rented=self._rented, per_hour=per_hour, now=now, since=since)

    def _within(self, offer: Offer) -> LeaseLimits:
        """The limits as they are for an offer, and no later than was agreed to."""
        limits, until = within_offer(self._limits, offer), self._approval.until
        if not self._rented or until is None:
            return limits
        return dataclasses.replace(limits, until=until if limits.until is None else min(until, limits.until))

    def _note(self, note: str) -> None:
        if note:
            self._say_once(f"note: {note}")

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._ctx.out.say(line)
