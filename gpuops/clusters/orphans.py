"""Orphans: resources with our tag that no live cluster of the ledger accounts for; and how they are ended."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gpuops.clusters.adoption import LostCluster, cluster_token
from gpuops.clusters.home_files import find_unrecorded_clusters, read_rented
from gpuops.clusters.leftovers import clear_leftovers_once, describe_leftovers, is_leftover_of
from gpuops.clusters.owned_resources import list_remaining, select_resources
from gpuops.clusters.teardown import (
    PERMANENT_ERRORS,
    PERMANENT_ERRORS_MAX,
    POLL_S,
    POLL_SLOW_S,
    describe_shutdown,
    forget_cluster,
    forget_ssh_names,
    is_costless,
)
from gpuops.clusters.teardown_errors import still_billing_error, suggest_command
from gpuops.core.context import Context
from gpuops.core.errors import (
    AuthFailed,
    GpuopsError,
    NotSetUp,
    Partial,
    ProviderError,
    RateLimited,
    StillBilling,
    UsageError,
    find_auth_failure,
)
from gpuops.core.format import first_few
from gpuops.core.models import Resource
from gpuops.core.polling import Poller
from gpuops.core.provider import Provisioner
from gpuops.ledger import FILE
from gpuops.ledger.rows import ClusterState, RunState
from gpuops.ledger.store import ClusterRow, LedgerTooNew, providers_in
from provisioners import registry

REAP = "gpuops reap"
"""What ends orphans."""


@dataclass(frozen=True)
class Orphan:
    """A resource with our tag that no live cluster of the ledger accounts for."""

    provider: str
    resource: Resource
    dotenv: bool = False
    """It is in the account of the key in the project's `.env`, and another key takes precedence over that one."""

    @property
    def cluster(self) -> str:
        """The cluster's name, read from the tag `gpuops-<owner>-<cluster>-<part>`."""
        return self.resource.name.split("-", 2)[2].rpartition("-")[0]

    @property
    def owner(self) -> str:
        """The 8 hex digits of the home that made it."""
        return self.resource.name.split("-", 2)[1]


@dataclass(frozen=True)
class UncheckedProvider:
    """A provider, or one cluster at it, that could not be checked. `why`: the error."""

    say: str
    why: GpuopsError | None = None

    def __str__(self) -> str:
        """The sentence, with the hint where credentials were refused."""
        return f"{self.say}; {self.why.hint}" if isinstance(self.why, AuthFailed) and self.why.hint else self.say


def find_resources(
    ctx: Context, idle: list[UncheckedProvider] | None = None, owner: str | None = None
) -> tuple[list[Orphan], list[UncheckedProvider]]:
    """All resources with our tag, or another `owner`'s, at every provider, and the providers that could not be asked.

    A provider that is not set up here and was never used can hold none: that is no failure. `idle`: such providers are
    added to it.
    """
    orphans: list[Orphan] = []
    unasked: list[UncheckedProvider] = []
    used = _used_providers(ctx)
    owner = ctx.owner if owner is None else owner
    for name in registry.provider_names():
        try:
            orphans += [Orphan(name, resource) for resource in ctx.provisioner(name).list_owned(owner, [])]
        except Partial as error:
            orphans += [Orphan(name, resource) for resource in error.found]
            unasked.append(UncheckedProvider(f"not all of {name} could be asked: {error.message}", error))
        except AuthFailed as error:
            never = isinstance(error, NotSetUp) and name not in {*(used or ()), *read_rented(ctx.home)}
            if never and idle is not None:
                idle.append(UncheckedProvider(f"{name} is not set up here: {error.message}", error))
            if not never and (used is None or name in used):
                unasked.append(UncheckedProvider(f"{name} could not be asked: {error.message}", error))
            elif not isinstance(error, NotSetUp):
                ctx.out.say(f"note: no cluster of this ledger was ever at {name}, which is not asked: {error.message}")
        except GpuopsError as error:
            unasked.append(UncheckedProvider(f"{name} could not be asked: {error.message}", error))
        known = {orphan.resource.key for orphan in orphans if orphan.provider == name}
        orphans += [orphan for orphan in _find_by_dotenv_key(ctx, name, owner) if orphan.resource.key not in known]
    return orphans, unasked


