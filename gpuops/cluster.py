"""The first story: a cluster comes to be, is reached, and is gone again.

Waiting, retrying, journalling and marking live here, once, for every provider.
"""

from __future__ import annotations

import dataclasses
import math
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from gpuops import artefact, guard
from gpuops import lease as leases
from gpuops.boot import wait_ready
from gpuops.errors import (
    GpuopsError,
    Interrupted,
    NoCapacity,
    ProviderError,
    RateLimited,
    StillBilling,
    Unknown,
    UsageError,
)
from gpuops.ledger import ClusterRow, LedgerJournal
from gpuops.live import Live, machines_of, send_lease
from gpuops.models import Intent, Offer, Problem, Request
from gpuops.output import money, span
from gpuops.teardown import POLL_SLOW_S, clear, owned, tear_down
from gpuops.world import World
from provisioners.base import Provisioner

BOOT_MARGIN_S = 600.0
"""What the boot lease adds to `--timeout`."""
RETRIES = 4
ROUNDING = 0.01
"""By how much two prices may differ, as a part of them."""


def plan(world: World, request: Request) -> tuple[Provisioner, list[Offer]]:
    """Check the request and get its offers; nothing is created. Raises ProviderError, UsageError."""
    provisioner = world.provisioner(request.provider)
    _check_capabilities(provisioner, request)
    problems = _preflight(world, provisioner, request)
    settled = _settled(world, request, problems)
    if settled != request:
        request, problems = settled, _preflight(world, provisioner, settled)
    for problem in problems:
        if not problem.fatal:
            world.out.say(f"note: {problem.say}; {problem.hint}")
    fatal = [problem for problem in problems if problem.fatal]
    if fatal:
        raise ProviderError("; ".join(dict.fromkeys(problem.say for problem in fatal)), fatal[0].hint)
    with world.progress.during(f"asking {request.provider} what it has"):
        found = provisioner.offers(request)
    offers = [
        offer
        for offer in found
        if offer.nodes == request.nodes and (request.max_price is None or offer.per_hour <= request.max_price)
    ]
    if not offers:
        raise NoCapacity(
            f"{request.provider} offers nothing that fits this request",
            "ask for less, raise --max-price, or try another provider",
        )
    if provisioner.capabilities.get("rented") is True:
        for offer in offers:
            if not 0 < offer.per_hour < math.inf:
                raise ProviderError(f"{request.provider} says no price for {offer.say}", "nothing was created")
    return provisioner, offers


def _preflight(world: World, provisioner: Provisioner, request: Request) -> list[Problem]:
    with world.progress.during(f"looking whether {request.provider} is ready"):
        return list(provisioner.preflight(request))


def _settled(world: World, request: Request, problems: Sequence[Problem]) -> Request:
    """The request with what only a person can settle (a host's key), asked where there is one: all, or nothing."""
    open_ones = [problem for problem in problems if problem.settle]
    asked = world.out.interactive and not world.yes
    if asked and open_ones and all(world.out.confirm(f"{problem.say}: go on?") for problem in open_ones):
        settled = {problem.settle: True for problem in open_ones}
        return dataclasses.replace(request, options={**request.options, **settled})
    return request


def _check_capabilities(provisioner: Provisioner, request: Request) -> None:
    for wanted, capability in ((request.nodes > 1, "multinode"), (request.spot, "spot")):
        able = provisioner.capabilities.get(capability, f"{provisioner.name} does not say that it can")
        if wanted and able is not True:
            raise UsageError(
                f"{provisioner.name} cannot do {capability}: {able}", "leave that out, or name another provider"
            )


@dataclass(frozen=True)
class LeaseWish:
    """The flags that shape a lease; None: the provider's default."""

    max_hours: float | None = None
    max_cost: float | None = None
    idle_min: float | None = None


