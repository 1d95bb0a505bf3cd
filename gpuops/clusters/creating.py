"""One offer at one provider: asked for, asked again, looked up, undone. Nothing half-made is ever left unsaid."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from gpuops.clusters.teardown import POLL_SLOW_S, clear, owned
from gpuops.core.context import World
from gpuops.core.errors import GpuopsError, ProviderError, RateLimited, Unknown
from gpuops.core.models import COSTLESS, Intent, Offer, Resource
from gpuops.core.output import span
from gpuops.ledger.store import ClusterRow, LedgerJournal
from gpuops.nodes.session import machines_of
from provisioners.base import Provisioner

RETRIES = 4


def create_once(world: World, provisioner: Provisioner, offer: Offer, row: ClusterRow, intent: Intent) -> None:
    """One offer, as often as its provider says `slower`. Raises ProviderError; what was made may still be there."""
    for attempt in range(RETRIES):
        fresh = dataclasses.replace(intent, token=f"{intent.token}-{uuid.uuid4().hex[:8]}")
        no = _asked(world, provisioner, offer, row, fresh)
        if no is None:
            return
        if not isinstance(no, RateLimited) or attempt == RETRIES - 1:
            raise no
        undo(world, provisioner, row, no.say)  # half may be there; made again, it would be there twice
        wait = 2.0 ** (attempt + 1) if no.retry_after is None else no.retry_after
        world.progress.waits(f"{no.say}; asking again in {span(wait)}")
        world.clock.pause(wait, world.clock.monotonic() + wait)


def _asked(
    world: World, provisioner: Provisioner, offer: Offer, row: ClusterRow, intent: Intent
) -> ProviderError | None:
    """The provider's no, if it said one; None: all machines are there. Raises Unknown where neither is certain."""
    try:
        _ask(world, provisioner, offer, row, intent)
        return None
    except Unknown as error:
        found = _look_up(world, provisioner, offer, row)
        if found is None:
            return None
        if error.instead is None:
            raise
        no = error.instead
        if found:  # some of it: what is made slowly may still come, so that nothing counts as refused
            undo(world, provisioner, row, error.say)
            return no
    except ProviderError as error:
        no = error
    world.ledger.refused(row.id)
    return no


def serves_the_next(world: World, row: ClusterRow) -> bool:
    """Whether all that there is of a cluster is what costs nothing and serves its machines, wherever these come from:
    a security group. It is kept for the next offer, and goes with the cluster."""
    there = world.ledger.resources(row.id)
    costs = any(one.bills or one.kind == "machine" for one in there)
    return bool(there) and not costs and not world.ledger.unanswered(row.id)


def undo(world: World, provisioner: Provisioner, row: ClusterRow, why: str) -> None:
    """Nothing of a failed attempt is left, at the provider and in the ledger. Raises StillBilling."""
    with because(world, row, why):
        clear(world, provisioner, world.ledger.cluster(row.id))
    world.ledger.cleared(row.id)


@contextmanager
def because(world: World, row: ClusterRow, why: str) -> Iterator[None]:
    """What failed is undone here. Where that fails as well, that is raised, and the first reason is said, not lost."""
    try:
        yield
    except GpuopsError:
        world.out.say(f"{row.name} was to be undone because of this: {why}")
        raise


def _ask(world: World, provisioner: Provisioner, offer: Offer, row: ClusterRow, intent: Intent) -> None:
    """The one call that makes something. Raises what `create` raises, and Unknown where it made too few or too many."""
    with world.signals.shielded():  # what a provider has done must be in the ledger first
        made = provisioner.create(offer, intent, LedgerJournal(world.ledger, row.id))
        known = {(one.kind, one.id) for one in world.ledger.resources(row.id)}
        for resource in made:
            if (resource.kind, resource.id) not in known:
                world.ledger.got(row.id, resource)
    count = len(machines_of(world, row))
    if count != offer.nodes and not any(_stands_for(one, offer) for one in made):
        raise Unknown(
            f"{provisioner.name} made {count} of {offer.nodes} machines", "try again, or ask for another kind"
        )


def _look_up(world: World, provisioner: Provisioner, offer: Offer, row: ClusterRow) -> list[Resource] | None:
    """After a lost answer: None where all machines are there, by their mark, and then in the ledger, or one thing that
    stands for all of them; else whatever is listed that the ledger does not know."""
    clock = world.clock
    deadline = clock.monotonic() + provisioner.settle_s
    while True:
        at = clock.monotonic()  # an answer that comes late may be as old as the question
        listed = owned(world, provisioner, row)
        found = [one for one in listed if one.kind == "machine" and one.state not in COSTLESS]
        whole = [one for one in listed if _stands_for(one, offer)]
        if len(found) == offer.nodes or (len(whole) == 1 and len(found) < offer.nodes):
            for resource in (*whole, *found):
                world.ledger.got(row.id, resource)
            return None
        if len(found) > offer.nodes or at >= deadline:
            known = {(one.kind, one.id) for one in world.ledger.resources(row.id)}
            return [one for one in listed if (one.kind, one.id) not in known]
        clock.pause(POLL_SLOW_S, deadline)


def _stands_for(resource: Resource, offer: Offer) -> bool:
    """Whether it is a whole whose machines their provider numbers later: until then they are awaited (`boot`)."""
    return resource.state not in COSTLESS and resource.data.get("machines") == offer.nodes
