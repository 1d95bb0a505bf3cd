"""From a machine that was created to a node that answers: one loop and one deadline for every provider."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from gpuops import artefact, takeover
from gpuops import lease as leases
from gpuops.errors import (
    ConnectionLost,
    GpuopsError,
    Interrupted,
    MachineGone,
    NodeError,
    NodeRefused,
    RateLimited,
    Unknown,
)
from gpuops.ledger import ClusterRow
from gpuops.live import Live, how_ended, machines_of, name_hosts, reach, was_taken
from gpuops.models import Request, Resource
from gpuops.oneach import on_each
from gpuops.output import money, span
from gpuops.teardown import POLL_S, POLL_SLOW_S
from gpuops.world import World
from provisioners.base import Provisioner

EAGER_S = 10.0
"""So long a new node is looked at often."""
POLL_RENTED_S = 2.0
"""But a provider counts how often it is asked: RunPod's own example of a limit is 60 in a minute."""
DENIED_S = 120.0
"""So long a machine that was just rented may not know our key, or show a host key that is not the one it was given."""
BOOTING = frozenset({"no-node", "no-agent"})
"""Refusals of a machine that can be logged in to before its node has come to life."""
AGAIN = "try again, or look at the provider's console"
UNWATCHED = (
    "note: {names}: no watchdog came with this machine, since its image starts something of its own; until now only "
    "the guard on this computer would have ended it. From here on its agent does"
)


def wait_ready(world: World, provisioner: Provisioner, row: ClusterRow, request: Request) -> Live:
    """One loop, one deadline: described, addressed, connected, answering. Raises NodeError, ProviderError."""
    clock = world.clock
    started = clock.monotonic()
    deadline = started + min(request.timeout_min * 60, row.boot_deadline - clock.now())
    longer = "raise --timeout if it only needs longer"
    if deadline < started + request.timeout_min * 60:
        longer = "raise --max-cost if it only needs longer"
    rented = provisioner.capabilities.get("rented") is True
    borne_until: float | None = None
    seen: set[str] = set()
    while True:
        eager = clock.monotonic() - started < EAGER_S
        wait = (POLL_RENTED_S if rented else POLL_S) if eager else POLL_SLOW_S
        settled = clock.monotonic() - started >= provisioner.settle_s  # before it is asked: an answer may come late
        try:
            machines = on_each(partial(_look, provisioner), machines_of(world, row))
            seen |= {machine.id for machine in machines if machine.state != "ended"}
            why = _not_yet(provisioner, machines, seen, settled=settled)
            if not why:
                machines = _nodes(world, provisioner, row, machines)
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
        except MachineGone as error:
            if world.ledger.cluster(row.id).state != "creating":
                raise Interrupted(
                    f"another command ends {row.name} while it is being created", "gpuops status"
                ) from error
            error.cluster = row.id
            raise
        except NodeError as error:
            if not _may_pass(provisioner, error):
                raise
            borne_until = borne_until or clock.monotonic() + DENIED_S
            if clock.monotonic() >= borne_until:
                raise _given_up(machines, error) from error
            why = error.say
        world.progress.waits(why + _so_far(world, row))
        if clock.monotonic() >= deadline:
            words = _last_words(provisioner, machines_of(world, row))
            raise NodeError(
                f"{row.name} was not ready after {span(clock.monotonic() - started)}: {why}{words}",
                longer,
            )
        clock.pause(wait, deadline)


def _look(provisioner: Provisioner, known: Resource) -> Resource:
    return takeover.merged(known, provisioner.describe(known))


