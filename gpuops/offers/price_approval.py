"""The price that a person has approved: one question before money is spent, and the limits that follow from it.

One approval covers all machines that a command rents, also those that later replace preempted ones: offers up to its
ceiling are accepted without another question.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpuops.core.context import Context
from gpuops.core.errors import UsageError
from gpuops.core.format import money, span
from gpuops.core.models import Offer, Payer, Request
from gpuops.core.provider import is_rented
from gpuops.offers.billing_account import find_payer
from gpuops.offers.lease_limits import LeaseLimits, find_most, within_offer
from gpuops.offers.offer_table import format_payer

PRICE_ROUNDING = 0.01
"""Two prices that differ by at most this part are the same: providers round theirs."""
MAX_PRICE_FACTOR = 1.5
"""Without `--max-price` an offer may cost at most this times the first one."""


PayerOf = Callable[[Offer], Payer | None]


@dataclass
class PriceApproval:
    """What a person has approved, in $/h, and what has happened to the machines since."""

    first: float = 0.0
    """Price of the first offer, from which the ceiling is computed."""
    agreed: float = 0.0
    """The highest price that a question named and a person confirmed; 0: not asked yet."""
    until: float | None = None
    """Until when machines may live at the latest, as the question told (UTC seconds), however late they are had."""
    avoided: list[str] = field(default_factory=list)
    """Places (`Offer.data["place"]`) where machines were preempted, the latest last."""
    settled: bool = False
    """These machines replace preempted ones: no further question is asked."""
    spent_before: float = 0.0
    """$ for machines that were given back, since the last cluster that came up: none is whole without all of them."""
    replaces: bool = False
    """Preempted machines will be replaced (`--retries`): the approval covers the replacements."""

    def confirm_offers(
        self, ctx: Context, request: Request, offers: Sequence[Offer], payer_of: PayerOf, limits: LeaseLimits
    ) -> bool:
        """Have a person confirm the first offer, what may come in its place, and the most that it can cost. Returns
        whether that was told. Raises UsageError."""
        if self.settled or offers[0].per_hour <= self.agreed:
            return False
        first = offers[0].per_hour
        self.first = self.first or first  # prices that rise from round to round do not raise the ceiling
        ceiling = price_ceiling(self.first, request.max_price)
        covered = [offer for offer in offers if offer.per_hour <= ceiling]
        cheapest, dearest = (end(offer.per_hour for offer in covered) for end in (min, max))
        price = f"{money(first)}/h{self._alternatives(first, ceiling, dearest)}"
        highest = ceiling if self.replaces and not math.isinf(ceiling) else dearest
        now = ctx.clock.now()
        longest = max((within_offer(limits, offer) for offer in covered), key=lambda one: one.until or math.inf)
        most = find_most(longest, request, cheapest, highest, now)
        at = f"{offers[0].provider}: " if len({offer.provider for offer in offers}) > 1 else ""
        what = f"{at}{offers[0].say}, {price}{format_payer(payer_of(offers[0]))}; {most.describe(now)}"
        if ctx.yes:
            ctx.out.say(what)
        else:
            confirm_price(ctx, what)
        self.agreed, self.until = dearest, most.until
        return True

    def _alternatives(self, first: float, ceiling: float, dearest: float) -> str:
        """What the question covers besides the first offer."""
        if self.replaces:
            return f" (and up to {money(ceiling)}/h for what replaces it)"
        return f" (or up to {money(dearest)}/h where that cannot be had)" if dearest > first else ""

    def confirm_max_price(self, ctx: Context, request: Request, limits: LeaseLimits, left_s: float) -> None:
        """Have a person confirm `--max-price` before a wait of `left_s` seconds for an offer. Raises UsageError."""
        if ctx.yes or self.agreed or not is_rented(ctx.provisioner(request.provider)):
            return
        require_person(ctx)
        if request.max_price is None:
            ctx.out.say("note: stay near: you are asked when there is an offer; with --max-price you are asked now")
            return
        price = f"{money(request.max_price)}/h{format_payer(find_payer(ctx, request))}"
        now = ctx.clock.now()
        most = find_most(limits, request, 0.0, request.max_price, now)
        confirm_price(ctx, f"wait for {span(left_s)} at most, then rent for up to {price}; {most.describe(now)}")
        self.agreed, self.until = request.max_price, most.until

    def limit(self, request: Request, *, yes: bool) -> float:
        """The highest price in $/h at which an offer is accepted."""
        without_question = yes or self.settled or request.max_price is not None
        return price_ceiling(self.first, request.max_price) if without_question else self.agreed

    def refusal(self, offer: Offer, request: Request, *, yes: bool) -> str:
        """Why an offer may not be tried; empty where it may."""
        if offer.per_hour <= self.limit(request, yes=yes):
            return ""
        if offer.per_hour > price_ceiling(self.first, request.max_price):
            return explain_too_expensive(offer, self.first)
        return f"{offer.say} costs {money(offer.per_hour)}/h, and {money(self.agreed)}/h was agreed to"


def confirm_price(ctx: Context, question: str) -> None:
    """Ask a person before money is spent. Raises UsageError without a terminal, or where the answer is no."""
    confirm_or_refuse(ctx, question, "nothing was created")


def confirm_or_refuse(ctx: Context, question: str, kept: str) -> None:
    """Ask a person. Raises UsageError without a terminal, or where the answer is no, which leaves it at `kept`."""
    require_person(ctx)
    if not ctx.out.confirm(f"{question}: go?"):
        raise UsageError(f"not confirmed: {kept}", "--yes skips the question")


def require_person(ctx: Context) -> None:
    """Raises UsageError where no terminal can ask."""
    if not ctx.out.interactive:
        raise UsageError("cannot ask for confirmation: no terminal", "add --yes")


def price_ceiling(first: float, max_price: float | None) -> float:
    """The highest price in $/h that is accepted where the first offer costs `first`."""
    if max_price is not None:
        return max_price
    return first * MAX_PRICE_FACTOR if first > 0 else math.inf


def explain_too_expensive(offer: Offer, first: float) -> str:
    """Why an offer above the ceiling was not accepted."""
    price, factor = money(offer.per_hour), f"{MAX_PRICE_FACTOR:g} times {money(first)}/h"
    return f"the next offer is {offer.say} at {price}/h, more than {factor}"


def max_price_flag(per_hour: float) -> str:
    """The flag that allows a price."""
    return f"--max-price {math.ceil(round(per_hour * 100, 6)) / 100:.2f}"
