"""What is still listed of a cluster that costs nothing any more: its machines shut down, which takes minutes at some
providers, and what served them (a security group, a spot request) can go only after them.

Nobody waits for that: the name is free and the command has returned. The guard looks now and then, `reap` once.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuops.clusters.teardown import belonging
from gpuops.core.context import World
from gpuops.core.errors import GpuopsError
from gpuops.core.models import Resource
from gpuops.ledger.store import ClusterRow

FIRST_S = 5.0
SLOW_S = 60.0
"""From one look to the next: the first pause, and the longest."""
LOOKS = 60
"""So often one guard looks, for about an hour; one that is started later looks again."""
FAILURES = 4
"""After so many failures in a row it leaves what is there to a later one."""


def see_off(world: World, row: ClusterRow) -> Sequence[Resource]:
    """One round. Returns what is still there; where that is nothing, the ledger forgets it. Raises ProviderError."""
    provisioner = world.provisioner_of(row)
    known = world.ledger.left(row.id)
    there = provisioner.list_owned(world.owner, world.ledger.regions(row.id))
    listed = [one for one in there if is_of(row, known, one)]
    ids = {(one.kind, one.id) for one in listed}
    hidden = [provisioner.describe(one) for one in known if (one.kind, one.id) not in ids]
    left = [*listed, *(one for one in hidden if one.state != "ended")]
    if {(one.kind, one.id) for one in left} != {(one.kind, one.id) for one in known}:
        world.ledger.cleared(row.id, left)
    if left:
        provisioner.destroy(left)
    return left


def is_of(row: ClusterRow, known: Sequence[Resource], one: Resource) -> bool:
    """Whether something is of a cluster that is gone, and not of a newer one of its name: its token says so, or the
    ledger, by what was `known` to be left of it."""
    if any((one.kind, one.id) == (other.kind, other.id) for other in known):
        return True
    named = belonging([one], one.name.split("-", 2)[1], row.name)
    return bool(named and row.token) and str(one.data.get("token") or "").startswith(row.token)


def see_off_patiently(world: World, row: ClusterRow) -> None:
    """Rounds until nothing is left, ever more seldom. Raises what the last round of too many in vain came to."""
    failures, pause = 0, FIRST_S
    for _ in range(LOOKS):
        try:
            if not see_off(world, row):
                return
            failures = 0
        except GpuopsError:
            failures += 1
            if failures == FAILURES:
                raise
        world.clock.pause(pause, world.clock.monotonic() + pause)
        pause = min(pause * 1.5, SLOW_S)


def say(row: ClusterRow, left: Sequence[Resource]) -> str:
    """`lab costs nothing any more; left of it: 2 machines that shut down, security group sg-1`."""
    machines = sum(one.kind == "machine" for one in left)
    parts = [f"{machines} machine{'s' * (machines != 1)} shutting down"] if machines else []
    parts += [f"{one.kind} {one.id}" for one in left if one.kind != "machine"]
    return f"{row.name} costs nothing any more; left of it: {', '.join(parts)}"