def _nodes(world: World, provisioner: Provisioner, row: ClusterRow, machines: Sequence[Resource]) -> list[Resource]:
    """The machines as nodes: those that are none yet are taken over. The ledger knows each step's result."""
    if not any(takeover.wanted(machine) for machine in machines):
        return list(machines)
    agent, _ = artefact.build(world.home / "cache")

    def first(index: int) -> Resource:
        machine = machines[index]
        world.progress.waits("logging in", f"node{index}")
        return takeover.met(machine, index) if takeover.wanted(machine) else machine

    def then(index: int) -> Resource:
        machine = known[index]
        world.progress.waits("bringing the agent", f"node{index}")
        if not takeover.wanted(machine):
            return machine
        return takeover.taken_over(provisioner, row, world.owner, agent, index, machine)

    try:
        known = on_each(first, range(len(machines)))
        for machine in known:
            world.ledger.update_resource(row.id, machine)
        nodes = on_each(then, range(len(machines)))
    finally:
        for index in range(len(machines)):
            world.progress.waits("", f"node{index}")
    for machine in nodes:
        world.ledger.update_resource(row.id, machine)
    if bare := [machine.name for machine in nodes if machine.data.get("watched") is False]:
        world.out.say(UNWATCHED.format(names=", ".join(bare)))
    return nodes


def _so_far(world: World, row: ClusterRow) -> str:
    """What waiting has cost, where it costs something."""
    per_hour = sum(machine.per_hour for machine in machines_of(world, row) if machine.bills)
    spent = leases.spent(per_hour, row.created, world.clock.now())
    return f", {money(spent)} so far" if spent >= 0.005 else ""


def _may_pass(provisioner: Provisioner, error: NodeError) -> bool:
    """Whether this may be a rented machine whose sshd was up before our key, or its own, had come to it."""
    from gpuops import ssh

    strange = isinstance(error, ssh.Denied | ssh.HostKeyChanged)
    return strange and provisioner.capabilities.get("rented") is True


def _given_up(machines: Sequence[Resource], error: NodeError) -> NodeError:
    from gpuops import ssh

    if isinstance(error, ssh.HostKeyChanged) and any(one.data.get("throwaway_key") for one in machines):
        return NodeError(
            f"{error.say}; its image seems to start an SSH server of its own, with a key that nobody can vouch for",
            "choose an image that runs the start command it is given, as the provider's own do",
        )
    return error


def _not_yet(provisioner: Provisioner, machines: Sequence[Resource], seen: set[str], *, settled: bool) -> str:
    """Why no connection is tried yet; empty when there is no reason. Raises NodeError for a machine that has ended,
    or will never be ready; MachineGone where another one may be.

    `seen`: machines that their provider has known; of another one `ended` may still mean `not known yet`.
    """
    for index, machine in enumerate(machines):
        ended = machine.state == "ended" and (settled or machine.id in seen)
        if ended or machine.data.get("reclaimed") is True:
            told = how_ended(machine).get("say")
            why = f": {told}" if told else ""
            say = f"{machine.name} ended before it was ready{why}"
            raise MachineGone(say, AGAIN, index) if was_taken(machine) else NodeError(say, AGAIN)
        if hopeless := str(machine.data.get("hopeless") or ""):
            say = f"node{index} will never be ready: {hopeless}{_last_words(provisioner, [machine])}"
            if was_taken(machine):
                raise MachineGone(say, AGAIN, index)
            raise NodeError(say, "try another machine or image")
        phase = str(machine.data.get("phase") or "")
        if machine.state in ("starting", "ended"):
            return f"node{index}: {phase}" if phase else f"node{index} is still starting"
        if not machine.address:
            return f"node{index}: {phase}" if phase else f"node{index} has no address yet"
    return ""


def _last_words(provisioner: Provisioner, machines: Sequence[Resource]) -> str:
    """What a machine's own log says, where its provider tells; empty otherwise."""
    tell: Callable[[Resource], str] = getattr(provisioner, "last_words", lambda _: "")
    for machine in machines:
        if machine.state == "running" and takeover.is_node(machine):
            continue
        try:
            if words := tell(machine).strip():
                return f"; its own log ends with: {' / '.join(words.splitlines()[-3:])}"
        except GpuopsError:
            continue
    return ""
