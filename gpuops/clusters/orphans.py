"""Orphans: resources with our tag that no live cluster of the ledger accounts for; and how they are ended.

Also what this computer knows without its ledger: clusters that it has files of, and providers that it rented from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuops.clusters.recovery import LostCluster, cluster_token
from gpuops.clusters.teardown import (
    POLL_S,
    POLL_SLOW_S,
    clear_leftovers_once,
    describe_leftovers,
    describe_shutdown,
    find_auth_failure,
    forget_cluster,
    is_costless,
    is_leftover_of,
    list_remaining,
    select_resources,
    still_billing_error,
    suggest_command,
)
from gpuops.core.context import Context
from gpuops.core.errors import (
    AuthFailed,
    GpuopsError,
    LocalDisk,
    NotSetUp,
    Partial,
    ProviderError,
    RateLimited,
    StillBilling,
    UsageError,
)
from gpuops.core.models import Resource
from gpuops.core.polling import Poller
from provisioners import registry
from provisioners.checked import CheckedProvisioner

if TYPE_CHECKING:
    from gpuops.core.provider import Provisioner
    from gpuops.ledger.store import ClusterRow


RENTED = "rented"
"""A name a line: the providers that were ever asked for machines. It outlives a ledger that is lost."""


def find_unrecorded_clusters(home: Path, live: Callable[[], Iterable[str]]) -> list[str]:
    """Clusters that this computer has names or nodes of and that are none of `live`: a ledger was lost.

    `live` is asked last, since a cluster is in the ledger before anything of it is here.
    """
    names = {path.stem for path in home.glob("ssh/*.conf")}
    names |= {path.parent.name for path in home.glob("local/*/n*") if path.name[1:].isdigit()}
    return sorted(names.difference(live())) if names else []


def record_rented(home: Path, provider: str) -> None:
    """To be called before a provider is asked for machines. Raises LocalDisk where it cannot be written down."""
    if provider in read_rented(home):
        return
    try:
        with (home / RENTED).open("a", encoding="utf-8") as file:
            file.write(f"{provider}\n")
    except OSError as error:
        raise LocalDisk(
            f"{home / RENTED} cannot be written: {error.strerror}", "free some space on that disk"
        ) from error


def read_rented(home: Path) -> set[str]:
    try:
        return set((home / RENTED).read_text(encoding="utf-8", errors="replace").split())
    except OSError:
        return set()


@dataclass(frozen=True)
class Orphan:
    """Something with our mark that no live cluster of the ledger accounts for."""

    provider: str
    resource: Resource
    dotenv: bool = False
    """It is in the account of the key in the project's `.env`, and that is not the one whose key comes first."""

    @property
    def cluster(self) -> str:
        """The cluster's name, read from the mark `gpuops-<owner>-<cluster>-<part>`."""
        return self.resource.name.split("-", 2)[2].rpartition("-")[0]


@dataclass(frozen=True)
class UncheckedProvider:
    """A provider, or one cluster at it, that could not be checked. `why`: the error."""

    say: str
    why: GpuopsError | None = None

    def __str__(self) -> str:
        """The sentence, and what to do where it is credentials that are refused."""
        return f"{self.say}; {self.why.hint}" if isinstance(self.why, AuthFailed) and self.why.hint else self.say


def find_resources(
    ctx: Context, idle: list[UncheckedProvider] | None = None
) -> tuple[list[Orphan], list[UncheckedProvider]]:
    """Everything of ours at every provider, and each that could not be asked.

    One that is not set up here and was never used can hold nothing of ours: that is no failure. `idle`: where such
    ones are told.
    """
    found: list[Orphan] = []
    unasked: list[UncheckedProvider] = []
    used = _used_providers(ctx)
    for name in registry.provider_names():
        try:
            found += [Orphan(name, resource) for resource in ctx.provisioner(name).list_owned(ctx.owner, [])]
        except Partial as error:
            found += [Orphan(name, resource) for resource in error.found]
            unasked.append(UncheckedProvider(f"not all of {name} could be asked: {error.say}", error))
        except AuthFailed as error:
            never = isinstance(error, NotSetUp) and name not in {*(used or ()), *read_rented(ctx.home)}
            if never and idle is not None:
                idle.append(UncheckedProvider(f"{name} is not set up here: {error.say}", error))
            if not never and (used is None or name in used):
                unasked.append(UncheckedProvider(f"{name} could not be asked: {error.say}", error))
            elif not isinstance(error, NotSetUp):
                ctx.out.say(f"note: no cluster of this ledger was ever at {name}, which is not asked: {error.say}")
        except GpuopsError as error:
            unasked.append(UncheckedProvider(f"{name} could not be asked: {error.say}", error))
        known = {(one.resource.kind, one.resource.id) for one in found if one.provider == name}
        found += [one for one in _find_by_dotenv_key(ctx, name) if (one.resource.kind, one.resource.id) not in known]
    return found, unasked


