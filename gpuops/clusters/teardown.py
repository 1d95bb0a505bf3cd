"""The end of a cluster: destroy and list its resources repeatedly until none of them costs money.

A cluster is gone when the provider lists no resource with the cluster's tag, or only machines that shut down and what
serves them, and reports every resource of the ledger as ended. Where an answer was lost, or a created resource was
never listed, this must hold for as long as the provider may take to list what it created (`settle_s`). Two processes
may tear down one cluster: once the ledger calls it gone its name is free, and the tag may belong to a newer cluster.
Resources that still shut down then are left to the guard (`clusters.leftovers`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from gpuops.clusters.owned_resources import has_successor, list_remaining, select_resources
from gpuops.clusters.teardown_errors import still_billing_error, suggest_after_down
from gpuops.core.context import Context
from gpuops.core.errors import (
    AuthFailed,
    LocalDisk,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Rejected,
    StillBilling,
    find_auth_failure,
)
from gpuops.core.format import plural, span
from gpuops.core.models import COSTLESS, Resource, ResourceState
from gpuops.core.parallel import on_each
from gpuops.core.polling import Poller
from gpuops.core.provider import Provisioner, is_rented
from gpuops.core.timings import Whose
from gpuops.ledger.rows import ClusterState
from gpuops.ledger.store import ClusterRow, LedgerUnwritable
from gpuops.sync import bucket, push_record

POLL_S = 0.2
POLL_OWN_S = 0.01
"""The first pause where nothing is rented: what was ended there is gone when the call returns."""
POLL_SLOW_S = 5.0
LATE_S = 600.0
"""How long a machine is looked for whose launch was never answered, once its cluster is gone: a provider may list it
later than it says (`settle_s`)."""
PERMANENT_ERRORS = (AuthFailed, QuotaExceeded, Rejected)
"""Errors that a retry hardly changes."""
PERMANENT_ERRORS_MAX = 4


def tear_down(
    ctx: Context, cluster: int, why: str, *, force: bool = False, notice: bool = False, seen: bool = False
) -> None:
    """Destroy everything of a cluster and wait until nothing of it costs money. Raises StillBilling.

    `seen`: the caller has just conversed with all of its nodes, so that these may be ended before they are listed.
    With `force`, what is on hosts of the user's own and cannot be ended is given up; what is rented never is. `notice`:
    `why` is left for the next command to show.
    A ledger that cannot be written (a full disk) does not keep anything alive: its error is raised afterwards. One that
    cannot even be read, since another command holds it, does: StillBilling.
    """
    started = ctx.clock.monotonic()
    row = None
    try:
        row = ctx.ledger.cluster(cluster)
        if row.state is ClusterState.GONE and not ctx.ledger.resources(cluster):
            return
        try:
            ctx.ledger.begin_end(cluster)
        except LedgerUnwritable as error:
            ctx.out.say(f"note: {error.message}; {row.name} is ended all the same")
        provisioner = ctx.provisioner_of(row)
        with ctx.progress.during(
            f"ending {row.name}", max(provisioner.gone_s, provisioner.settle_s), whose=Whose.PROVIDER
        ):
            known_first = seen and provisioner.ends_only_its_own and _is_all_known(ctx, row)
            remaining = destroy_cluster(ctx, provisioner, row, force=force, known_first=known_first)
    except LedgerUnwritable as error:
        name = row.name if row else "what was to be ended"
        raise StillBilling(f"{name} may still be there: {error.message}", error.hint) from error
    forget_cluster(ctx, row)
    bucket.abort_cluster_uploads(ctx, cluster)
    message = f"{why} (took {span(ctx.clock.monotonic() - started)})" if notice else ""
    may_appear = is_rented(provisioner) and ctx.ledger.has_open_intents(row.id)
    ctx.ledger.mark_gone(cluster, ctx.clock.now(), why, notice=message, left=remaining, keeps_intents=may_appear)
    if may_appear:
        ctx.out.say(
            f"note: {row.provider} never answered a launch of {row.name}: the guard looks for its machine for "
            f"{span(LATE_S)} more; later `gpuops reap` finds it"
        )
    if remaining or may_appear:
        with suppress(LocalDisk):  # the next command starts one
            ctx.ensure_guard(row)


def describe_shutdown(remaining: Sequence[Resource]) -> str:
    """`3 machines still shut down, which costs nothing`; empty where nothing is left."""
    count = sum(resource.is_machine for resource in remaining)
    if not count:
        return "what served its machines still goes, which costs nothing" if remaining else ""
    return f"{plural(count, 'machine')} still shut{'s' * (count == 1)} down, which costs nothing"


def is_costless(remaining: Sequence[Resource]) -> bool:
    """Whether nothing is left but machines that are leaving, and what cannot go before them."""
    leaves = any(resource.state == ResourceState.LEAVING for resource in remaining)
    return leaves and not any(resource.bills and resource.state != ResourceState.LEAVING for resource in remaining)


def forget_cluster(ctx: Context, row: ClusterRow) -> None:
    """Remove the record of what was pushed, and the SSH names."""
    push_record.forget_cluster(ctx.home, row.token)
    forget_ssh_names(ctx, row.name)


def forget_ssh_names(ctx: Context, cluster: str) -> None:
    """Remove the names under which plain `ssh` and editors reached a cluster's nodes."""
    if (ctx.home / "ssh" / f"{cluster}.conf").exists():
        from gpuops.transport import ssh

        ssh.remove_config(ctx.home / "ssh", cluster)


