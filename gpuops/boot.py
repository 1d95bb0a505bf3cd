"""From a machine that was created to a node that answers: one loop and one deadline for every provider."""

from __future__ import annotations

from collections.abc import Sequence

from gpuops.errors import ConnectionLost, NodeError, NodeRefused, RateLimited, Unknown
from gpuops.ledger import ClusterRow
from gpuops.live import Live, machines_of, name_hosts, reach
from gpuops.models import Request, Resource
from gpuops.oneach import on_each
from gpuops.output import span
from gpuops.teardown import POLL_S, POLL_SLOW_S
from gpuops.world import World
from provisioners.base import Provisioner

EAGER_S = 10.0
"""So long a new node is looked at often."""
DENIED_S = 120.0
"""So long a machine that was just rented may not know our key."""
BOOTING = frozenset({"no-node", "no-agent"})
"""Refusals of a machine that can be logged in to before its node has come to life."""


def wait_ready(world: World, provisioner: Provisioner, row: ClusterRow, request: Request) -> Live:
    """One loop, one deadline: described, addressed, connected, answering. Raises NodeError, ProviderError."""
    clock = world.clock
    started = clock.monotonic()
    deadline = started + min(request.timeout_min * 60, row.boot_deadline - clock.now())
    longer = "raise --timeout if it only needs longer"
    if deadline < started + request.timeout_min * 60:
        longer = "raise --max-cost if it only needs longer"
    denied_at: float | None = None
    seen: set[str] = set()
    while True:
        wait = POLL_S if clock.monotonic() - started < EAGER_S else POLL_SLOW_S
        try:
            machines = on_each(provisioner.describe, machines_of(world, row))
            seen |= {machine.id for machine in machines if machine.state != "ended"}
            why = _not_yet(machines, seen, settled=clock.monotonic() - started >= provisioner.settle_s)
            if not why:
                live = reach(row, machines)
                name_hosts(world, row, machines)
                for machine in machines:
                    world.ledger.update_resource(row.id, machine)
                return live
        except RateLimited as error:
            why, wait = error.say, error.retry_after or wait
        except (Unknown, ConnectionLost) as error:
            why = error.say
        except NodeRefused as refusal:
            if refusal.kind not in BOOTING:
                raise
            why = refusal.say
        except NodeError as error:
            denied_at = clock.monotonic() if denied_at is None else denied_at
            if not _knows_no_key_yet(provisioner, error) or clock.monotonic() - denied_at >= DENIED_S:
                raise
            why = error.say
        world.progress.waits(why)
        if clock.monotonic() >= deadline:
            raise NodeError(
                f"{row.name} was not ready after {span(clock.monotonic() - started)}: {why}",
                longer,
            )
        clock.pause(wait, deadline)


def _knows_no_key_yet(provisioner: Provisioner, error: NodeError) -> bool:
    """Whether this may be a rented machine whose sshd was up before our key had come to it."""
    from gpuops import ssh

    return isinstance(error, ssh.Denied) and provisioner.capabilities.get("rented") is True


def _not_yet(machines: Sequence[Resource], seen: set[str], *, settled: bool) -> str:
    """Why no connection is tried yet; empty when there is no reason. Raises NodeError for a machine that has ended.

    `seen`: machines that their provider has known; of another one `ended` may still mean `not known yet`.
    """
    for index, machine in enumerate(machines):
        if machine.state == "ended" and (settled or machine.id in seen):
            raise NodeError(f"{machine.name} ended before it was ready", "try again, or look at the provider's console")
        if machine.state in ("starting", "ended"):
            return f"node{index} is still starting"
        if not machine.address:
            return f"node{index} has no address yet"
    return ""