def _find_by_dotenv_key(ctx: Context, name: str) -> list[Orphan]:
    """What is in the account of a key in `.env` behind the first one. It may be the account of whoever wrote the
    project: where it does not answer, that is said and stops nobody."""
    try:
        there = ctx.from_dotenv(name)
        return [Orphan(name, one, dotenv=True) for one in there.list_owned(ctx.owner, [])] if there else []
    except GpuopsError as error:
        ctx.out.say(f"note: {name} could not be asked with the key in .env: {error.say}")
        return []


def _used_providers(ctx: Context) -> set[str] | None:
    """The providers that clusters of ours have ever been on; None where this ledger cannot know all of them."""
    from gpuops.ledger.store import FILE, LedgerTooNew, providers_in

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
    found, unasked = find_resources(ctx)
    return select_orphans(ctx, found), unasked


def select_orphans(ctx: Context, found: Sequence[Orphan]) -> list[Orphan]:
    """Those that no live cluster of the ledger accounts for: by their mark, and by their token where they tell it. What
    costs nothing, and is left of a cluster that is gone, is no stray."""
    live = _live_rows(ctx)
    parting = [(row, ctx.ledger.list_leftovers(row.id)) for row in _departing_rows(ctx)]

    def is_known(stray: Orphan) -> bool:
        one = stray.resource
        return any(row.provider == stray.provider and select_resources(row, [one], ctx.owner) for row in live) or (
            not one.bills
            and any(row.provider == stray.provider and is_leftover_of(row, known, one) for row, known in parting)
        )

    return [stray for stray in found if not is_known(stray)]


def group_orphans(found: Sequence[Orphan]) -> list[LostCluster]:
    """Strays as the clusters that they are of. Two of one name were made apart where their tokens differ."""
    clusters = []
    for group in dict.fromkeys((stray.provider, stray.cluster, stray.dotenv) for stray in found):
        provider, name, dotenv = group
        resources = [one.resource for one in found if (one.provider, one.cluster, one.dotenv) == group]
        tokens = dict.fromkeys(token for one in resources if (token := cluster_token(one))) or [""]
        clusters += [
            LostCluster(provider, name, [one for one in resources if cluster_token(one) in (token, "")], dotenv)
            for token in tokens
        ]
    return clusters


def forget_host(ctx: Context, host: str) -> str:
    """Stop asking a host that is gone for good. Returns a sentence. Raises UsageError."""
    for row in _live_rows(ctx):
        if host in ctx.ledger.regions(row.id):
            raise UsageError(f"{row.name} has a node on {host}", f"give it up first: gpuops down {row.name} --force")
    for name in registry.provider_names():
        try:
            provisioner = ctx.provisioner(name)
            if isinstance(provisioner, CheckedProvisioner) and provisioner.forget(host):
                return f"{host} is forgotten; should it come back, remove ~/.gpuops-{ctx.owner} there by hand"
        except UsageError:
            continue  # a provisioner that cannot be loaded knows no hosts
    raise UsageError(f"nothing of ours is known to be on {host}", "`gpuops reap` names the hosts that do not answer")


def close_vanished_clusters(ctx: Context) -> tuple[list[str], list[UncheckedProvider]]:
    """Clusters in the ledger of which nothing is left at their provider: closed here, and named; and each that could
    not be asked. What its command, or the guard, still works on is left to them."""
    closed: list[str] = []
    unasked: list[UncheckedProvider] = []
    for row in _live_rows(ctx):
        if row.state != "up":
            continue
        try:
            left = list_remaining(ctx, ctx.provisioner_of(row), row)
        except GpuopsError as error:
            unasked.append(UncheckedProvider(f"{row.provider} could not be asked about {row.name}: {error.say}", error))
            continue
        if not left and not row.has_live_owner():
            forget_cluster(ctx, row)
            ctx.ledger.mark_gone(row.id, ctx.clock.now(), f"{row.provider} lists nothing of it")
            closed.append(row.name)
    return closed, unasked


def clear_departing(ctx: Context) -> list[str]:
    """What is left of clusters that cost nothing any more is asked to go, once; a sentence for each that still has
    something."""
    said = []
    for row in _departing_rows(ctx):
        try:
            left, why = clear_leftovers_once(ctx, row), ""
        except GpuopsError as error:
            left, why = ctx.ledger.list_leftovers(row.id), f", which is not cleared: {error.say}"
        if left:
            said.append(describe_leftovers(row, left) + why)
    return said


def _departing_rows(ctx: Context) -> list[ClusterRow]:
    from gpuops.ledger.store import LedgerTooNew

    try:
        return ctx.ledger.list_gone_with_leftovers()
    except LedgerTooNew:
        return []


