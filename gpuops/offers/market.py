"""Several providers that rent, asked at once for the same machines: what each offers now, or why none of it can be had.

Nothing here rents; `clusters.market_creation` does, from what is told here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from gpuops.agent.workers import WORKERS
from gpuops.core.context import Context
from gpuops.core.errors import (
    GpuopsError,
    NoCapacity,
    NotSetUp,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Unknown,
    UsageError,
)
from gpuops.core.format import listed, plural
from gpuops.core.models import Offer, Request
from gpuops.core.names import CHEAPEST
from gpuops.core.provider import LoadedProvisioner, is_rented
from gpuops.core.timings import Whose
from gpuops.offers.billing_account import refuse_dotenv
from gpuops.offers.offer_check import check_capabilities, drop_false, select_fitting
from gpuops.offers.offer_table import order_avoided_last
from provisioners import registry

ANSWER_TIMEOUT_S = 5.0
"""A provider that has not answered by then is named, and not waited for."""
RENT_TIMEOUT_S = 30.0
"""The same where something is to be rented: to leave one out for a slow answer may cost more."""

DROPPED_SHOWN = 2
"""How many of a provider's false offers are told one by one."""
PASSING = (NoCapacity, QuotaExceeded, RateLimited, Unknown)
"""Errors that may be over in a minute."""


@dataclass(frozen=True)
class Market:
    """The providers that a command may rent from."""

    providers: Sequence[str]
    by_price: bool = False
    """The cheapest offer of all goes first; else all of the provider that was named first."""


@dataclass(frozen=True)
class Answer:
    """What one provider said."""

    provider: str
    offers: Sequence[Offer] = ()
    """Best first, in the provider's own order."""
    notes: Sequence[str] = ()
    dropped: Sequence[str] = ()
    """A sentence on each offer that cannot be what was asked for."""
    error: GpuopsError | None = None
    """Why nothing of it can be rented now; `offers` are then its prices for whoever has an account."""

    @property
    def rentable(self) -> Sequence[Offer]:
        return () if self.error else self.offers


def parse_market(ctx: Context, typed: str) -> Market | None:
    """The providers of `cheapest` or `a,b`; None for a single name. Raises UsageError for one that rents nothing."""
    names = [name.strip() for name in typed.split(",")]
    if names == [CHEAPEST]:
        return Market(_all_renting(ctx), by_price=True)
    if len(names) == 1:
        return None
    if CHEAPEST in names or "" in names:
        raise UsageError(f"'{typed}' is no list of providers", f"write {CHEAPEST} alone, or names: runpod,aws")
    return Market(check_providers(ctx, names))


def check_providers(ctx: Context, names: Sequence[str]) -> list[str]:
    """The names, each once. Raises UsageError for one that is unknown, or rents nothing."""
    for name in names:
        if not is_rented(ctx.provisioner(name)):
            raise UsageError(
                f"{name} rents nothing: its machines are there already",
                f"name it alone, or those that rent: {_renting(ctx)}",
            )
    return [*dict.fromkeys(names)]


def renting_providers(ctx: Context) -> list[str]:
    """Every provider that rents machines; one that cannot be loaded is among them, and says so once it is asked."""
    return [name for name in registry.provider_names() if _may_rent(ctx, name)]


def _all_renting(ctx: Context) -> list[str]:
    if names := renting_providers(ctx):
        return names
    raise UsageError("no provider that rents machines is installed", "gpuops up --help names all providers")


def _may_rent(ctx: Context, name: str) -> bool:
    try:
        return is_rented(ctx.provisioner(name))
    except GpuopsError:
        return True


def _renting(ctx: Context) -> str:
    return ",".join(renting_providers(ctx))


def ask_providers(ctx: Context, requests: Sequence[Request], limit_s: float = ANSWER_TIMEOUT_S) -> list[Answer]:
    """What each provider offers for its request, in the order of the requests; each is asked in a thread of its own."""
    answers: dict[str, Answer] = {}

    def ask(request: Request) -> None:
        answers[request.provider] = _ask(ctx, request)
        ctx.progress.waits("", request.provider)

    names = [request.provider for request in requests]
    deadline = ctx.clock.monotonic() + limit_s
    with ctx.progress.during(f"asking {listed(names)} what they have", limit_s, whose=Whose.PROVIDER):
        jobs = []
        for request in requests:
            ctx.progress.waits("no answer yet", request.provider)
            jobs.append(WORKERS.start(partial(ask, request), f"offers of {request.provider}"))
        for job in jobs:
            job.join(max(0.0, deadline - ctx.clock.monotonic()))
        for name in names:
            ctx.progress.waits("", name)
    return [answers.get(name) or _no_answer(name, limit_s) for name in names]


def _no_answer(name: str, limit_s: float) -> Answer:
    error = Unknown(
        f"{name} did not answer within {limit_s:g} s", f"try again, or ask it alone: gpuops up {name} --dry-run"
    )
    return Answer(name, error=error)


def _ask(ctx: Context, request: Request) -> Answer:
    """One provider's answer. Never raises what a provider may cause."""
    name = request.provider
    try:
        provisioner = ctx.provisioner(name)
        check_capabilities(provisioner, request)
        refuse_dotenv(ctx, name)
        error, notes = _check(provisioner, request)
        if error and _lacks_key(provisioner, request):
            error = NotSetUp(error.message, error.hint)
        elif error:
            return Answer(name, error=error)
        told, dropped = drop_false(request, _offers(provisioner, request, error))
        return Answer(name, select_fitting(request, told) if told or not dropped else [], notes, dropped, error)
    except GpuopsError as wrong:
        return Answer(name, error=wrong)


