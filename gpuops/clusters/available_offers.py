"""The offers for a request: what the provider cannot do or refuses is said before anything is rented."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gpuops.core.context import Context
from gpuops.core.errors import ProviderError
from gpuops.core.models import Offer, Payer, Problem, Request
from gpuops.core.provider import Provisioner, is_rented
from gpuops.core.timings import Whose
from gpuops.offers import offer_table
from gpuops.offers.lease_limits import LeaseLimits
from gpuops.offers.offer_check import check_capabilities, drop_false, select_fitting
from gpuops.offers.price_approval import PriceApproval
from gpuops.offers.price_terms import Terms
from gpuops.offers.search import OfferSearch, OfferSource


def find_offers(ctx: Context, request: Request, known_notes: set[str] | None = None) -> tuple[Provisioner, list[Offer]]:
    """Check the request and get its offers; nothing is created. Raises ProviderError, UsageError.

    `known_notes`: notes that were printed before, and are not printed again; new ones are added.
    """
    known_notes = set() if known_notes is None else known_notes
    provisioner = ctx.provisioner(request.provider)
    check_capabilities(provisioner, request)
    problems = _preflight(ctx, provisioner, request)
    settled = _settle_problems(ctx, request, problems)
    if settled != request:
        request, problems = settled, _preflight(ctx, provisioner, settled)
    for note in [_describe_problem(problem) for problem in problems if not problem.fatal]:
        if note not in known_notes:
            known_notes.add(note)
            ctx.out.say(note)
    fatal = [problem for problem in problems if problem.fatal]
    if fatal:
        raise ProviderError("; ".join(dict.fromkeys(problem.say for problem in fatal)), fatal[0].hint)
    with ctx.progress.during(f"asking {request.provider} what it has", whose=Whose.PROVIDER):
        all_offers = provisioner.offers(request)
    if is_rented(provisioner):
        all_offers = _drop_false(ctx, request, all_offers, known_notes)
    return provisioner, select_fitting(request, all_offers)


def _drop_false(ctx: Context, request: Request, offers: Sequence[Offer], known_notes: set[str]) -> list[Offer]:
    """The offers that can be true; the others are named. Raises ProviderError where none can be."""
    told, dropped = drop_false(request, offers, as_asked=False)
    if dropped and not told:
        raise ProviderError(dropped[0], "nothing was created; another provider may be honest")
    for note in [f"note: {sentence}" for sentence in dropped]:
        if note not in known_notes:
            known_notes.add(note)
            ctx.out.say(note)
    return told


def _describe_problem(problem: Problem) -> str:
    return f"{'note' if problem.note else 'warning'}: {problem.say}; {problem.hint}"


def _preflight(ctx: Context, provisioner: Provisioner, request: Request) -> list[Problem]:
    with ctx.progress.during(f"looking whether {request.provider} is ready", whose=Whose.PROVIDER):
        return list(provisioner.preflight(request))


def _settle_problems(ctx: Context, request: Request, problems: Sequence[Problem]) -> Request:
    """The request with the user's confirmation of what only a person can settle (hosts' keys): one question, for all
    or none."""
    open_ones = [problem for problem in problems if problem.settle]
    if not open_ones or ctx.yes or not ctx.out.interactive:
        return request
    question = open_ones[0].say
    if len(open_ones) > 1:
        for problem in open_ones:
            ctx.out.say(problem.say)
        question = f"all {len(open_ones)} are right"
    if ctx.out.confirm(f"{question}: go on?"):
        settled = {problem.settle: True for problem in open_ones}
        return dataclasses.replace(request, options={**request.options, **settled})
    return request


def preview_offers(ctx: Context, request: Request, wish: LeaseLimits) -> tuple[Sequence[Offer], Payer | None]:
    """The offers of a dry run, and who would pay; notes on the price are printed. Raises ProviderError, UsageError."""
    rented = is_rented(ctx.provisioner(request.provider))
    approval = PriceApproval()
    search = OfferSearch(ctx, dataclasses.replace(request, wait_s=0.0), offer_source(ctx), approval)
    offers = search.offers()
    terms = Terms(ctx, request, wish, rented, search, approval)
    terms.warn_of_balance(offers[0])
    return offers, terms.payer(offers[0])


def offer_source(ctx: Context, avoided: Sequence[str] = ()) -> OfferSource:
    return lambda request, known_notes: offer_table.order_avoided_last(
        find_offers(ctx, request, known_notes)[1], avoided
    )