def _live_rows(ctx: Context) -> list[ClusterRow]:
    """The ledger's live clusters; none where a newer gpuops wrote it, so that marks alone count."""
    from gpuops.ledger.store import LedgerTooNew

    try:
        return ctx.ledger.clusters()
    except LedgerTooNew:
        return []


def end_orphans(
    ctx: Context, found: Sequence[Orphan], unasked: Sequence[UncheckedProvider], before: Sequence[GpuopsError] = ()
) -> None:
    """End what was found; then say who could not be asked, for something may be left there.

    `before`: what had failed already. Raises StillBilling, else the first of these.
    """
    failed: list[str] = []
    why: GpuopsError | None = None
    try:
        destroy_orphans(ctx, found)
    except StillBilling as error:
        failed.append(error.say)
        why = error
    if unasked:
        failed.append(f"something may still be there: {'; '.join(one.say for one in unasked)}")
    for one in before if failed else before[1:]:
        ctx.out.say(f"note: {one.say}")
    if failed:
        whys = [one.why for one in unasked if find_auth_failure(one.why)] or [why]
        raise StillBilling(
            "; ".join(failed), suggest_command("gpuops reap", whys[0], "try again: gpuops reap")
        ) from whys[0]
    if before:
        raise before[0]


def destroy_orphans(ctx: Context, found: Sequence[Orphan]) -> None:
    """Destroy and look again until nothing costs money. Raises StillBilling naming what is left.

    Every provider is tried, whatever becomes of the others. A question may have stood in between: what
    belongs to a cluster by now is left to it.
    """
    failed: list[GpuopsError] = []
    found = select_orphans(ctx, found)
    for name, dotenv in sorted({(stray.provider, stray.dotenv) for stray in found}):
        there = [stray for stray in found if (stray.provider, stray.dotenv) == (name, dotenv)]
        try:
            provisioner = (ctx.from_dotenv(name) if dotenv else None) or ctx.provisioner(name)
            _destroy_at_provider(ctx, name, provisioner, [stray.resource for stray in there])
        except GpuopsError as error:
            failed.append(error)
            continue
        _forget_names(ctx, {stray.cluster for stray in there})
    if failed:
        why = next((one for one in failed if find_auth_failure(one)), None)
        raise StillBilling("; ".join(one.say for one in failed), suggest_command("gpuops reap", why)) from why


def _forget_names(ctx: Context, names: Collection[str]) -> None:
    """Plain `ssh` and editors knew what has ended by names of their own."""
    from gpuops.transport import ssh

    for name in set(names).difference(row.name for row in _live_rows(ctx)):
        if (ctx.home / "ssh" / f"{name}.conf").exists():
            ssh.remove_config(ctx.home / "ssh", name)


def _destroy_at_provider(ctx: Context, name: str, provisioner: Provisioner, found: Sequence[Resource]) -> None:
    """One account's. Raises StillBilling."""
    wanted = {(one.kind, one.id) for one in found}
    regions = sorted({one.region for one in found})  # of others that do not answer nothing was found
    left, trouble = list(found), ""
    last: ProviderError | None = None
    poller = Poller(ctx.clock, ctx.clock.monotonic() + provisioner.gone_s, POLL_S, POLL_SLOW_S)
    for _ in poller:
        trouble, last = "", None
        try:
            provisioner.destroy(left)
            listed = provisioner.list_owned(ctx.owner, regions)
            left = [one for one in listed if (one.kind, one.id) in wanted]
            if not left:
                return
            if is_costless(left):
                ctx.out.say(
                    f"note: {describe_shutdown(left)}; once more, in some minutes, clears the rest: gpuops reap"
                )
                return
        except ProviderError as error:
            trouble, last = error.say, error
            if isinstance(error, RateLimited):
                poller.retry_after(error.retry_after)
    raise still_billing_error(left, {}, trouble, name, suggest_command("gpuops reap", last)) from last


def down_by_tag(ctx: Context, names: Sequence[str], everything: bool) -> list[str]:
    """`down` without a ledger (a newer gpuops wrote it): clusters are found by their marks alone."""
    found, unasked = find_resources(ctx)
    there = sorted({stray.cluster for stray in found})
    wanted = there if everything else list(names) or there
    if not everything and len(wanted) > 1 and not names:
        raise UsageError(f"several clusters are live: {', '.join(wanted)}", f"name one: gpuops down {wanted[0]}")
    missing = [name for name in wanted if name not in there]
    if unasked:  # what did not answer may have nodes of these, too
        end_orphans(ctx, [stray for stray in found if stray.cluster in wanted], unasked)
    if missing:
        raise UsageError(
            f"there is no live cluster named {missing[0]}", f"live clusters: {', '.join(there) or 'there is none'}"
        )
    destroy_orphans(ctx, [stray for stray in found if stray.cluster in wanted])
    return [f"{name} is gone" for name in wanted]