def _offers(provisioner: LoadedProvisioner, request: Request, error: GpuopsError | None) -> Sequence[Offer]:
    """Its offers. Raises `error` where it tells none without an account."""
    try:
        return _offers_of_known_gpus(provisioner, request)
    except GpuopsError as wrong:
        raise error or wrong from wrong


def _offers_of_known_gpus(provisioner: LoadedProvisioner, request: Request) -> Sequence[Offer]:
    """The offers of those GPUs of `--gpu-type a,b` that the provider knows: each provider has others."""
    try:
        return provisioner.offers(request)
    except UsageError as unknown:
        found: list[Offer] = []
        for name in (request.gpu_type or "").split(",") if "," in (request.gpu_type or "") else ():
            with suppress(UsageError, NoCapacity):
                found += provisioner.offers(dataclasses.replace(request, gpu_type=name.strip()))
        if not found:
            raise unknown
        return sorted(found, key=lambda offer: offer.per_hour)


def _check(provisioner: LoadedProvisioner, request: Request) -> tuple[GpuopsError | None, list[str]]:
    """Why a provider cannot do what is asked for, and what it says besides."""
    problems = list(provisioner.preflight(request))
    fatal = [problem for problem in problems if problem.fatal]
    notes = [f"{problem.say}; {problem.hint}" for problem in problems if not problem.fatal and not problem.note]
    if not fatal:
        return None, notes
    return ProviderError("; ".join(dict.fromkeys(problem.say for problem in fatal)), fatal[0].hint), notes


def _lacks_key(provisioner: LoadedProvisioner, request: Request) -> bool:
    """Whether no key to an account was found: some providers tell their prices to everybody."""
    payer = provisioner.payer(request, 0.0)
    return payer is not None and not payer.source


def rank(
    market: Market, answers: Sequence[Answer], avoided: Sequence[str] = (), last: Sequence[str] = ()
) -> list[Offer]:
    """All that can be rented, in the order in which it is tried. `last`: providers that lost machines, which come last,
    the latest of them at the very end; `avoided`: the places where they did."""
    offers = [offer for answer in answers for offer in answer.rentable]
    if market.by_price:
        offers.sort(key=lambda offer: offer.per_hour)
    later = {name: number for number, name in enumerate(last, 1)}
    order = sorted(order_avoided_last(offers, avoided), key=lambda offer: later.get(offer.provider, 0))
    if order:
        why = "the cheapest" if market.by_price else "its provider was named first"
        others = " of those that lost none" if last and order[0].provider not in last else ""
        order[0] = dataclasses.replace(order[0], data={**order[0].data, "why": why + others})
    return order


def say_answers(ctx: Context, answers: Sequence[Answer], said: set[str]) -> None:
    """Print what is to be known of the answers; `said`: lines that were printed before."""
    for line in (line for answer in answers for line in describe_answer(answer)):
        if line not in said:
            said.add(line)
            ctx.out.say(line)


def describe_answer(answer: Answer) -> list[str]:
    """What a person should know of an answer besides its offers."""
    lines = [f"note: {answer.provider}: {note}" for note in answer.notes]
    lines += [f"note: {sentence}" for sentence in answer.dropped[:DROPPED_SHOWN]]
    if (more := len(answer.dropped) - DROPPED_SHOWN) > 0:
        lines.append(f"note: {answer.provider}: {plural(more, 'other offer')} left out, too")
    if answer.error:
        only = " (these are its prices, for whoever has an account)" if answer.offers else ""
        say = name_provider(answer.provider, answer.error.message)
        lines.append(f"note: {'; '.join(filter(None, [say + only, answer.error.hint]))}")
    return lines


def name_provider(provider: str, sentence: str) -> str:
    """The sentence, which names its provider."""
    return sentence if provider in sentence.lower() else f"{provider}: {sentence}"


def lack_accounts(answers: Sequence[Answer]) -> bool:
    """Whether none of the providers has found an account to use."""
    return all(isinstance(answer.error, NotSetUp) for answer in answers)


def nothing_offered(answers: Sequence[Answer]) -> GpuopsError:
    """Why none of the providers offers anything that can be rented."""
    if len(answers) == 1:
        only = f"{answers[0].provider} offers nothing that can be what was asked for"
        return answers[0].error or NoCapacity(only, "try another provider")
    names = listed([answer.provider for answer in answers])
    if lack_accounts(answers):
        return NotSetUp(f"no account is set up here at {names}", "set up one of them: the notes above say how")
    say = f"nothing that fits can be had at {names}"
    if any(answer.error is None or isinstance(answer.error, PASSING) for answer in answers):
        return NoCapacity(say, "what each of them said stands above; ask for less, or wait: --wait 2h")
    return ProviderError(say, "what each of them said stands above")


def with_provider(request: Request, provider: str) -> Request:
    """The same wish at another provider, which alone does not wait for capacity: the search over all of them does."""
    return dataclasses.replace(request, provider=provider, wait_s=0.0)