def _find_by_dotenv_key(ctx: Context, name: str, owner: str) -> list[Orphan]:
    """Resources in the account of the key in `.env`, where another key takes precedence. It may be the account of the
    project's author: a failure is only printed."""
    try:
        provisioner = ctx.from_dotenv(name)
        return (
            [Orphan(name, resource, dotenv=True) for resource in provisioner.list_owned(owner, [])]
            if provisioner
            else []
        )
    except GpuopsError as error:
        ctx.out.say(f"note: {name} could not be asked with the key in .env: {error.message}")
        return []


def _used_providers(ctx: Context) -> set[str] | None:
    """The providers that clusters of this ledger were ever at; None where an earlier ledger was lost."""
    try:
        rows = ctx.ledger.clusters(live=False)
    except LedgerTooNew:
        return providers_in(ctx.home)
    lost = any(ctx.home.glob(f"{FILE}.damaged-*")) or find_unrecorded_clusters(
        ctx.home, lambda: [row.name for row in rows]
    )
    return None if lost else {row.provider for row in rows}


def find_orphans(ctx: Context) -> tuple[list[Orphan], list[UncheckedProvider]]:
    """The resources that no live cluster of the ledger accounts for."""
    orphans, unasked = find_resources(ctx)
    return select_orphans(ctx, orphans), unasked


def select_orphans(ctx: Context, orphans: Sequence[Orphan]) -> list[Orphan]:
    """Those that no live cluster of the ledger accounts for, by their tag, and by their token where they have one.
    Costless leftovers of a cluster that is gone are no orphans."""
    live = _live_rows(ctx)
    parting = [(row, ctx.ledger.list_leftovers(row.id)) for row in _departing_rows(ctx)]

    def is_known(orphan: Orphan) -> bool:
        resource = orphan.resource
        return any(
            row.provider == orphan.provider and select_resources(row, [resource], ctx.owner) for row in live
        ) or (
            not resource.bills
            and any(row.provider == orphan.provider and is_leftover_of(row, known, resource) for row, known in parting)
        )

    return [orphan for orphan in orphans if not is_known(orphan)]


def group_orphans(orphans: Sequence[Orphan]) -> list[LostCluster]:
    """Orphans grouped by cluster. Where tokens differ, there were two clusters of one name."""
    clusters = []
    for group in dict.fromkeys((orphan.provider, orphan.cluster, orphan.dotenv) for orphan in orphans):
        provider, name, dotenv = group
        resources = [one.resource for one in orphans if (one.provider, one.cluster, one.dotenv) == group]
        tokens = dict.fromkeys(token for one in resources if (token := cluster_token(one))) or [""]
        clusters += [
            LostCluster(provider, name, [one for one in resources if cluster_token(one) in (token, "")], dotenv)
            for token in tokens
        ]
    return clusters


def forget_host(ctx: Context, host: str) -> str:
    """Remove a host that no longer exists from the hosts that are asked. Returns a sentence. Raises UsageError."""
    for row in _live_rows(ctx):
        if host in ctx.ledger.regions(row.id):
            raise UsageError(f"{row.name} has a node on {host}", f"give it up first: gpuops down {row.name} --force")
    for name in registry.provider_names():
        try:
            provisioner = ctx.provisioner(name)
            if provisioner.forget(host):
                return f"{host} is forgotten; what may still be there of ours goes by hand: ~/.gpuops-{ctx.owner}*"
        except UsageError:
            continue  # a provisioner that cannot be loaded knows no hosts
    raise UsageError(f"nothing of ours is known to be on {host}", "`gpuops reap` names the hosts that do not answer")


