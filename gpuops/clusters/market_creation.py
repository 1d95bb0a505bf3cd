"""Creating a cluster at whichever of several providers has its machines: offer after offer, each by `creation`.

What one provider refuses is undone before the next one is asked: there never are two clusters for one wish.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter

from gpuops.clusters.available_offers import preview_offers
from gpuops.clusters.creation import bring_up
from gpuops.core.context import Context
from gpuops.core.errors import AuthFailed, GpuopsError, NoCapacity, ProviderError, QuotaExceeded
from gpuops.core.format import listed, money, span
from gpuops.core.models import Offer, Payer, Request
from gpuops.core.parallel import on_each
from gpuops.core.polling import Poller
from gpuops.core.timings import Whose
from gpuops.nodes.session import ClusterSession
from gpuops.offers import market, offer_table
from gpuops.offers.billing_account import find_payer
from gpuops.offers.lease_limits import MIN_LEASE_S, LeaseLimits
from gpuops.offers.market import Market
from gpuops.offers.price_approval import PriceApproval, max_price_flag, price_ceiling, require_person
from gpuops.offers.search import REPLACEMENT_SEARCH_S, SEARCH_PAUSES_S


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What is wanted of a market, and on which terms: as in `creation.bring_up`."""

    request: Request
    name: str | None
    ephemeral: bool
    wish: LeaseLimits
    foreword: Callable[[Offer], str] = lambda _: ""
    approval: PriceApproval = dataclasses.field(default_factory=PriceApproval)


def bring_up_wanted(ctx: Context, place: Market | None, wanted: Wanted, last: Sequence[str] = ()) -> ClusterSession:
    """A cluster at the request's provider, or at one of a market (`bring_up_at_market`)."""
    if place is not None:
        return bring_up_at_market(ctx, place, wanted, last)
    return bring_up(
        ctx,
        wanted.request,
        name=wanted.name,
        ephemeral=wanted.ephemeral,
        wish=wanted.wish,
        foreword=wanted.foreword,
        approval=wanted.approval,
    )


def bring_up_at_market(ctx: Context, place: Market, wanted: Wanted, last: Sequence[str] = ()) -> ClusterSession:
    """A cluster at the first provider that has its machines, searched for during the request's `wait_s`.

    `last`: providers that lost such machines, which are tried last. Raises NoCapacity where nobody has them.
    """
    if wanted.name is not None:
        ctx.ledger.check_name_free(wanted.name)
    said: set[str] = set()
    wait_s = _wait_s(ctx, wanted)
    deadline = ctx.clock.monotonic() + wait_s
    poller = Poller.with_pauses(ctx.clock, deadline, SEARCH_PAUSES_S)
    for attempt in poller:
        try:
            return _try_all(ctx, place, wanted, last, said)
        except (NoCapacity, QuotaExceeded) as refused:
            if attempt.is_last or wait_s <= 0:
                raise
            _announce_wait(ctx, wanted, refused, deadline - ctx.clock.monotonic(), said)
            ctx.progress.waits(f"asking again in {span(poller.next_pause_s)}")
    raise AssertionError("the last attempt returns or raises")


def _wait_s(ctx: Context, wanted: Wanted) -> float:
    """How long to search: as typed; for replacements half an hour, but for no machine that would soon have to end."""
    by_itself = REPLACEMENT_SEARCH_S if wanted.approval.settled else 0.0
    wait_s = by_itself if wanted.request.wait_s is None else wanted.request.wait_s
    until = wanted.wish.until
    return wait_s if until is None else max(0.0, min(wait_s, until - MIN_LEASE_S - ctx.clock.now()))


def _announce_wait(ctx: Context, wanted: Wanted, refused: GpuopsError, left_s: float, said: set[str]) -> None:
    """Say once that the search goes on. Raises UsageError where nobody could be asked about the price later."""
    if "waits" in said:
        return
    said.add("waits")
    ctx.out.say(f"{refused.message}: asking again for {span(left_s)}")
    if not (ctx.yes or wanted.approval.agreed):
        require_person(ctx)
        ctx.out.say("note: stay near: you are asked when there is an offer")


def find_market_offers(
    ctx: Context,
    place: Market,
    request: Request,
    said: set[str],
    avoided: Sequence[str] = (),
    last: Sequence[str] = (),
) -> list[Offer]:
    """What can be rented, in the order in which it is tried. Raises NoCapacity, or the only provider's error."""
    requests = [market.with_provider(request, name) for name in place.providers]
    answers = market.ask_providers(ctx, requests, market.RENT_TIMEOUT_S)
    market.say_answers(ctx, answers, said)
    offers = market.rank(place, answers, avoided, last)
    if not offers:
        raise market.nothing_offered(answers)
    return offers