def bring_up(
    world: World,
    request: Request,
    *,
    name: str | None,
    ephemeral: bool,
    wish: LeaseWish,
    foreword: Callable[[Offer], str] = lambda _: "",
) -> Live:
    """Create a cluster and wait until every node answers. What fails is undone before it is raised.

    `foreword`: what is said of the offer before anybody is asked to agree to it.
    """
    provisioner, offers = plan(world, request)
    rented = provisioner.capabilities.get("rented") is True
    if said := foreword(offers[0]):
        world.out.say(said)
    _confirm(world, offers[0])
    agent, _ = artefact.build(world.home / "cache")
    now = world.clock.now()

    def boot_end(offer: Offer) -> float:
        """That of the boot lease: what is not ready yet costs money, too."""
        wished = leases.make(rented=rented, per_hour=offer.per_hour, now=now, **dataclasses.asdict(wish))
        longest = now + request.timeout_min * 60 + BOOT_MARGIN_S
        return longest if wished.money_end is None else min(longest, wished.money_end)

    row = world.ledger.intend(
        provider=request.provider,
        name=name,
        folder=world.folder,
        ephemeral=ephemeral,
        token=uuid.uuid4().hex,
        request=dataclasses.asdict(request),
        boot_deadline=boot_end(offers[0]),
        lease=leases.make(rented=rented, per_hour=offers[0].per_hour, now=now, **dataclasses.asdict(wish)),
        keeper=world.me,
        now=now,
    )
    try:
        guard.ensure(world.home)
        intent = Intent(world.owner, row.name, row.token, row.boot_deadline, agent)
        with world.progress.during(f"creating {row.name}"):
            offer = _create(world, provisioner, offers, row, intent, boot_end)
        row = world.ledger.cluster(row.id)
        if rented:
            world.out.say("not yet protected: keep this computer on until the nodes are ready")
        with world.progress.during(f"waiting for {row.name}", request.timeout_min * 60):
            live = wait_ready(world, provisioner, row, request)
        try:
            _start_lease(world, live, wish, provisioner, offer)
        except BaseException:
            live.close()
            raise
    except StillBilling:
        world.ledger.ending(row.id)  # the guard, or `down`, goes on with it
        raise
    except BaseException as error:
        world.signals.backward()
        why = error.say if isinstance(error, (GpuopsError, Interrupted)) else f"an error in gpuops: {error!r}"
        world.out.say(f"undoing {row.name}")
        with _because(world, row, why):
            tear_down(world, row.id, why)
        world.out.say(f"{row.name} is undone, nothing of it is left")
        raise
    return live


@contextmanager
def _because(world: World, row: ClusterRow, why: str) -> Iterator[None]:
    """What failed is undone here. Where that fails as well, that is raised, and the first reason is said, not lost."""
    try:
        yield
    except GpuopsError:
        world.out.say(f"{row.name} was to be undone because of this: {why}")
        raise


def _confirm(world: World, offer: Offer) -> None:
    """One question before money is spent, where somebody can answer it. Raises UsageError."""
    if not offer.per_hour or world.yes:
        return
    if not world.out.interactive:
        raise UsageError("this costs money, and nobody is there to be asked", "say --yes")
    if not world.out.confirm(f"{offer.say}, {money(offer.per_hour)}/h: go?"):
        raise UsageError("not confirmed: nothing was created", "say --yes to skip the question")


def _create(
    world: World,
    provisioner: Provisioner,
    offers: Sequence[Offer],
    row: ClusterRow,
    intent: Intent,
    boot_end: Callable[[Offer], float],
) -> Offer:
    """Try offer after offer. A failed one leaves nothing behind before the next is tried.

    An offer that costs more than what was agreed to is asked about again.
    """
    refused: list[str] = []
    agreed = offers[0].per_hour
    for offer in offers:
        if offer.per_hour > agreed:
            _confirm(world, offer)
            agreed = offer.per_hour
        world.out.say(f"{row.name}: {offer.say}" + (f", {money(offer.per_hour)}/h" if offer.per_hour else ""))
        for note in offer.notes:
            world.out.say(f"note: {note}")
        bounded = dataclasses.replace(intent, boot_deadline=boot_end(offer))
        world.ledger.set_cluster(row.id, offer=dataclasses.asdict(offer), boot_deadline=bounded.boot_deadline)
        try:
            _create_once(world, provisioner, offer, row, bounded)
            return offer
        except NoCapacity as error:
            refused.append(error.say)
            _undo(world, provisioner, row, error.say)
    raise NoCapacity(
        refused[-1] if len(refused) == 1 else f"none of {len(refused)} offers could be had: {refused[-1]}",
        "try again later, or allow more kinds of machine",
    )


