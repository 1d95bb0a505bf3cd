"""Scenarios that cost nothing: what a provisioner declares, and calls that must create nothing."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Any

from gpuops.clusters.available_offers import find_offers
from gpuops.commands.prove.fault_injection import ContractBroken
from gpuops.commands.prove.sandbox import Sandbox, check_answer
from gpuops.core.errors import GpuopsError, Interrupted, ProviderError, UsageError
from gpuops.core.format import money
from gpuops.core.models import Option, Payer, Request
from gpuops.core.provider import CONTRACT, has_capability
from gpuops.ledger.store import LedgerJournal
from gpuops.offers.billing_account import PAYER_WAIT_S
from provisioners import registry
from provisioners.checked_provisioner import declared_variables
from provisioners.registry import REQUIRED_MEMBERS

CAPABILITIES = ("multinode", "spot", "self_destruct", "host_keys", "rented", "shares_disk")
TYPES = ("str", "int", "float", "bool", "path", "list", "lines")
COMMON_OPTIONS = frozenset({
    "nodes", "gpus", "gpu", "gpu-type", "gpu-mem", "spot", "region", "image", "max-price", "max-hours", "max-cost",
    "idle", "timeout", "name", "yes", "json", "dry-run", "help", "on", "cluster", "data", "out", "env", "secret",
    "prelude", "python", "setup", "resume", "fresh", "queue", "keep", "detach", "grace", "sink", "join-timeout",
    "overwrite", "send-anyway", "bwlimit", "timings", "spend", "wait", "retries", "record",
})  # fmt: skip
"""Options that every command has: a provider's option of the same name would never reach it."""
VARIABLE = re.compile(r"(?!GPUOPS_)[A-Za-z_][A-Za-z0-9_]*")
IMPOSSIBLE_REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("--gpu-type no-such-gpu", {"gpu_type": "no-such-gpu"}),
    ("--gpu-mem 99999", {"gpu_mem": 99999}),
    ("--region no-such-region", {"region": "no-such-region"}),
)
"""Requests that no provider can fulfil; only the provisioner can know that."""


def declares(sandbox: Sandbox) -> str:
    """The provisioner has every member of the contract, and says why where it cannot do something."""
    raw: Any = sandbox.raw
    missing = [member for member in REQUIRED_MEMBERS if not hasattr(raw, member)]
    if missing or raw.contract != CONTRACT:
        raise ContractBroken(f"it lacks {', '.join(missing)}" if missing else f"it is for contract {raw.contract}")
    if raw.name != sandbox.request.provider:
        raise ContractBroken(f"it is found as '{sandbox.request.provider}' and calls itself '{raw.name}'")
    for name in CAPABILITIES:
        able = raw.capabilities.get(name)
        if able is not True and not (isinstance(able, str) and able.strip()):
            raise ContractBroken(f"capabilities[{name!r}] is {able!r}: True is promised, or the sentence why not")
    for name in ("settle_s", "gone_s"):
        length = getattr(raw, name)
        if not isinstance(length, int | float) or not 0 <= length < math.inf:
            raise ContractBroken(f"{name} is {length!r}, which is no length of time")
    for option in raw.options:
        check_answer("options", option, Option)
        if not re.fullmatch(r"[a-z][a-z0-9-]*", option.name) or option.type not in TYPES or not option.help:
            raise ContractBroken(f"the option '{option.name}' lacks a plain name, a known type, or its help")
        if option.name in COMMON_OPTIONS:
            raise ContractBroken(
                f"the option --{option.name} is everybody's, and never reaches the provisioner: rename it"
            )
    _check_account_variables(sandbox)
    not_able = [name for name in CAPABILITIES if raw.capabilities[name] is not True]
    return f"contract {CONTRACT}; it says why not of: {', '.join(not_able) or 'nothing'}"


def _check_account_variables(sandbox: Sandbox) -> None:
    """Raises ContractBroken for a variable that `.env` and the guard could not serve."""
    raw: Any = sandbox.raw
    for name in ("credentials", "surroundings"):
        variables = getattr(raw, name)
        if isinstance(variables, str) or not all(isinstance(one, str) and VARIABLE.fullmatch(one) for one in variables):
            raise ContractBroken(f"{name} is {variables!r}: names of variables are promised, none begins with GPUOPS_")
    declared = declared_variables(raw)
    if sandbox.found_by_name and registry.account_variables(raw.name) != declared:
        raise ContractBroken("credentials and surroundings are to be attributes of the class or factory too")


def preflight(sandbox: Sandbox) -> str:
    """`preflight` may be called twice, finds this request possible, and makes nothing."""
    before = sandbox.list_resource_keys()
    for _ in range(2):
        for problem in sandbox.ask("preflight", sandbox.request):
            if not problem.say or not problem.hint:
                raise ContractBroken("a problem lacks its sentence, or what to do about it")
            if problem.fatal:
                raise ContractBroken(f"it finds this very request impossible: {problem.say}")
    if hasattr(sandbox.raw, "payer"):
        paid = sandbox.ask("payer", sandbox.request, PAYER_WAIT_S)
        check_answer("payer", paid, Payer)
        if not paid.source:
            raise ContractBroken("payer does not say where its key comes from")
    _nothing_new(sandbox, before, "preflight")
    return "asked twice, nothing was made"


