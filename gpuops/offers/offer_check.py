"""Whether an offer is what was asked for: what a provider cannot do, prices that are none, other machines. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpuops.core.errors import NoCapacity, UsageError
from gpuops.core.format import money, one_line, plural
from gpuops.core.models import Offer, Request
from gpuops.core.names import words
from gpuops.core.provider import Provisioner
from gpuops.offers.machine_facts import MAX_TEXT_CHARS, read_facts

MAKERS = {"nvidia", "amd", "geforce", "rtx", "gtx", "tesla", "instinct", "quadro"}
"""Words of a GPU's name that do not tell which one it is."""


def check_capabilities(provisioner: Provisioner, request: Request) -> None:
    """Raises UsageError for what a provider declares that it cannot do."""
    for is_needed, capability in ((request.nodes > 1, "multinode"), (request.spot, "spot")):
        answer = provisioner.capabilities.get(capability, f"{provisioner.name} does not say that it can")
        if is_needed and answer is not True:
            raise UsageError(
                f"{provisioner.name} cannot do {capability}: {answer}", "leave that out, or name another provider"
            )


def select_fitting(request: Request, offers: Sequence[Offer]) -> list[Offer]:
    """The offers of all nodes within the price. Raises NoCapacity where there is none."""
    whole = [offer for offer in offers if offer.nodes == request.nodes]
    fitting = [offer for offer in whole if request.max_price is None or offer.per_hour <= request.max_price]
    if fitting:
        return fitting
    if whole and request.max_price is not None:
        raise NoCapacity(
            f"{request.provider} offers nothing at {money(request.max_price)}/h or less: the cheapest that fits "
            f"is {money(min(offer.per_hour for offer in whole))}/h",
            "raise --max-price, or ask for less",
        )
    raise NoCapacity(
        f"{request.provider} offers nothing that fits this request", "ask for less, or try another provider"
    )


def has_price(offer: Offer) -> bool:
    """Whether an offer of rented machines tells what they cost."""
    return 0 < offer.per_hour < math.inf


def drop_false(request: Request, offers: Sequence[object]) -> tuple[list[Offer], list[str]]:
    """The offers that can be what was asked for, and a sentence on each of the others."""
    honest: list[Offer] = []
    dropped: list[str] = []
    for offer in offers:
        if why := _explain_false(request, offer):
            say = one_line(str(getattr(offer, "say", offer)), MAX_TEXT_CHARS)
            dropped.append(f"{request.provider}: {say} is left out: {why}")
        elif isinstance(offer, Offer):
            honest.append(offer)
    return honest, dropped


def _explain_false(request: Request, offer: object) -> str:
    """Why an offer cannot be what was asked for; empty where it can."""
    if not isinstance(offer, Offer):
        return "it is no offer"
    try:
        return _explain_wrong(request, offer)
    except (AttributeError, TypeError, ValueError):  # of a plug-in that fills it with something else
        return "it cannot be read"


def _explain_wrong(request: Request, offer: Offer) -> str:
    if offer.provider != request.provider:
        return f"it is of {one_line(str(offer.provider), MAX_TEXT_CHARS)}"
    if offer.nodes != request.nodes:
        return f"it is for {plural(offer.nodes, 'node')}, not for {request.nodes}"
    if not all(_is_amount(price.per_hour) for price in offer.prices) or not has_price(offer):
        return "it has no price"
    return _explain_other_gpu(request, offer)


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < math.inf


def _explain_other_gpu(request: Request, offer: Offer) -> str:
    """Why its GPUs are others than asked for; empty where they may be those."""
    facts = read_facts(offer)
    if request.gpus is not None and offer.gpus < request.gpus:
        return f"it has {plural(offer.gpus, 'GPU')} per machine, not {request.gpus}"
    if request.gpu_mem is not None and facts.gpu_mem is not None and facts.gpu_mem < request.gpu_mem:
        return f"its GPU has {facts.gpu_mem:g} GB, not {request.gpu_mem}"
    if request.gpu_type and facts.gpu and not any(_may_be(wish, facts.gpu) for wish in request.gpu_type.split(",")):
        return f"its GPU is {facts.gpu}, not {request.gpu_type}"
    return ""


def _may_be(wish: str, name: str) -> bool:
    """Whether a GPU of that name can be meant. Providers spell names in many ways: one word in common is enough."""
    wanted = [word for word in words(wish) if word not in MAKERS]
    squeezed = "".join(words(name))
    return not wanted or any(word in squeezed for word in wanted) or "".join(wanted) in squeezed