@dataclass(frozen=True)
class Listing:
    """What one attempt of a teardown knows."""

    remaining: Sequence[Resource]
    """What is still there of the cluster, as far as the provider answers."""
    is_settled: bool
    """An empty list can be believed: nothing that was created can still be missing from it."""
    was_created: bool = True
    """The provider was ever asked to create something."""
    permanent_errors: int = 0
    """How many attempts failed with one of `PERMANENT_ERRORS`."""


@dataclass(frozen=True)
class Done:
    """Nothing of the cluster costs money; `remaining` still shuts down."""

    remaining: Sequence[Resource]


@dataclass(frozen=True)
class Destroy:
    resources: Sequence[Resource]


@dataclass(frozen=True)
class Wait:
    """Another attempt follows. `retry_after_s`: the pause before it, as the provider asks for it."""

    retry_after_s: float | None = None


@dataclass(frozen=True)
class GiveUp:
    """Another attempt would hardly change what is refused."""


def next_step(listing: Listing, error: ProviderError | None) -> Done | Destroy | Wait | GiveUp:
    """What a teardown does after an attempt to list, or to destroy what was listed (`error`: how that failed). Pure."""
    if error is not None:
        if not listing.was_created:
            return Done([])
        if listing.permanent_errors >= PERMANENT_ERRORS_MAX:
            return GiveUp()
        return Wait(error.retry_after if isinstance(error, RateLimited) else None)
    if listing.is_settled and (not listing.remaining or is_costless(listing.remaining)):
        return Done(listing.remaining)
    return Destroy(listing.remaining) if listing.remaining else Wait()


def destroy_cluster(
    ctx: Context, provisioner: Provisioner, row: ClusterRow, *, force: bool = False, known_first: bool = False
) -> Sequence[Resource]:
    """Destroy what has a cluster's tag until nothing of it costs money, within `gone_s`. `known_first`: what the ledger
    knows is ended without a list before. Returns what is still there, and costs nothing. Raises StillBilling."""
    teardown = _Teardown(ctx, provisioner, row, force=force and not is_rented(provisioner))
    error: ProviderError | None = None
    deadline = teardown.began + max(provisioner.gone_s, provisioner.settle_s)
    poller = Poller(ctx.clock, deadline, POLL_S if is_rented(provisioner) else POLL_OWN_S, POLL_SLOW_S)
    for attempt in poller:
        if known_first:
            listing, error, known_first = Listing(teardown.remaining, is_settled=False), None, False
        else:
            listing, error = teardown.list_remaining(attempt.started)
        step = next_step(listing, error)
        if isinstance(step, Destroy):
            listing, error = teardown.destroy(listing)
            step = next_step(listing, error) if error else Wait()
        if isinstance(step, Done):
            return step.remaining
        ctx.progress.waits(error.message if error else teardown.describe_wait())
        if isinstance(step, GiveUp):
            break
        if isinstance(step, Wait):
            poller.retry_after(step.retry_after_s)
    if teardown.give_up_rest(error):
        return []
    remaining = teardown.remaining
    remaining = [] if is_costless(remaining) else [resource for resource in remaining if resource.state not in COSTLESS]
    offered = row.offered_per_hour if remaining or ctx.ledger.has_open_intents(row.id) else 0.0
    hint = suggest_after_down(row, error, is_rented=is_rented(provisioner), force=force)
    raise still_billing_error(remaining, offered, error.message if error else "", row.name, hint) from error