def offers(sandbox: Sandbox) -> str:
    """`offers` gives priced offers for all nodes, and makes nothing."""
    before, core = sandbox.list_resource_keys(), sandbox.core
    nodes = {1, sandbox.request.nodes} if has_capability(core, "multinode") else {1}
    offers = []
    for count in sorted(nodes):
        request = dataclasses.replace(sandbox.request, nodes=count)
        for _ in range(2):
            offers = sandbox.ask("offers", request)
            if not offers and request == sandbox.request:
                raise ContractBroken("it offers nothing for this very request")
            _check_offers(sandbox, request, offers)
    _nothing_new(sandbox, before, "offers")
    prices = [offer.per_hour for offer in offers]
    price = f"{money(prices[0])}/h" if sandbox.rented and prices else "free"
    return f"{len(offers)} for {sandbox.request.nodes}, the first {price}; nothing was made"


def _check_offers(sandbox: Sandbox, request: Request, offers: Sequence[Any]) -> None:
    for offer in offers:
        if offer.nodes != request.nodes:
            raise ContractBroken(f"asked for {request.nodes} nodes it offers {offer.nodes}: '{offer.say}'")
        if offer.provider != request.provider or not offer.id or not offer.say:
            raise ContractBroken("an offer lacks its provider's name, an id, or what it is in words")
        if any(not 0 <= price.per_hour < math.inf for price in offer.prices) or (offer.per_hour > 0) != sandbox.rented:
            want = "a price, since it is rented" if sandbox.rented else "no price, since nothing is rented"
            raise ContractBroken(f"'{offer.say}' at {offer.per_hour!r} $/h: {want}")
    if len({offer.id for offer in offers}) != len(offers):
        raise ContractBroken("two offers have one id")
    if offers and offers[0].per_hour > min(offer.per_hour for offer in offers) == offers[-1].per_hour:
        raise ContractBroken("the dearest offer comes first and the cheapest last: best first is promised")


def bad_request(sandbox: Sandbox) -> str:
    """A request that cannot be met is refused by a Problem, by a gpuops error, or by an empty list of offers."""
    before = sandbox.list_resource_keys()
    refused = []
    for typed, wish in IMPOSSIBLE_REQUESTS:
        if _takes(sandbox, dataclasses.replace(sandbox.request, **wish)):
            raise ContractBroken(
                f"it offers something for {typed}: a wish that cannot be met is refused, never dropped"
            )
        refused.append(typed)
    for capability, wish in (("multinode", {"nodes": 2}), ("spot", {"spot": True})):
        if not has_capability(sandbox.core, capability):
            try:
                find_offers(sandbox.ctx, dataclasses.replace(sandbox.request, **wish))
            except UsageError:
                refused.append(capability)
            else:
                raise ContractBroken(f"{capability} is not capable, and offered all the same")
    _nothing_new(sandbox, before, "a bad request")
    return f"refused: {', '.join(refused)}"


def _takes(sandbox: Sandbox, request: Request) -> bool:
    try:
        if any(problem.fatal for problem in sandbox.ask("preflight", request)):
            return False
        return bool(sandbox.ask("offers", request))
    except (ProviderError, UsageError) as error:
        if not error.message or not error.hint:
            raise ContractBroken("a refusal lacks its sentence, or what to do about it") from error
        return False


def interrupted(sandbox: Sandbox) -> str:
    """Another command ends the cluster before the first effect: `journal.will` raises Interrupted."""
    row = sandbox.record_cluster("x")
    sandbox.ctx.ledger.begin_end(row.id)
    try:
        sandbox.create(sandbox.list_offers()[0], sandbox.make_intent(row), LedgerJournal(sandbox.ctx.ledger, row.id))
    except Interrupted:
        pass
    except GpuopsError as error:
        raise ContractBroken(
            f"journal.will raised Interrupted, and create made {type(error).__name__} of it"
        ) from error
    else:
        raise ContractBroken("journal.will raised Interrupted, and create went on")
    if made := sandbox.poll_until(sandbox.core.settle_s, lambda: sandbox.list_cluster_resources(row)):
        raise ContractBroken(
            f"{made[0].kind} {made[0].name} exists although journal.will had raised: nothing may come before it"
        )
    sandbox.end_cluster(row.name)
    return "journal.will raised Interrupted: it passed through, and nothing was made"


def _nothing_new(sandbox: Sandbox, before: set[tuple[str, str]], what: str) -> None:
    new = sandbox.list_resource_keys() - before
    if new:
        raise ContractBroken(f"{what} has made something: {', '.join(sorted(kind for kind, _ in new))}")
