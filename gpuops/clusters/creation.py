"""Creating a cluster: search offers, create one, look up lost answers, undo what failed, wait until it is ready.

Every resource is in the ledger or found by its tag; what cannot be undone is reported by StillBilling.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from gpuops.clusters.available_offers import offer_source
from gpuops.clusters.home_files import record_rented
from gpuops.clusters.owned_resources import list_resources
from gpuops.clusters.provider_clock import clock_error_s, warn_of_clock
from gpuops.clusters.readiness import wait_ready
from gpuops.clusters.teardown import POLL_SLOW_S, describe_shutdown, destroy_cluster, tear_down
from gpuops.core.context import Context
from gpuops.core.errors import (
    GpuopsError,
    Interrupted,
    MachineGone,
    NoCapacity,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    StillBilling,
    Unknown,
)
from gpuops.core.format import money, span
from gpuops.core.models import COSTLESS, Intent, Offer, Request, Resource
from gpuops.core.polling import Poller
from gpuops.core.provider import LoadedProvisioner, Provisioner, is_rented
from gpuops.core.timings import Whose
from gpuops.ledger.store import ClusterRow, LedgerJournal, LedgerUnwritable
from gpuops.nodes import bootstrap
from gpuops.nodes.session import ClusterSession, machines_of, send_lease
from gpuops.offers import offer_table
from gpuops.offers.billing_account import payer_record
from gpuops.offers.lease_limits import LeaseLimits, money_spent, within_life
from gpuops.offers.price_approval import PRICE_ROUNDING, PriceApproval
from gpuops.offers.price_terms import Terms
from gpuops.offers.refusals import Refusals
from gpuops.offers.search import OfferSearch

CREATE_ATTEMPTS_MAX = 4


def create_offer(ctx: Context, provisioner: LoadedProvisioner, offer: Offer, row: ClusterRow, intent: Intent) -> None:
    """Create one offer, with retries while the provider limits the rate. Raises ProviderError; created resources may
    still exist then."""
    attempts, most = 0, 0
    made: Sequence[Resource] = ()
    while True:
        fresh = dataclasses.replace(intent, token=f"{intent.token}-{uuid.uuid4().hex[:8]}", made=made)
        refusal = _try_create(ctx, provisioner, offer, row, fresh)
        if refusal is None:
            return
        if not isinstance(refusal, RateLimited):
            raise refusal
        made = _resources_to_keep(ctx, provisioner, row)
        attempts = 1 if len(made) > most else attempts + 1
        most = max(most, len(made))
        wait = max(2.0**attempts if refusal.retry_after is None else refusal.retry_after, provisioner.launches_apart_s)
        now = ctx.clock.now() + clock_error_s(ctx, provisioner)  # the deadline goes by the provider's clock
        is_too_late = bool(made) and now + wait >= intent.boot_deadline
        if attempts == CREATE_ATTEMPTS_MAX or is_too_late:
            raise refusal
        if not made:
            undo(ctx, provisioner, row, refusal.message)  # a part may exist, and a retry would create it twice
        ctx.progress.waits(f"{refusal.message}; asking again in {span(wait)}")
        ctx.clock.pause(wait, ctx.clock.monotonic() + wait)


def _resources_to_keep(ctx: Context, provisioner: LoadedProvisioner, row: ClusterRow) -> list[Resource]:
    """What an attempt has made that the next one goes on from; nothing where the provisioner begins anew."""
    if provisioner.launches_apart_s <= 0:
        return []
    others = [resource for resource in ctx.ledger.resources(row.id) if not resource.is_machine]
    return [*others, *machines_of(ctx, row)]


def _try_create(
    ctx: Context, provisioner: Provisioner, offer: Offer, row: ClusterRow, intent: Intent
) -> ProviderError | None:
    """None where all machines exist, else the provider's refusal. Raises Unknown where neither is certain."""
    try:
        _call_create(ctx, provisioner, offer, row, intent)
        return None
    except Unknown as error:
        created = _find_created(ctx, provisioner, offer, row)
        if created is None:
            return None
        if error.instead is None:
            raise
        refusal = error.instead
        if created:  # some of it: what is made slowly may still come, so that nothing counts as refused
            undo(ctx, provisioner, row, error.message)
            return refusal
    except ProviderError as error:
        refusal = error
    ctx.ledger.mark_refused(row.id)
    return refusal


