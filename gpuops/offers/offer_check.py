"""Whether an offer is what was asked for: what a provider cannot do, prices that are none, other machines. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from gpuops.core.errors import NoCapacity, UsageError
from gpuops.core.format import money, one_line, plural
from gpuops.core.models import Offer, Price, Request
from gpuops.core.names import words
from gpuops.core.provider import Provisioner
from gpuops.offers.machine_facts import MAX_TEXT_CHARS, read_facts

MIN_PER_HOUR, MAX_PER_HOUR = 0.001, 1e6
"""$/h that the machines of one offer may cost: what is cheaper is shown as free, and dearer is nothing that is sold."""
MAX_GPUS = 64
"""No machine that is rented has more."""
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


def drop_false(request: Request, offers: Sequence[object], *, as_asked: bool = True) -> tuple[list[Offer], list[str]]:
    """The offers that can be what was asked for, and a sentence on each of the others. `as_asked`: nodes and GPU are
    judged, too; a provider that is asked alone may know its GPUs by other names."""
    honest: list[Offer] = []
    dropped: list[str] = []
    for offer in offers:
        if why := _explain_false(request, offer, as_asked=as_asked):
            say = one_line(str(getattr(offer, "say", offer)), MAX_TEXT_CHARS)
            dropped.append(f"{request.provider}: {say} is left out: {why}")
        elif isinstance(offer, Offer):
            honest.append(offer)
    return honest, dropped


def _explain_false(request: Request, offer: object, *, as_asked: bool) -> str:
    """Why an offer cannot be what was asked for; empty where it can."""
    if not isinstance(offer, Offer):
        return "it is no offer"
    try:
        return _explain_wrong(request, offer, as_asked=as_asked)
    except (AttributeError, TypeError, ValueError):  # of a plug-in that fills it with something else
        return "it cannot be read"


def _explain_wrong(request: Request, offer: Offer, *, as_asked: bool) -> str:
    if offer.provider != request.provider:
        return f"it is of {one_line(str(offer.provider), MAX_TEXT_CHARS)}"
    if as_asked and offer.nodes != request.nodes:
        return f"it is for {plural(offer.nodes, 'node')}, not for {request.nodes}"
    if not all(_is_amount(price.per_hour) for price in offer.prices) or not offer.per_hour:
        return "it has no price"
    if not MIN_PER_HOUR <= offer.per_hour <= MAX_PER_HOUR:
        return f"nothing is sold for ${offer.per_hour:g}/h"
    if not _is_readable(offer):
        return "it cannot be read"
    if offer.gpus > MAX_GPUS:
        return f"no machine has {offer.gpus:,} GPUs"
    return _explain_other_gpu(request, offer) if as_asked else ""


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _is_readable(offer: Offer) -> bool:
    """Whether each field is of its kind, so that it can be shown and kept. Raises TypeError, ValueError."""
    words = (offer.id, offer.say, offer.region, *offer.notes, *(price.what for price in offer.prices))
    json.dumps(offer.data)
    return (
        all(isinstance(word, str) for word in words)
        and all(isinstance(price, Price) for price in offer.prices)
        and isinstance(offer.gpus, int)
        and offer.gpus >= 0
        and isinstance(offer.data, Mapping)
        and not isinstance(offer.notes, str)
        and 0 <= offer.queue_s < math.inf
        and all(_is_amount(offer.data[name]) for name in ("ends", "idle_min") if offer.data.get(name) is not None)
    )


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
