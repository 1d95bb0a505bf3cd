"""What other homes' gpuops have in the account, and the command that ends it: a home that was lost told nobody."""

from __future__ import annotations

from collections.abc import Sequence

from gpuops.clusters.orphans import Orphan
from gpuops.core.context import Context
from gpuops.core.errors import GpuopsError, Partial
from gpuops.core.format import first_few, money
from provisioners import registry


def find_other_owners(ctx: Context) -> list[Orphan]:
    """Resources with other owners' marks: a colleague's in the same account, or those of a home that was lost. A
    provider that does not answer is `find_resources`' to report."""
    found: list[Orphan] = []
    for name in registry.provider_names():
        try:
            found += [Orphan(name, resource) for resource in ctx.provisioner(name).list_every_owner()]
        except Partial as error:
            found += [Orphan(name, resource) for resource in error.found]
        except GpuopsError:
            continue
    return [orphan for orphan in found if orphan.owner != ctx.owner]


def describe_other_owners(orphans: Sequence[Orphan]) -> list[str]:
    """A sentence for each owner: what there is, what it costs, and the command that ends it."""
    sentences = []
    for owner in dict.fromkeys(orphan.owner for orphan in orphans):
        resources = [orphan.resource for orphan in orphans if orphan.owner == owner]
        price = sum(resource.per_hour for resource in resources if resource.bills)
        bill = f" ({money(price)}/h)" if price else ""
        sentences.append(
            f"{first_few([resource.name for resource in resources], 3)}{bill}: another home's, or one's that was lost; "
            f"if it is yours, `gpuops reap --owner {owner}` ends it"
        )
    return sentences