def is_reusable(ctx: Context, row: ClusterRow) -> bool:
    """Whether a cluster has only resources that cost nothing and serve any machine, such as a security group: these are
    kept for the next offer, and destroyed with the cluster."""
    resources = ctx.ledger.resources(row.id)
    costs = any(resource.bills or resource.is_machine for resource in resources)
    return bool(resources) and not costs and not ctx.ledger.has_open_intents(row.id)


def undo(ctx: Context, provisioner: Provisioner, row: ClusterRow, why: str) -> None:
    """Remove all resources of a failed attempt, at the provider and from the ledger, which keeps what they have cost.
    Raises StillBilling."""
    row = ctx.ledger.cluster(row.id)
    per_hour = _attempt_price(ctx, row)
    with explain_undo(ctx, row, why):
        destroy_cluster(ctx, provisioner, row)
    ctx.ledger.mark_cleared(row.id)
    now = ctx.clock.now()
    spent = row.spent_before + money_spent(per_hour, row.created, now)
    ctx.ledger.set_cluster(row.id, offer={**row.offer, "spent_before": spent}, created=now)


def _attempt_price(ctx: Context, row: ClusterRow) -> float:
    """$/h of what an attempt has made, at the dearer of two prices: the machines' own and the offer's, whose price is
    taken whole where an answer was lost."""
    if ctx.ledger.has_open_intents(row.id):
        return row.offered_per_hour
    made = [resource for resource in ctx.ledger.resources(row.id) if resource.bills]
    part = sum(resource.is_machine for resource in made) / int(row.offer.get("nodes") or 1)
    return max(row.offered_per_hour * part, sum(resource.per_hour for resource in made))


@contextmanager
def explain_undo(ctx: Context, row: ClusterRow, why: str) -> Iterator[None]:
    """For undoing a failure: where that fails as well, report the first failure (`why`) and raise the second."""
    try:
        yield
    except GpuopsError:
        ctx.out.say(f"{row.name} was to be undone because of this: {why}")
        raise


def _call_create(ctx: Context, provisioner: Provisioner, offer: Offer, row: ClusterRow, intent: Intent) -> None:
    """Call `create` and record its resources. Raises what it raises, and Unknown for a wrong number of machines."""
    with ctx.signals.shielded():  # what a provider has done must be in the ledger first
        made = provisioner.create(offer, intent, LedgerJournal(ctx.ledger, row.id))
        known = {resource.key for resource in ctx.ledger.resources(row.id)}
        for resource in made:
            if resource.key not in known:
                ctx.ledger.got(row.id, resource)
    count = len(machines_of(ctx, row))
    if count != offer.nodes and not any(_stands_for_all_machines(resource, offer) for resource in made):
        raise Unknown(
            f"{provisioner.name} made {count} of {offer.nodes} machines", "try again, or ask for another kind"
        )


def _find_created(ctx: Context, provisioner: Provisioner, offer: Offer, row: ClusterRow) -> list[Resource] | None:
    """Find by tag what a `create` without an answer has made. None: all machines, or one resource that stands for all
    of them; they are in the ledger then. Otherwise the listed resources that the ledger does not know."""
    deadline = ctx.clock.monotonic() + provisioner.settle_s
    listed: Sequence[Resource] = ()
    for _ in Poller(ctx.clock, deadline, POLL_SLOW_S, POLL_SLOW_S):
        listed = list_resources(ctx, provisioner, row)
        machines = [resource for resource in listed if resource.is_machine and resource.state not in COSTLESS]
        whole = [resource for resource in listed if _stands_for_all_machines(resource, offer)]
        if len(machines) == offer.nodes or (len(whole) == 1 and len(machines) < offer.nodes):
            for resource in (*whole, *machines):
                ctx.ledger.got(row.id, resource)
            return None
        if len(machines) > offer.nodes:
            break
    known = {resource.key for resource in ctx.ledger.resources(row.id)}
    return [resource for resource in listed if resource.key not in known]