def _try_all(ctx: Context, place: Market, wanted: Wanted, last: Sequence[str], said: set[str]) -> ClusterSession:
    """One round: every offer within the approved price. Raises NoCapacity where none could be had, and another
    ProviderError where waiting changes none of the reasons."""
    if last:
        ctx.out.say(f"{listed(last)} lost machines of this run: asked last")
    found = find_market_offers(ctx, place, wanted.request, said, wanted.approval.avoided, last)
    offers = _within_price(ctx, wanted, found)
    _approve(ctx, wanted, offers)
    refusals: list[ProviderError] = []
    locked: set[str] = set()
    for provider, group in groupby(offers, key=attrgetter("provider")):
        if provider in locked:
            continue
        try:
            return bring_up(
                ctx,
                market.with_provider(wanted.request, provider),
                name=wanted.name,
                ephemeral=wanted.ephemeral,
                wish=wanted.wish,
                approval=wanted.approval,
                known=[*group],
            )
        except ProviderError as error:
            ctx.signals.forward()  # undoing it is over: nothing is rented after a Ctrl-C, and the next one is heard
            refusals.append(error)
            locked |= {provider} if isinstance(error, AuthFailed) else set()
            ctx.out.say(f"{market.name_provider(provider, error.message)}: on to the next offer")
    raise _nobody_had_them(refusals)


def _nobody_had_them(refusals: Sequence[ProviderError]) -> ProviderError:
    """Each provider's reason as one error, which says what helps with the first that waiting may change."""
    passing = [error for error in refusals if isinstance(error, market.PASSING)]
    if not passing and len(refusals) == 1:
        return refusals[0]
    reasons = "; ".join(dict.fromkeys(error.message for error in refusals))
    kind = NoCapacity if passing else ProviderError
    return kind(f"nobody had the machines: {reasons}", (passing or refusals)[0].hint)


def _within_price(ctx: Context, wanted: Wanted, offers: Sequence[Offer]) -> list[Offer]:
    """The offers that one approval covers, by the first one's price; the others are named."""
    first = wanted.approval.first or offers[0].per_hour
    ceiling = price_ceiling(first, wanted.request.max_price)
    dearer = [offer for offer in offers if offer.per_hour > ceiling]
    if dearer:
        names = listed([*dict.fromkeys(offer.provider for offer in dearer)])
        cheapest = min(offer.per_hour for offer in dearer)
        ctx.out.say(
            f"note: dearer offers are not tried ({names}, from {money(cheapest)}/h): "
            f"{max_price_flag(cheapest)} allows them"
        )
    within = [offer for offer in offers if offer.per_hour <= ceiling]
    if not within:
        raise NoCapacity(
            f"nothing can be had for {money(ceiling)}/h or less", f"allow it: {max_price_flag(dearer[0].per_hour)}"
        )
    return within


def _approve(ctx: Context, wanted: Wanted, offers: Sequence[Offer]) -> None:
    """Show all offers, and ask the one question that covers them. Raises UsageError."""
    offer_table.show_offers(ctx, offers)
    if sentence := wanted.foreword(offers[0]):
        ctx.out.say(sentence)
    if wanted.approval.settled:
        return
    payers = find_payers(ctx, wanted.request, offers)
    for provider, payer in payers.items():
        if payer and len(payers) > 1:
            ctx.out.say(f"{provider}: {payer}")
    wanted.approval.confirm_offers(ctx, wanted.request, offers, lambda offer: payers[offer.provider], wanted.wish)


def find_payers(ctx: Context, request: Request, offers: Sequence[Offer]) -> dict[str, Payer | None]:
    """Who would pay, by provider."""
    first = {offer.provider: offer for offer in reversed(offers)}
    names = [*dict.fromkeys(offer.provider for offer in offers)]
    with ctx.progress.during("asking whose accounts these are", whose=Whose.PROVIDER, aside=True):
        found = on_each(
            lambda name: find_payer(
                ctx, dataclasses.replace(market.with_provider(request, name), region=first[name].region)
            ),
            names,
        )
    return dict(zip(names, found, strict=True))


def preview(
    ctx: Context, place: Market | None, request: Request, wish: LeaseLimits
) -> tuple[Sequence[Offer], Payer | None]:
    """The offers of a dry run, and who would pay for the first. Raises ProviderError, UsageError."""
    if place is None:
        return preview_offers(ctx, request, wish)
    offers = find_market_offers(ctx, place, request, set())
    return offers, find_payers(ctx, request, offers[:1])[offers[0].provider]
