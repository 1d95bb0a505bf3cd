"""Waiting until the machines of a new cluster are nodes that answer.

`wait_ready` is one loop with one deadline for every provider: describe the machines, take over those that are no nodes
yet, connect to all. What cannot become ready (an ended machine, a refused login that lasts) raises before the deadline.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from gpuops.clusters.owned_resources import list_resources
from gpuops.clusters.teardown import POLL_S, POLL_SLOW_S
from gpuops.core.context import Context
from gpuops.core.errors import (
    ConnectionLost,
    GpuopsError,
    Interrupted,
    MachineGone,
    NodeError,
    NodeRefused,
    RateLimited,
    RefusalKind,
    Unknown,
)
from gpuops.core.format import amount, money, span
from gpuops.core.models import COSTLESS, MachineStatus, Request, Resource, ResourceState
from gpuops.core.parallel import on_each
from gpuops.core.polling import Poller
from gpuops.core.provider import LoadedProvisioner, is_rented
from gpuops.ledger.rows import ClusterState
from gpuops.ledger.store import ClusterRow
from gpuops.nodes import bootstrap, host_key_handover
from gpuops.nodes.session import ClusterSession, contact_cluster, machines_of, write_ssh_names
from gpuops.offers import lease_limits

if TYPE_CHECKING:
    from gpuops.transport.schemas import NodeHello


MIN_QUEUE_S = 60.0
"""A batch system may take so long to start what can start at once, whatever `--wait` says."""
FAST_POLL_PERIOD_S = 10.0
"""Seconds for which a new machine is polled at the short interval."""
POLL_RENTED_S = 2.0
"""The short interval for rented machines: providers limit requests (RunPod's own example is 60 a minute)."""
LOGIN_REFUSED_LIMIT_S = 120.0
"""Seconds for which a machine that was just rented may refuse our key, or show another host key than it was given."""
BOOTING_REFUSALS = frozenset({RefusalKind.NO_NODE, RefusalKind.NO_AGENT})
"""Refusals of a machine that can be logged in to before its node has come to life."""
RETRY_HINT = "try again, or look at the provider's console"
NO_WATCHDOG_NOTE = (
    "note: {names}: no watchdog came with this machine, since its image starts something of its own; until now only "
    "the guard on this computer would have ended it. From here on its agent does"
)


def wait_ready(
    ctx: Context,
    provisioner: LoadedProvisioner,
    row: ClusterRow,
    request: Request,
    check: Callable[[Sequence[Resource]], None],
) -> ClusterSession:
    """Wait until every machine is described, has an address, is connected and answers as a node.

    `check` is called with the machines after each description, and raises where they are not worth waiting for. Raises
    NodeError (past the deadline too), ProviderError, MachineGone, Interrupted.
    """
    clock = ctx.clock
    started = clock.monotonic()
    timeout_s = request.timeout_min * 60
    deadline = started + min(row.queue_s + timeout_s, row.boot_deadline - clock.now())
    is_timeout_shorter = deadline >= started + timeout_s
    readiness = _Readiness(ctx, provisioner, row, request.nodes, check)
    poller = Poller.every(clock, POLL_SLOW_S, deadline)
    was_queued = row.queue_s > 0
    for attempt in poller:
        if attempt.started - started < FAST_POLL_PERIOD_S:
            poller.retry_after(POLL_RENTED_S if is_rented(provisioner) else POLL_S)
        try:
            is_settled = attempt.started - started >= provisioner.settle_s
            session, why = readiness.attempt(is_settled=is_settled)
            if readiness.is_queued:
                poller.end_at(min(deadline, started + max(row.queue_s, MIN_QUEUE_S)))
            elif was_queued:
                poller.end_at(min(deadline, clock.monotonic() + timeout_s))
            was_queued = readiness.is_queued
            if session:
                return session
        except RateLimited as error:
            why = error.message
            if error.retry_after:
                poller.retry_after(error.retry_after)
        except (Unknown, ConnectionLost) as error:
            why = error.message
        except MachineGone as error:
            _raise_if_ending(ctx, row, error)
            error.cluster, error.per_hour = row.id, readiness.per_hour
            raise
        except NodeError as error:
            readiness.tolerate(error)
            why = error.message
        ctx.progress.waits(why + _cost_so_far(ctx, row, readiness.machines))
    machine_log = _quote_machine_log(provisioner, machines_of(ctx, row) or readiness.machines)
    flag = "--wait" if was_queued else "--timeout" if is_timeout_shorter else "--max-cost"
    raise NodeError(
        f"{row.name} was not ready after {span(clock.monotonic() - started)}: {why}{machine_log}",
        f"raise {flag} if it only needs longer",
    )


class _Readiness:
    """What the attempts of one `wait_ready` have shown so far."""

    def __init__(
        self,
        ctx: Context,
        provisioner: LoadedProvisioner,
        row: ClusterRow,
        nodes: int,
        check: Callable[[Sequence[Resource]], None],
    ) -> None:
        self.machines: Sequence[Resource] = ctx.ledger.resources(row.id)
        self._ctx = ctx
        self._provisioner = provisioner
        self._row = row
        self._nodes = nodes
        self._check = check
        self._trusts_creation = not is_rented(provisioner)
        """Whether machines that run as they were created need no description: a node of one's own is there, or its
        connection fails and it is described."""
        self.per_hour = 0.0
        """$/h of all machines, at the highest that was told: one that has ended costs nothing any more."""
        self._known_ids: set[str] = set()
        """Machines that their provider has known."""
        self._refused_until = math.inf
        """Until when a refused login may still be transient (monotonic); set by the first refusal."""

    @property
    def is_queued(self) -> bool:
        """Whether a machine still waits for its turn."""
        return any(machine.data.get("queued") for machine in self.machines)

    def attempt(self, *, is_settled: bool) -> tuple[ClusterSession | None, str]:
        """The session, or why there is none yet. `is_settled`: the provider lists all that it created by now."""
        ctx, provisioner, row = self._ctx, self._provisioner, self._row
        machines, is_unnumbered = _find_machines(ctx, provisioner, row, self._nodes, self.machines)
        if self._trusts_creation and all(machine.state == ResourceState.RUNNING for machine in machines):
            self.machines = machines
        else:
            self.machines = on_each(partial(_describe_machine, provisioner), machines)
        self._trusts_creation = False
        self._known_ids |= {machine.id for machine in self.machines if machine.state != ResourceState.ENDED}
        self.per_hour = max(self.per_hour, sum(machine.per_hour for machine in self.machines))
        self._check(self.machines)
        why = _why_not_ready(provisioner, self.machines, self._known_ids, settled=is_settled)
        if is_unnumbered:
            why = f"{provisioner.name} has not numbered its machines yet"
        if why:
            return None, why
        self.machines = _take_over_machines(ctx, provisioner, row, self.machines)
        session = contact_cluster(row, self.machines)
        write_ssh_names(ctx, row, self.machines)
        for machine in self.machines:
            ctx.ledger.update_resource(row.id, machine)
        if local_disks := describe_local_disks(session.hellos):
            ctx.out.say(local_disks)
        return session, ""

    def tolerate(self, error: NodeError) -> None:
        """Raise an error that another attempt does not change, or that has lasted for `LOGIN_REFUSED_LIMIT_S`."""
        if isinstance(error, NodeRefused) and error.kind in BOOTING_REFUSALS:
            return
        if not _is_transient(self._provisioner, error):
            raise error
        now = self._ctx.clock.monotonic()
        self._refused_until = min(self._refused_until, now + LOGIN_REFUSED_LIMIT_S)
        if now >= self._refused_until:
            raise _explain_refusal(self.machines, error) from error


def _find_machines(
    ctx: Context, provisioner: LoadedProvisioner, row: ClusterRow, nodes: int, before: Sequence[Resource]
) -> tuple[list[Resource], bool]:
    """The machines in node order; the ledger gets to know those that their provider numbers late.

    True beside them while some have no number: then they are whatever is listed, and what was before and may have
    ended meanwhile.
    """
    known = machines_of(ctx, row)
    if len(known) >= nodes:
        return known, False
    listed = [machine for machine in list_resources(ctx, provisioner, row) if machine.state != ResourceState.ENDED]
    new_machines = [machine for machine in listed if machine.is_machine and machine.state not in COSTLESS]
    if len(new_machines) != nodes:
        _raise_if_ending(ctx, row)
        ids = {machine.id for machine in listed}
        return [*listed, *(machine for machine in before if machine.id not in ids)], True
    for machine in new_machines:
        ctx.ledger.got(row.id, machine)
    return machines_of(ctx, row), False


def _raise_if_ending(ctx: Context, row: ClusterRow, error: NodeError | None = None) -> None:
    """Raises Interrupted where another command has begun to end the cluster."""
    if ctx.ledger.cluster(row.id).state is not ClusterState.CREATING:
        raise Interrupted(f"another command ends {row.name} while it is being created", "gpuops status") from error


def _describe_machine(provisioner: LoadedProvisioner, known: Resource) -> Resource:
    return host_key_handover.merge_description(known, provisioner.describe(known))


def _take_over_machines(
    ctx: Context, provisioner: LoadedProvisioner, row: ClusterRow, machines: Sequence[Resource]
) -> list[Resource]:
    """The machines as nodes: those that are none yet are taken over. The ledger knows each step's result."""
    if not any(host_key_handover.needs_handover(machine) for machine in machines):
        return list(machines)
    agent, _ = bootstrap.build_agent(ctx.home / "cache")

    def log_in(index: int) -> Resource:
        machine = machines[index]
        ctx.progress.waits("logging in", f"node{index}")
        return (
            host_key_handover.prepare_handover(machine, index) if host_key_handover.needs_handover(machine) else machine
        )

    def take_over(index: int) -> Resource:
        machine = known[index]
        ctx.progress.waits("bringing the agent", f"node{index}")
        if not host_key_handover.needs_handover(machine):
            return machine
        return host_key_handover.complete_handover(ctx, provisioner, row, agent, index, machine)

    try:
        known = on_each(log_in, range(len(machines)))
        for machine in known:
            ctx.ledger.update_resource(row.id, machine)
        nodes = on_each(take_over, range(len(machines)))
    finally:
        for index in range(len(machines)):
            ctx.progress.waits("", f"node{index}")
    for machine in nodes:
        ctx.ledger.update_resource(row.id, machine)
    if bare := [machine.name for machine in nodes if machine.data.get("watched") is False]:
        ctx.out.say(NO_WATCHDOG_NOTE.format(names=", ".join(bare)))
    return nodes


def describe_local_disks(hellos: Sequence[NodeHello | None]) -> str:
    """Where data and environments lie, as a sentence; empty where that is the disk that everything lies on."""
    disks = {f"node{index}": hello.scratch for index, hello in enumerate(hellos) if hello and hello.scratch}
    if not disks:
        return ""
    whose = "each machine's local disk" if len(disks) == len(hellos) else f"the local disk of {', '.join(disks)} alone"
    path, free = next(iter(disks.values())).path, min(disk.free for disk in disks.values())
    return f"data and environments are on {whose} ({path}, {amount(free)} free)"


def _cost_so_far(ctx: Context, row: ClusterRow, machines: Sequence[Resource]) -> str:
    """The cost of waiting so far, as a suffix; empty where it is free."""
    per_hour = sum(machine.per_hour for machine in machines if machine.bills)
    spent = row.spent_before + lease_limits.money_spent(per_hour, row.created, ctx.clock.now())
    return f", {money(spent)} so far" if spent >= 0.005 else ""


def _is_transient(provisioner: LoadedProvisioner, error: NodeError) -> bool:
    """Whether this may be a rented machine whose sshd was up before our key, or its own, had come to it."""
    from gpuops.transport import ssh

    strange = isinstance(error, ssh.Denied | ssh.HostKeyChanged)
    return strange and is_rented(provisioner)


def _explain_refusal(machines: Sequence[Resource], error: NodeError) -> NodeError:
    from gpuops.transport import ssh

    if isinstance(error, ssh.HostKeyChanged) and any(machine.data.get("throwaway_key") for machine in machines):
        return NodeError(
            f"{error.message}; its image seems to start an SSH server of its own, with a key that nobody can vouch for",
            "choose an image that runs the start command it is given, as the provider's own do",
        )
    return error


def _why_not_ready(
    provisioner: LoadedProvisioner, machines: Sequence[Resource], known_ids: set[str], *, settled: bool
) -> str:
    """Why no connection is tried yet; empty when there is no reason. Raises NodeError for a machine that has ended,
    or will never be ready; MachineGone where another one may be.

    `known_ids`: machines that their provider has known; of another one `ended` may still mean `not known yet`.
    """
    for index, machine in enumerate(machines):
        hopeless = str(machine.data.get("hopeless") or "")
        ended = machine.state == ResourceState.ENDED and (settled or machine.id in known_ids)
        ended = ended or (machine.state == ResourceState.LEAVING and not hopeless)
        if ended or machine.status is MachineStatus.PREEMPTED:
            why = f": {machine.why_ended}" if machine.why_ended else ""
            sentence = f"{machine.name} ended before it was ready{why}"
            raise (
                MachineGone(sentence, RETRY_HINT, index)
                if machine.status.is_replaceable
                else NodeError(sentence, RETRY_HINT)
            )
        if hopeless:
            part = machine.name.rpartition("-")[2]
            who = f"node{part}" if part.isdigit() else machine.name
            sentence = f"{who} will never be ready: {hopeless}{_quote_machine_log(provisioner, [machine])}"
            if machine.status.is_replaceable:
                raise MachineGone(sentence, RETRY_HINT, index)
            raise NodeError(sentence, "try another machine or image")
    for index, machine in enumerate(machines):
        phase = str(machine.data.get("phase") or "")
        if machine.state in (ResourceState.STARTING, ResourceState.ENDED):
            return f"node{index}: {phase}" if phase else f"node{index} is still starting"
        if not machine.address:
            return f"node{index}: {phase}" if phase else f"node{index} has no address yet"
    return ""


def _quote_machine_log(provisioner: LoadedProvisioner, machines: Sequence[Resource]) -> str:
    """What a machine's own log says, where its provider tells; empty otherwise."""
    for machine in machines:
        if machine.state == ResourceState.RUNNING and host_key_handover.is_node(machine):
            continue
        try:
            if log := provisioner.last_words(machine).strip():
                return f"; its own log ends with: {' / '.join(log.splitlines()[-3:])}"
        except GpuopsError:
            continue
    return ""