def _stands_for_all_machines(resource: Resource, offer: Offer) -> bool:
    """Whether it is a provider's own cluster, whose machines are numbered later (`wait_ready` waits for them)."""
    return resource.state not in COSTLESS and resource.data.get("machines") == offer.nodes


def bring_up(
    ctx: Context,
    request: Request,
    *,
    name: str | None,
    ephemeral: bool,
    wish: LeaseLimits,
    foreword: Callable[[Offer], str] = lambda _: "",
    approval: PriceApproval | None = None,
    known: Sequence[Offer] | None = None,
) -> ClusterSession:
    """Create a cluster and wait until every node answers. What fails is undone before it is raised.

    `foreword`: a sentence on the offer, printed before the user is asked to agree to it. Without capacity the search
    goes on for the request's `wait_s`. `approval`: what was agreed to, for these or for what they replace. `known`:
    offers that were shown before, in place of asking the provider.
    """
    approval = approval or PriceApproval()
    if name is not None:
        ctx.ledger.check_name_free(name)  # before others are asked, who may say no for reasons that then matter less
    provisioner = ctx.provisioner(request.provider)
    rented = is_rented(provisioner)
    source = offer_source(ctx, approval.avoided) if known is None else lambda _request, _notes: known
    search = OfferSearch(ctx, request, source, approval, wish)
    offers = search.offers()
    if rented and known is None:
        offer_table.show_offers(ctx, offers)
    if sentence := foreword(offers[0]):
        ctx.out.say(sentence)
    terms = Terms(ctx, request, wish, rented, search, approval)
    terms.confirm_price(offers)
    agent, _ = bootstrap.build_agent(ctx.home / "cache")
    now = ctx.clock.now()
    row = ctx.ledger.intend(
        provider=request.provider,
        name=name,
        folder=ctx.folder,
        ephemeral=ephemeral,
        token=uuid.uuid4().hex,
        request=dataclasses.asdict(request),
        boot_deadline=terms.boot_end(offers[0], now, approval.spent_before),
        lease=terms.lease(offers[0], now, approval.spent_before),
        owner_process=ctx.me,
        now=now,
    )
    if approval.spent_before:
        ctx.ledger.set_cluster(row.id, offer={"spent_before": approval.spent_before})
    try:
        session = _create_and_wait(ctx, provisioner, request, row, agent, search, offers, terms)
        approval.spent_before = 0.0  # it is a part of this cluster's cost
        return session
    except StillBilling:
        with suppress(LedgerUnwritable):  # this command's death says the same
            ctx.ledger.begin_end(row.id)  # the guard, or `down`, goes on with it
        raise
    except BaseException as error:
        ctx.signals.backward()
        why = error.message if isinstance(error, (GpuopsError, Interrupted)) else f"an error in gpuops: {error!r}"
        ctx.out.say(f"undoing {row.name}")
        attempt = ctx.ledger.cluster(row.id)
        per_hour = _attempt_price(ctx, attempt)
        with explain_undo(ctx, row, why):
            tear_down(ctx, row.id, why)
        if isinstance(error, ProviderError):  # other machines may follow, on the same account of the user's
            approval.spent_before = attempt.spent_before + money_spent(per_hour, attempt.created, ctx.clock.now())
        elif isinstance(error, MachineGone):
            approval.spent_before = 0.0  # it is a part of what this cluster has cost (`retries.final_cost`)
        ctx.out.say(
            f"{row.name} is undone, {describe_shutdown(ctx.ledger.list_leftovers(row.id)) or 'nothing of it is left'}"
        )
        raise