def close_vanished_clusters(ctx: Context) -> tuple[list[str], list[UncheckedProvider]]:
    """Close the clusters in the ledger of which their provider lists nothing. Returns their names, and the clusters
    that could not be checked. A cluster with a live owner process is skipped; one whose runs are not home is left to
    the guard, which finishes these first: a bucket may still have what they made."""
    closed: list[str] = []
    unasked: list[UncheckedProvider] = []
    for row in _live_rows(ctx):
        if row.state is not ClusterState.UP:
            continue
        try:
            remaining = list_remaining(ctx, ctx.provisioner_of(row), row)
        except GpuopsError as error:
            unasked.append(
                UncheckedProvider(f"{row.provider} could not be asked about {row.name}: {error.message}", error)
            )
            continue
        if remaining or row.has_live_owner():
            continue
        if unfinished := [run.name for run in ctx.ledger.runs(cluster=row.id) if run.state is not RunState.HOME]:
            ctx.out.say(
                f"note: {row.provider} lists nothing of {row.name}: the guard brings home what "
                f"{first_few(unfinished, 3)} kept elsewhere, then clears it away"
            )
        else:
            forget_cluster(ctx, row)
            ctx.ledger.mark_gone(row.id, ctx.clock.now(), f"{row.provider} lists nothing of it")
            closed.append(row.name)
    return closed, unasked


def clear_departing(ctx: Context) -> list[str]:
    """Destroy the leftovers of clusters that cost nothing any more, once. Returns a sentence for each cluster that
    still has some."""
    sentences = []
    for row in _departing_rows(ctx):
        try:
            remaining, why = clear_leftovers_once(ctx, row), ""
        except GpuopsError as error:
            remaining, why = ctx.ledger.list_leftovers(row.id), f", which is not cleared: {error.message}"
        if remaining:
            sentences.append(describe_leftovers(row, remaining) + why)
    return sentences


def _departing_rows(ctx: Context) -> list[ClusterRow]:
    try:
        return ctx.ledger.list_gone_with_leftovers()
    except LedgerTooNew:
        return []


def _live_rows(ctx: Context) -> list[ClusterRow]:
    """The ledger's live clusters; none where a newer gpuops wrote it, so that tags alone count."""
    try:
        return ctx.ledger.clusters()
    except LedgerTooNew:
        return []


def end_orphans(
    ctx: Context,
    orphans: Sequence[Orphan],
    unasked: Sequence[UncheckedProvider],
    earlier_errors: Sequence[GpuopsError] = (),
    *,
    by_tag: bool = False,
    again: str = REAP,
) -> None:
    """End orphans; then report the providers that could not be asked, which may have more.

    `earlier_errors`: what had failed already. `by_tag`, `again`: as in `destroy_orphans`. Raises StillBilling, else the
    first of these.
    """
    failed: list[str] = []
    hints: list[str] = []
    why: GpuopsError | None = None
    try:
        destroy_orphans(ctx, orphans, by_tag=by_tag, again=again)
    except StillBilling as error:
        failed.append(error.message)
        hints.append(error.hint)
        why = error
    if unasked:
        failed.append(f"something may still be there: {'; '.join(one.say for one in unasked)}")
        hints += [one.why.hint for one in unasked if one.why]
        why = next((one.why for one in unasked if find_auth_failure(one.why)), why)
    for one in earlier_errors if failed else earlier_errors[1:]:
        ctx.out.say(f"note: {one.message}")
    if failed:
        raise StillBilling("; ".join(failed), _join_hints(hints, again)) from why
    if earlier_errors:
        raise earlier_errors[0]


