"""Why a run could not begin: a machine that went before it did is another matter than what a user did wrong."""

from __future__ import annotations

from gpuops.core.context import World
from gpuops.core.errors import ConnectionLost, GpuopsError, MachineGone, NodeError
from gpuops.nodes.session import Live, how_ended, was_taken

LOOK_S = 30.0
"""So long a provider may take to tell that a machine is gone which does not answer any more."""
POLL_S = 3.0


def explained(world: World, live: Live, error: NodeError) -> MachineGone | None:
    """What stands behind an error, where their provider tells that one of the machines went by nobody's wish."""
    clock = world.clock
    deadline = clock.monotonic() + (LOOK_S if isinstance(error, ConnectionLost) else 0.0)
    while True:
        if world.ledger.cluster(live.row.id).state != "up":
            return None  # another command ends it
        gone = _gone(world, live)
        if gone or clock.monotonic() >= deadline or world.signals.count:
            return gone
        clock.pause(POLL_S, deadline)


def _gone(world: World, live: Live) -> MachineGone | None:
    provider = world.provisioner_of(live.row)
    for index, machine in enumerate(live.machines):
        try:
            now = provider.describe(machine)
        except GpuopsError:
            continue  # who does not answer says nothing about a machine
        if was_taken(now):
            told = how_ended(now).get("say")
            why = f": {told}" if told else ""
            say = f"{machine.name} ended before its run began{why}"
            return MachineGone(say, "try again, or look at the provider's console", index, live.row.id)
    return None