def _create_and_wait(
    ctx: Context,
    provisioner: LoadedProvisioner,
    request: Request,
    row: ClusterRow,
    agent: Path,
    search: OfferSearch,
    offers: Sequence[Offer],
    terms: Terms,
) -> ClusterSession:
    """The cluster of a new row, once every node answers and has its lease. Whatever is raised, some of it may exist."""
    if is_rented(provisioner):
        record_rented(ctx.home, request.provider)
    warn_of_clock(ctx, provisioner)
    intent = Intent(ctx.owner, row.name, row.token, row.boot_deadline, agent)
    while True:
        ctx.ensure_guard(row, waits=is_rented(provisioner))  # what bills is not made before a guard works
        try:
            with ctx.progress.during(f"creating {row.name}", whose=Whose.PROVIDER):
                offer = _create_first_available(ctx, provisioner, offers, row, intent, terms)
            break
        except (NoCapacity, QuotaExceeded) as error:
            offers = search.offers(error, row)

    def check_price(machines: Sequence[Resource]) -> None:
        price = _total_price(machines)
        terms.check_price(row.name, offer, price)
        if price > offer.per_hour:  # the boot lease was counted at the offer's price
            terms.check_spent(row.name, row.spent_before + money_spent(price, row.created, ctx.clock.now()))

    row = ctx.ledger.cluster(row.id)
    check_price(machines_of(ctx, row))
    if is_rented(provisioner):
        ctx.out.say("not yet protected: keep this computer on until the nodes are ready")
    with ctx.progress.during(f"waiting for {row.name}", row.queue_s + request.timeout_min * 60, whose=Whose.PROVIDER):
        session = wait_ready(ctx, provisioner, row, request, check_price)
    try:
        ctx.ensure_guard(row)
        _start_lease(ctx, session, terms, provisioner, offer)
    except BaseException:
        session.close()
        raise
    return session


def _create_first_available(
    ctx: Context, provisioner: LoadedProvisioner, offers: Sequence[Offer], row: ClusterRow, intent: Intent, terms: Terms
) -> Offer:
    """Try offer after offer. A failed one leaves nothing behind before the next is tried. Raises NoCapacity, and
    QuotaExceeded where each of them was refused for its quota."""
    refusals = Refusals()
    for offer in offers:
        if refusals.skips(offer):
            continue
        if why := terms.explain_refusal(offer):
            refusals.add_too_expensive(offer, why)
            continue
        now, spent = ctx.clock.now(), ctx.ledger.cluster(row.id).spent_before
        terms.check_limits(offer, now, spent)
        terms.announce(row, offer)
        boot_end = terms.boot_end(offer, now, spent)
        bounded = dataclasses.replace(intent, boot_deadline=boot_end + clock_error_s(ctx, provisioner))
        # Time counts from this attempt on, and what the attempts before have cost is in `spent`.
        ctx.ledger.set_cluster(
            row.id,
            offer=dataclasses.asdict(offer) | payer_record(terms.payer(offer)) | {"spent_before": spent},
            boot_deadline=boot_end,
            lease=terms.lease(offer, now, spent),
            created=now,
        )
        try:
            create_offer(ctx, provisioner, offer, row, bounded)
            return offer
        except (NoCapacity, QuotaExceeded) as error:
            if not is_reusable(ctx, row):
                undo(ctx, provisioner, row, error.message)
            refusals.add_refusal(offer, error)  # may raise, and the search for replacements waits then
    raise refusals.error()


def _total_price(machines: Sequence[Resource]) -> float:
    """$/h of all machines, as the provider reports it."""
    return sum(machine.per_hour for machine in machines)


def _start_lease(ctx: Context, session: ClusterSession, terms: Terms, provisioner: Provisioner, offer: Offer) -> None:
    """The run lease replaces the boot lease. Money is counted from the intent on, at the dearer of the two prices."""
    now = ctx.clock.now()
    rented = is_rented(provisioner)
    actual_price = _total_price(session.machines)
    terms.check_price(session.row.name, offer, actual_price)
    if actual_price > offer.per_hour * (1 + PRICE_ROUNDING):
        ctx.out.say(
            f"note: {session.row.name} costs {money(actual_price)}/h, and {money(offer.per_hour)}/h was offered"
        )
    self_destruct = provisioner.capabilities.get("self_destruct", "nothing is known of that")
    if rented and self_destruct is not True:
        ctx.out.say(
            f"note: these machines cannot end themselves ({self_destruct}): the guard on this computer does it, "
            "while it is on"
        )
    spent, since = session.row.spent_before, session.row.created
    lease = terms.lease(offer, now, spent, since=since, per_hour=max(offer.per_hour, actual_price))
    lease = within_life(lease, session.machines)
    send_lease(session, lease, now)
    if not ctx.ledger.mark_up(session.row.id, lease, now):
        raise Interrupted(f"another command ends {session.row.name} while it is being created", "gpuops status")
    session.row = ctx.ledger.cluster(session.row.id)
