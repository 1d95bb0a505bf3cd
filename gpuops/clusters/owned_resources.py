"""What a provider lists of one cluster: by its mark, and by what the ledger knows of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gpuops.core.context import Context
from gpuops.core.models import Resource, ResourceState
from gpuops.core.provider import Provisioner
from gpuops.ledger.store import ClusterRow
from gpuops.nodes.session import sort_by_node


def list_remaining(
    ctx: Context, provisioner: Provisioner, row: ClusterRow, given_up: Collection[str] = ()
) -> list[Resource]:
    """What the provider lists of a cluster, and what the ledger knows of that is not listed but still there, in
    any region but those that were given up.

    Where a newer cluster has the name by now: only what the ledger knows to be this one's.
    """
    regions = [region for region in ctx.ledger.regions(row.id) if region not in given_up]
    listed = list_resources(ctx, provisioner, row, regions) if regions or not given_up else []
    known = [resource for resource in ctx.ledger.resources(row.id) if resource.region not in given_up]
    if has_successor(ctx, row):  # asked after the list: until now the mark was this cluster's
        known_ids = {resource.key for resource in known}
        listed = [resource for resource in listed if resource.key in known_ids]
    ids = {resource.key for resource in listed}
    hidden = [resource for resource in known if resource.key not in ids]
    return listed + [
        resource for resource in map(provisioner.describe, hidden) if resource.state != ResourceState.ENDED
    ]


def has_successor(ctx: Context, row: ClusterRow) -> bool:
    """Whether this cluster is gone, and a newer one of the same name is there."""
    return any(other.name == row.name and other.id != row.id for other in ctx.ledger.clusters())


def list_resources(
    ctx: Context, provisioner: Provisioner, row: ClusterRow, regions: Sequence[str] | None = None
) -> list[Resource]:
    """What the provider lists of one cluster, by its mark; machines in node order. `regions`: all of its own."""
    listed = provisioner.list_owned(ctx.owner, ctx.ledger.regions(row.id) if regions is None else regions)
    return select_resources(row, listed, ctx.owner)


def select_resources(row: ClusterRow, listed: Sequence[Resource], owner: str) -> list[Resource]:
    """Those of this cluster. One that tells its token and was made by another attempt is another's of the same name."""
    named = select_by_tag(listed, owner, row.name)
    return [resource for resource in named if (resource.token or row.token).startswith(row.token)]


def select_by_tag(resources: Sequence[Resource], owner: str, cluster: str) -> list[Resource]:
    """Those whose mark is `gpuops-<owner>-<cluster>-<part>`; a part has no dash, so that
    cluster `a` never takes what is cluster `a-b`'s."""
    prefix = f"gpuops-{owner}-{cluster}-"
    selected = [
        resource
        for resource in resources
        if resource.name.startswith(prefix) and "-" not in resource.name[len(prefix) :]
    ]
    return sort_by_node(selected)