def _create_once(world: World, provisioner: Provisioner, offer: Offer, row: ClusterRow, intent: Intent) -> None:
    """One offer, as often as its provider says `slower`. Raises ProviderError; what was made may still be there."""
    for attempt in range(RETRIES):
        fresh = dataclasses.replace(intent, token=f"{intent.token}-{uuid.uuid4().hex[:8]}")
        try:
            _ask(world, provisioner, offer, row, fresh)
            return
        except RateLimited as error:
            world.ledger.refused(row.id)
            if attempt == RETRIES - 1:
                raise
            _undo(world, provisioner, row, error.say)  # half may be there; made again, it would be there twice
            wait = 2.0 ** (attempt + 1) if error.retry_after is None else error.retry_after
            world.progress.waits(f"{error.say}; asking again in {span(wait)}")
            world.clock.pause(wait, world.clock.monotonic() + wait)
        except Unknown:
            if _look_up(world, provisioner, offer, row):
                return
            raise
        except ProviderError:
            world.ledger.refused(row.id)
            raise


def _undo(world: World, provisioner: Provisioner, row: ClusterRow, why: str) -> None:
    """Nothing of a failed attempt is left, at the provider and in the ledger. Raises StillBilling."""
    with _because(world, row, why):
        clear(world, provisioner, world.ledger.cluster(row.id))
    world.ledger.cleared(row.id)


def _ask(world: World, provisioner: Provisioner, offer: Offer, row: ClusterRow, intent: Intent) -> None:
    """The one call that makes something. Raises what `create` raises, and Unknown where it made too few or too many."""
    with world.signals.shielded():  # what a provider has done must be in the ledger first
        made = provisioner.create(offer, intent, LedgerJournal(world.ledger, row.id))
        known = {(one.kind, one.id) for one in world.ledger.resources(row.id)}
        for resource in made:
            if (resource.kind, resource.id) not in known:
                world.ledger.got(row.id, resource)
    count = len(machines_of(world, row))
    if count != offer.nodes:
        raise Unknown(
            f"{provisioner.name} made {count} of {offer.nodes} machines", "try again, or ask for another kind"
        )


def _look_up(world: World, provisioner: Provisioner, offer: Offer, row: ClusterRow) -> bool:
    """After a lost answer: whether all machines are there, by their mark, and then in the ledger."""
    clock = world.clock
    deadline = clock.monotonic() + provisioner.settle_s
    while True:
        found = [one for one in owned(world, provisioner, row) if one.kind == "machine" and one.state != "ended"]
        if len(found) == offer.nodes:
            for resource in found:
                world.ledger.got(row.id, resource)
            return True
        if len(found) > offer.nodes or clock.monotonic() >= deadline:
            return False
        clock.pause(POLL_SLOW_S, deadline)


def _start_lease(world: World, live: Live, wish: LeaseWish, provisioner: Provisioner, offer: Offer) -> None:
    """The run lease replaces the boot lease. Money is counted from the intent on, at the dearer of the two prices."""
    now = world.clock.now()
    rented = provisioner.capabilities.get("rented") is True
    told = sum(machine.per_hour for machine in live.machines)
    if told > offer.per_hour * (1 + ROUNDING):
        world.out.say(f"note: {live.row.name} costs {money(told)}/h, and {money(offer.per_hour)}/h was offered")
    able = provisioner.capabilities.get("self_destruct", "nothing is known of that")
    if rented and able is not True:
        world.out.say(
            f"note: these machines cannot end themselves ({able}): the guard on this computer does it, while it is on"
        )
    price = max(offer.per_hour, told)
    lease = leases.make(rented=rented, per_hour=price, now=now, since=live.row.created, **dataclasses.asdict(wish))
    send_lease(live, lease, now)
    if not world.ledger.ready(live.row.id, lease, now):
        raise Interrupted(f"another command ends {live.row.name} while it is being created", "gpuops status")
    live.row = world.ledger.cluster(live.row.id)
