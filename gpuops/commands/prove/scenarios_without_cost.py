"""Scenarios that cost nothing: what a provisioner says of itself, and asking without making."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

from gpuops.clusters.up import plan
from gpuops.commands.prove.faults import Broken
from gpuops.commands.prove.sandbox import Bench, check_noun
from gpuops.core.errors import GpuopsError, Interrupted, ProviderError, UsageError
from gpuops.core.format import money
from gpuops.core.models import Option, Payer, Request
from gpuops.core.provider import CONTRACT, has_capability
from gpuops.ledger.store import LedgerJournal
from gpuops.offers.payer import PATIENCE_S
from provisioners.registry import MEMBERS

CAPABILITIES = ("multinode", "spot", "self_destruct", "host_keys", "rented", "shares_disk")
TYPES = ("str", "int", "float", "bool", "path", "list", "lines")
EVERYBODYS = frozenset({
    "nodes", "gpus", "gpu", "gpu-type", "gpu-mem", "spot", "region", "image", "max-price", "max-hours", "max-cost",
    "idle", "timeout", "name", "yes", "json", "dry-run", "help", "on", "cluster", "data", "out", "env", "secret",
    "prelude", "python", "setup", "resume", "queue", "keep", "detach", "grace", "sink",
    "overwrite", "send-anyway", "spend", "wait", "retries",
    "record",
})  # fmt: skip
"""Options that every provider has: one of the same name would never reach it."""
ABSURD: tuple[tuple[str, dict[str, Any]], ...] = (
    ("--gpu-type no-such-gpu", {"gpu_type": "no-such-gpu"}),
    ("--gpu-mem 99999", {"gpu_mem": 99999}),
    ("--region no-such-region", {"region": "no-such-region"}),
)
"""Wishes that nobody can fulfil; the core does not know that, the provider does."""


def declares(bench: Bench) -> str:
    raw: Any = bench.raw
    missing = [member for member in MEMBERS if not hasattr(raw, member)]
    if missing or raw.contract != CONTRACT:
        raise Broken(f"it lacks {', '.join(missing)}" if missing else f"it is for contract {raw.contract}")
    if raw.name != bench.request.provider:
        raise Broken(f"it is found as '{bench.request.provider}' and calls itself '{raw.name}'")
    for name in CAPABILITIES:
        able = raw.capabilities.get(name)
        if able is not True and not (isinstance(able, str) and able.strip()):
            raise Broken(f"capabilities[{name!r}] is {able!r}: True is promised, or the sentence why not")
    for name in ("settle_s", "gone_s"):
        length = getattr(raw, name)
        if not isinstance(length, int | float) or not 0 <= length < math.inf:
            raise Broken(f"{name} is {length!r}, which is no length of time")
    for option in raw.options:
        check_noun("options", option, Option)
        if not re.fullmatch(r"[a-z][a-z0-9-]*", option.name) or option.type not in TYPES or not option.help:
            raise Broken(f"the option '{option.name}' lacks a plain name, a known type, or its help")
        if option.name in EVERYBODYS:
            raise Broken(f"the option --{option.name} is everybody's, and never reaches the provisioner: rename it")
    not_able = [name for name in CAPABILITIES if raw.capabilities[name] is not True]
    return f"contract {CONTRACT}; it says why not of: {', '.join(not_able) or 'nothing'}"


def preflight(bench: Bench) -> str:
    before = bench.there()
    for _ in range(2):
        for problem in bench.ask("preflight", bench.request):
            if not problem.say or not problem.hint:
                raise Broken("a problem lacks its sentence, or what to do about it")
            if problem.fatal:
                raise Broken(f"it finds this very request impossible: {problem.say}")
    if hasattr(bench.raw, "payer"):
        paid = bench.ask("payer", bench.request, PATIENCE_S)
        check_noun("payer", paid, Payer)
        if not paid.source:
            raise Broken("payer does not say where its key comes from")
    _nothing_new(bench, before, "preflight")
    return "asked twice, nothing was made"


def offers(bench: Bench) -> str:
    before, core = bench.there(), bench.core
    nodes = {1, bench.request.nodes} if has_capability(core, "multinode") else {1}
    found = []
    for count in sorted(nodes):
        request = dataclasses.replace(bench.request, nodes=count)
        for _ in range(2):
            found = bench.ask("offers", request)
            if not found and request == bench.request:
                raise Broken("it offers nothing for this very request")
            _check_offers(bench, request, found)
    _nothing_new(bench, before, "offers")
    prices = [offer.per_hour for offer in found]
    price = f"{money(prices[0])}/h" if bench.rented and prices else "free"
    return f"{len(found)} for {bench.request.nodes}, the first {price}; nothing was made"


def _check_offers(bench: Bench, request: Request, found: list[Any]) -> None:
    for offer in found:
        if offer.nodes != request.nodes:
            raise Broken(f"asked for {request.nodes} nodes it offers {offer.nodes}: '{offer.say}'")
        if offer.provider != request.provider or not offer.id or not offer.say:
            raise Broken("an offer lacks its provider's name, an id, or what it is in words")
        if any(not 0 <= price.per_hour < math.inf for price in offer.prices) or (offer.per_hour > 0) != bench.rented:
            want = "a price, since it is rented" if bench.rented else "no price, since nothing is rented"
            raise Broken(f"'{offer.say}' at {offer.per_hour!r} $/h: {want}")
    if len({offer.id for offer in found}) != len(found):
        raise Broken("two offers have one id")
    if found and found[0].per_hour > min(offer.per_hour for offer in found) == found[-1].per_hour:
        raise Broken("the dearest offer comes first and the cheapest last: best first is promised")


def bad_request(bench: Bench) -> str:
    """Refused by a Problem, by an error of ours, or by offering nothing."""
    before = bench.there()
    refused = []
    for typed, wish in ABSURD:
        if _takes(bench, dataclasses.replace(bench.request, **wish)):
            raise Broken(f"it offers something for {typed}: a wish that cannot be met is refused, never dropped")
        refused.append(typed)
    for capability, wish in (("multinode", {"nodes": 2}), ("spot", {"spot": True})):
        if not has_capability(bench.core, capability):
            try:
                plan(bench.ctx, dataclasses.replace(bench.request, **wish))
            except UsageError:
                refused.append(capability)
            else:
                raise Broken(f"{capability} is not capable, and offered all the same")
    _nothing_new(bench, before, "a bad request")
    return f"refused: {', '.join(refused)}"


def _takes(bench: Bench, request: Request) -> bool:
    try:
        if any(problem.fatal for problem in bench.ask("preflight", request)):
            return False
        return bool(bench.ask("offers", request))
    except (ProviderError, UsageError) as error:
        if not error.say or not error.hint:
            raise Broken("a refusal lacks its sentence, or what to do about it") from error
        return False


def interrupted(bench: Bench) -> str:
    """Another command ends the cluster before the first effect: `journal.will` says so."""
    row = bench.intend("x")
    bench.ctx.ledger.ending(row.id)
    try:
        bench.create(bench.offers()[0], bench.intent(row), LedgerJournal(bench.ctx.ledger, row.id))
    except Interrupted:
        pass
    except GpuopsError as error:
        raise Broken(f"journal.will raised Interrupted, and create made {type(error).__name__} of it") from error
    else:
        raise Broken("journal.will raised Interrupted, and create went on")
    if made := bench.within(bench.core.settle_s, lambda: bench.of(row)):
        raise Broken(
            f"{made[0].kind} {made[0].name} exists although journal.will had raised: nothing may come before it"
        )
    bench.end(row.name)
    return "journal.will raised Interrupted: it passed through, and nothing was made"


def _nothing_new(bench: Bench, before: set[tuple[str, str]], what: str) -> None:
    new = bench.there() - before
    if new:
        raise Broken(f"{what} has made something: {', '.join(sorted(kind for kind, _ in new))}")