def destroy_orphans(ctx: Context, orphans: Sequence[Orphan], *, by_tag: bool = False, again: str = REAP) -> None:
    """Destroy orphans and list again until nothing of them costs money. Raises StillBilling with what remains.

    A failure at one provider does not keep the others from being tried. A resource that belongs to a cluster by now
    (the user may have been asked in between) is kept, unless they go `by_tag`, whatever the ledger has of them.
    `again`: what is to be typed once more where something is left.
    """
    errors: list[GpuopsError] = []
    orphans = orphans if by_tag else select_orphans(ctx, orphans)
    for key in sorted({(orphan.provider, orphan.dotenv, orphan.owner) for orphan in orphans}):
        name, dotenv, owner = key
        group = [orphan for orphan in orphans if (orphan.provider, orphan.dotenv, orphan.owner) == key]
        try:
            provisioner = (ctx.from_dotenv(name) if dotenv else None) or ctx.provisioner(name)
            _destroy_at_provider(ctx, owner, name, provisioner, [orphan.resource for orphan in group], again)
        except GpuopsError as error:
            errors.append(error)
            continue
        if owner == ctx.owner and not ctx.read_only:
            _forget_names(ctx, {orphan.cluster for orphan in group})
    if errors:
        why = next((error for error in errors if find_auth_failure(error)), errors[0])
        hint = _join_hints([error.hint for error in errors], again)
        raise StillBilling("; ".join(error.message for error in errors), hint) from why


def _join_hints(hints: Sequence[str], again: str) -> str:
    """What to do about each failure, and then to look again."""
    steps = dict.fromkeys(hint.removesuffix(again).removesuffix("; then: ") for hint in hints)
    return "; then: ".join([*filter(None, ["; ".join(filter(None, steps))]), again])


def _forget_names(ctx: Context, names: Collection[str]) -> None:
    """Remove the SSH names of clusters that have ended."""
    for name in set(names).difference(row.name for row in _live_rows(ctx)):
        forget_ssh_names(ctx, name)


def _destroy_at_provider(
    ctx: Context, owner: str, name: str, provisioner: Provisioner, resources: Sequence[Resource], again: str
) -> None:
    """Destroy the orphans of one owner in one account. Raises StillBilling."""
    wanted_ids = {resource.key for resource in resources}
    regions = sorted({resource.region for resource in resources})  # of others that do not answer nothing was found
    remaining = list(resources)
    last: ProviderError | None = None
    permanent_errors = 0
    poller = Poller(ctx.clock, ctx.clock.monotonic() + provisioner.gone_s, POLL_S, POLL_SLOW_S)
    for _ in poller:
        last = None
        try:
            provisioner.destroy(remaining)
        except ProviderError as error:
            last = error
        try:  # also after a failure: what has ended is not asked for again, in place of what has not
            listed = [one for one in provisioner.list_owned(owner, regions) if one.key in wanted_ids]
            remaining = listed if listed or last is None else remaining  # an empty list may be another account's
            if not remaining:
                return
            if is_costless(remaining):
                ctx.out.say(
                    f"note: {describe_shutdown(remaining)}; once more, in some minutes, clears the rest: {again}"
                )
                return
        except ProviderError as error:
            last = last or error
        permanent_errors += isinstance(last, PERMANENT_ERRORS)
        if permanent_errors == PERMANENT_ERRORS_MAX:
            break
        if isinstance(last, RateLimited):
            poller.retry_after(last.retry_after)
    trouble = last.message if last else ""
    raise still_billing_error(remaining, 0.0, trouble, name, suggest_command(again, last)) from last


def down_by_tag(ctx: Context, names: Sequence[str], everything: bool) -> list[str]:
    """`down` without a ledger that can be used (a newer gpuops wrote it, or its home is read-only): clusters are found
    by their tags alone."""
    orphans, unasked = find_resources(ctx)
    live_names = sorted({orphan.cluster for orphan in orphans})
    wanted = live_names if everything else list(names) or live_names
    if not everything and len(wanted) > 1 and not names:
        raise UsageError(
            f"several clusters are live: {', '.join(wanted)}",
            f"name one: gpuops down {wanted[0]}, or end all: gpuops down --all",
        )
    missing = [name for name in wanted if name not in live_names]
    if unasked:  # what did not answer may have nodes of these, too
        end_orphans(ctx, [orphan for orphan in orphans if orphan.cluster in wanted], unasked, by_tag=True)
    if missing:
        raise UsageError(
            f"there is no live cluster named {missing[0]}", f"live clusters: {', '.join(live_names) or 'there is none'}"
        )
    destroy_orphans(ctx, [orphan for orphan in orphans if orphan.cluster in wanted], by_tag=True)
    return [f"{name} is gone" for name in wanted]