class _Teardown:
    """The calls of one `destroy_cluster` to a provider, and what they have shown so far."""

    def __init__(self, ctx: Context, provisioner: Provisioner, row: ClusterRow, *, force: bool) -> None:
        self.began = ctx.clock.monotonic()
        self.remaining: Sequence[Resource] = ctx.ledger.resources(row.id)
        self._ctx = ctx
        self._provisioner = provisioner
        self._row = row
        self._force = force
        """What cannot be ended is given up."""
        self._given_up: set[str] = set()
        self._listed_ids: set[str] = set()
        self._permanent_errors = 0

    def list_remaining(self, started: float) -> tuple[Listing, ProviderError | None]:
        """`started`: when the attempt began (monotonic). Where the list fails, the rest is destroyed without it."""
        try:
            self.remaining = list_remaining(self._ctx, self._provisioner, self._row, self._given_up)
        except ProviderError as error:
            if self._ctx.ledger.regions(self._row.id):
                _destroy_unlisted(self._ctx, self._provisioner, self._row)
            return self._note(error, is_settled=False), error
        self._listed_ids |= {resource.id for resource in self.remaining}
        is_settled = _is_settled(self._ctx, self._row, self._listed_ids)
        return Listing(self.remaining, is_settled or started - self.began >= self._provisioner.settle_s), None

    def destroy(self, listing: Listing) -> tuple[Listing, ProviderError | None]:
        try:
            self._provisioner.destroy(listing.remaining)
        except ProviderError as error:
            return self._note(error, is_settled=listing.is_settled), error
        return listing, None

    def describe_wait(self) -> str:
        count = len(self.remaining)
        return f"{self._provisioner.name} " + (
            f"still lists {count} of it" if count else "lists nothing of it, and may lag"
        )

    def _note(self, error: ProviderError, *, is_settled: bool) -> Listing:
        """Count an error, and end what can be ended in spite of it."""
        regions = self._ctx.ledger.regions(self._row.id)
        self._permanent_errors += isinstance(error, PERMANENT_ERRORS)
        if regions and not isinstance(error, RateLimited) and (self._force or len(regions) > 1):
            self._destroy_reachable()
        return Listing(self.remaining, is_settled, bool(regions), self._permanent_errors)

    def _destroy_reachable(self) -> None:
        self.remaining, unreachable = _destroy_reachable(self._ctx, self._provisioner, self._row, self._given_up)
        for region, why in unreachable.items() if self._force else ():
            self._give_up(region, why)

    def give_up_rest(self, error: ProviderError | None) -> bool:
        """With `force`: give up what is left after the last attempt (`error`: how that failed), and return True.
        Refused credentials are no reason: they can be mended."""
        if not self._force or find_auth_failure(error):
            return False
        for region in sorted({resource.region for resource in self.remaining} - self._given_up):
            self._give_up(region, error.message if error else self.describe_wait())
        return True

    def _give_up(self, region: str, why: str) -> None:
        self._given_up.add(region)
        known = [*self.remaining, *self._ctx.ledger.resources(self._row.id)]
        ids = ", ".join(dict.fromkeys(resource.id for resource in known if resource.region == region))
        self._ctx.out.say(
            f"note: {why}; what is there of {self._row.name} is given up{ids and f' ({ids})'}: "
            "`gpuops reap` ends it once it can; else end its processes and remove it by hand"
        )


def _destroy_unlisted(ctx: Context, provisioner: Provisioner, row: ClusterRow) -> None:
    """Destroy rented resources by their ids where the provider's list fails; a later list tells whether that worked."""
    known = ctx.ledger.resources(row.id)
    if not known or not is_rented(provisioner):
        return
    with suppress(ProviderError):  # the next attempt retries
        provisioner.destroy(known)


def _is_all_known(ctx: Context, row: ClusterRow) -> bool:
    """Whether a list of a cluster's resources can add nothing to those that the ledger knows: virtual nodes are listed
    alone, and what a creation has left is found by its tag."""
    known = ctx.ledger.resources(row.id)
    has_more = ctx.ledger.has_open_intents(row.id) or any(resource.data.get("virtual") for resource in known)
    return row.ready is not None and bool(known) and not has_more


def _is_settled(ctx: Context, row: ClusterRow, listed_ids: set[str]) -> bool:
    """Whether an empty list can be believed at once: every resource of this cluster has been listed before."""
    if ctx.ledger.has_open_intents(row.id):
        return False
    return row.ready is not None or all(resource.id in listed_ids for resource in ctx.ledger.resources(row.id))


def _destroy_reachable(
    ctx: Context, provisioner: Provisioner, row: ClusterRow, given_up: Collection[str]
) -> tuple[list[Resource], dict[str, str]]:
    """Destroy the machines in the regions that answer, although another region does not.

    Returns the resources that are not known to have ended, and the unreachable regions with the reason of each.
    """

    def ask(region: str) -> Sequence[Resource] | ProviderError:
        try:
            return provisioner.list_owned(ctx.owner, [region])
        except ProviderError as error:
            return error

    regions = [region for region in ctx.ledger.regions(row.id) if region not in given_up]
    answers = dict(zip(regions, on_each(ask, regions), strict=True))
    reachable = select_resources(
        row,
        [resource for answer in answers.values() if not isinstance(answer, ProviderError) for resource in answer],
        ctx.owner,
    )
    known = [resource for resource in ctx.ledger.resources(row.id) if resource.region not in given_up]
    if has_successor(ctx, row):
        known_ids = {resource.key for resource in known}
        reachable = [resource for resource in reachable if resource.key in known_ids]
    elif reachable:
        with suppress(ProviderError):  # the next attempt retries
            provisioner.destroy(reachable)
    ids = {resource.key for resource in reachable}
    hidden = [resource for resource in known if resource.key not in ids]
    unsure = [
        resource
        for resource in hidden
        if isinstance(answers.get(resource.region), ProviderError) or not _costs_nothing(provisioner, resource)
    ]
    # Refused credentials count as an answer: the next attempt reports them.
    unreachable = {
        region: answer.message
        for region, answer in answers.items()
        if isinstance(answer, ProviderError) and not isinstance(answer, AuthFailed)
    }
    return [*reachable, *unsure], unreachable


def _costs_nothing(provisioner: Provisioner, resource: Resource) -> bool:
    """Whether the provider says that a resource costs nothing any more."""
    try:
        return provisioner.describe(resource).state in COSTLESS
    except ProviderError:
        return False
