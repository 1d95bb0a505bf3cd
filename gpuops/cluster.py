"""The first story: a cluster comes to be, is reached, and is gone again.

Waiting, retrying, journalling and marking live here, once, for every provider.
"""

from __future__ import annotations

import dataclasses
import math
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gpuops import artefact, guard
from gpuops import lease as leases
from gpuops.agent.node import PROTOCOL
from gpuops.agentclient import Absent, AgentClient, NodePaths, Programs
from gpuops.connection import connect
from gpuops.errors import (
    ConnectionLost,
    GpuopsError,
    Interrupted,
    NoCapacity,
    NodeError,
    NodeRefused,
    ProviderError,
    RateLimited,
    StillBilling,
    Unknown,
    UsageError,
)
from gpuops.install import revive
from gpuops.ledger import ClusterRow, LedgerJournal
from gpuops.models import Intent, Lease, Offer, Problem, Request, Resource
from gpuops.oneach import on_each
from gpuops.output import money, span
from gpuops.progress import Progress, Silent
from gpuops.teardown import POLL_S, POLL_SLOW_S, clear, in_order, owned, tear_down
from gpuops.world import World
from provisioners.base import Provisioner

BOOT_MARGIN_S = 600.0
"""What the boot lease adds to `--timeout`."""
RETRIES = 4
EAGER_S = 10.0
"""So long a new node is looked at often."""
DENIED_S = 120.0
"""So long a machine that was just rented may not know our key."""
ROUNDING = 0.01
"""By how much two prices may differ, as a part of them."""
BOOTING = frozenset({"no-node", "no-agent"})
"""Refusals of a machine that can be logged in to before its node has come to life."""

T = TypeVar("T")


@dataclass
class Live:
    """A cluster that answers: its row, its machines and a conversation with each node's agent."""

    row: ClusterRow
    machines: list[Resource]
    clients: list[AgentClient] = field(default_factory=list)
    facts: list[Mapping[str, Any]] = field(default_factory=list)
    """Each node's `hello`."""
    skews: list[float] = field(default_factory=list)
    """Seconds to add to a node's clock to get ours."""

    def each(self, action: Callable[[int, AgentClient], T]) -> list[T]:
        """Do something on every node at once; the first error wins, after all have ended."""
        return on_each(lambda index: action(index, self.clients[index]), range(len(self.clients)))

    def reconnect(self, index: int) -> AgentClient:
        """A new conversation with one node. Raises ConnectionLost."""
        self.clients[index].close()
        self.clients[index] = _client(self.clients[index].paths, self.machines[index], index)
        return self.clients[index]

    def close(self) -> None:
        for client in self.clients:
            client.close()
            client.connection.close()


def plan(world: World, request: Request) -> tuple[Provisioner, list[Offer]]:
    """Check the request and get its offers; nothing is created. Raises ProviderError, UsageError."""
    provisioner = world.provisioner(request.provider)
    _check_capabilities(provisioner, request)
    problems = _preflight(world, provisioner, request)
    settled = _settled(world, request, problems)
    if settled != request:
        request, problems = settled, _preflight(world, provisioner, settled)
    for problem in problems:
        if not problem.fatal:
            world.out.say(f"note: {problem.say}; {problem.hint}")
    fatal = [problem for problem in problems if problem.fatal]
    if fatal:
        raise ProviderError("; ".join(dict.fromkeys(problem.say for problem in fatal)), fatal[0].hint)
    with world.progress.during(f"asking {request.provider} what it has"):
        found = provisioner.offers(request)
    offers = [
        offer
        for offer in found
        if offer.nodes == request.nodes and (request.max_price is None or offer.per_hour <= request.max_price)
    ]
    if not offers:
        raise NoCapacity(
            f"{request.provider} offers nothing that fits this request",
            "ask for less, raise --max-price, or try another provider",
        )
    if provisioner.capabilities.get("rented") is True:
        for offer in offers:
            if not 0 < offer.per_hour < math.inf:
                raise ProviderError(f"{request.provider} says no price for {offer.say}", "nothing was created")
    return provisioner, offers


def _preflight(world: World, provisioner: Provisioner, request: Request) -> list[Problem]:
    with world.progress.during(f"looking whether {request.provider} is ready"):
        return list(provisioner.preflight(request))


def _settled(world: World, request: Request, problems: Sequence[Problem]) -> Request:
    """The request with what only a person can settle (a host's key), asked where there is one: all, or nothing."""
    open_ones = [problem for problem in problems if problem.settle]
    asked = world.out.interactive and not world.yes
    if asked and open_ones and all(world.out.confirm(f"{problem.say}: go on?") for problem in open_ones):
        settled = {problem.settle: True for problem in open_ones}
        return dataclasses.replace(request, options={**request.options, **settled})
    return request


def _check_capabilities(provisioner: Provisioner, request: Request) -> None:
    for wanted, capability in ((request.nodes > 1, "multinode"), (request.spot, "spot")):
        able = provisioner.capabilities.get(capability, f"{provisioner.name} does not say that it can")
        if wanted and able is not True:
            raise UsageError(
                f"{provisioner.name} cannot do {capability}: {able}", "leave that out, or name another provider"
            )


@dataclass(frozen=True)
class LeaseWish:
    """The flags that shape a lease; None: the provider's default."""

    max_hours: float | None = None
    max_cost: float | None = None
    idle_min: float | None = None


def bring_up(
    world: World,
    request: Request,
    *,
    name: str | None,
    ephemeral: bool,
    wish: LeaseWish,
    foreword: Callable[[Offer], str] = lambda _: "",
) -> Live:
    """Create a cluster and wait until every node answers. What fails is undone before it is raised.

    `foreword`: what is said of the offer before anybody is asked to agree to it.
    """
    provisioner, offers = plan(world, request)
    rented = provisioner.capabilities.get("rented") is True
    if said := foreword(offers[0]):
        world.out.say(said)
    _confirm(world, offers[0])
    agent, _ = artefact.build(world.home / "cache")
    now = world.clock.now()

    def boot_end(offer: Offer) -> float:
        """That of the boot lease: what is not ready yet costs money, too."""
        wished = leases.make(rented=rented, per_hour=offer.per_hour, now=now, **dataclasses.asdict(wish))
        longest = now + request.timeout_min * 60 + BOOT_MARGIN_S
        return longest if wished.money_end is None else min(longest, wished.money_end)

    row = world.ledger.intend(
        provider=request.provider,
        name=name,
        folder=world.folder,
        ephemeral=ephemeral,
        token=uuid.uuid4().hex,
        request=dataclasses.asdict(request),
        boot_deadline=boot_end(offers[0]),
        lease=leases.make(rented=rented, per_hour=offers[0].per_hour, now=now, **dataclasses.asdict(wish)),
        keeper=world.me,
        now=now,
    )
    try:
        guard.ensure(world.home)
        intent = Intent(world.owner, row.name, row.token, row.boot_deadline, agent)
        with world.progress.during(f"creating {row.name}"):
            offer = _create(world, provisioner, offers, row, intent, boot_end)
        row = world.ledger.cluster(row.id)
        if rented:
            world.out.say("not yet protected: keep this computer on until the nodes are ready")
        with world.progress.during(f"waiting for {row.name}", request.timeout_min * 60):
            live = _wait_ready(world, provisioner, row, request)
        try:
            _start_lease(world, live, wish, provisioner, offer)
        except BaseException:
            live.close()
            raise
    except StillBilling:
        world.ledger.ending(row.id)  # the guard, or `down`, goes on with it
        raise
    except BaseException as error:
        world.signals.backward()
        why = error.say if isinstance(error, (GpuopsError, Interrupted)) else f"an error in gpuops: {error!r}"
        world.out.say(f"undoing {row.name}")
        with _because(world, row, why):
            tear_down(world, row.id, why)
        world.out.say(f"{row.name} is undone, nothing of it is left")
        raise
    return live


@contextmanager
def _because(world: World, row: ClusterRow, why: str) -> Iterator[None]:
    """What failed is undone here. Where that fails as well, that is raised, and the first reason is said, not lost."""
    try:
        yield
    except GpuopsError:
        world.out.say(f"{row.name} was to be undone because of this: {why}")
        raise


def _confirm(world: World, offer: Offer) -> None:
    """One question before money is spent, where somebody can answer it. Raises UsageError."""
    if not offer.per_hour or world.yes:
        return
    if not world.out.interactive:
        raise UsageError("this costs money, and nobody is there to be asked", "say --yes")
    if not world.out.confirm(f"{offer.say}, {money(offer.per_hour)}/h: go?"):
        raise UsageError("not confirmed: nothing was created", "say --yes to skip the question")


def _create(
    world: World,
    provisioner: Provisioner,
    offers: Sequence[Offer],
    row: ClusterRow,
    intent: Intent,
    boot_end: Callable[[Offer], float],
) -> Offer:
    """Try offer after offer. A failed one leaves nothing behind before the next is tried.

    An offer that costs more than what was agreed to is asked about again.
    """
    refused: list[str] = []
    agreed = offers[0].per_hour
    for offer in offers:
        if offer.per_hour > agreed:
            _confirm(world, offer)
            agreed = offer.per_hour
        world.out.say(f"{row.name}: {offer.say}" + (f", {money(offer.per_hour)}/h" if offer.per_hour else ""))
        for note in offer.notes:
            world.out.say(f"note: {note}")
        bounded = dataclasses.replace(intent, boot_deadline=boot_end(offer))
        world.ledger.set_cluster(row.id, offer=dataclasses.asdict(offer), boot_deadline=bounded.boot_deadline)
        try:
            _create_once(world, provisioner, offer, row, bounded)
            return offer
        except NoCapacity as error:
            refused.append(error.say)
            _undo(world, provisioner, row, error.say)
    raise NoCapacity(
        refused[-1] if len(refused) == 1 else f"none of {len(refused)} offers could be had: {refused[-1]}",
        "try again later, or allow more kinds of machine",
    )


def _create_once(world: World, provisioner: Provisioner, offer: Offer, row: ClusterRow, intent: Intent) -> None:
    """One offer, as often as its provider says `slower`. Raises ProviderError; what was made may still be there."""
    for attempt in range(RETRIES):
        fresh = dataclasses.replace(intent, token=f"{intent.token}-{uuid.uuid4().hex[:8]}")
        try:
            _ask(world, provisioner, offer, row, fresh)
            return
        except RateLimited as error:
            world.ledger.refused(row.id)
            if attempt == RETRIES - 1:
                raise
            _undo(world, provisioner, row, error.say)  # half may be there; made again, it would be there twice
            wait = 2.0 ** (attempt + 1) if error.retry_after is None else error.retry_after
            world.progress.waits(f"{error.say}; asking again in {span(wait)}")
            world.clock.pause(wait, world.clock.monotonic() + wait)
        except Unknown:
            if _look_up(world, provisioner, offer, row):
                return
            raise
        except ProviderError:
            world.ledger.refused(row.id)
            raise


def _undo(world: World, provisioner: Provisioner, row: ClusterRow, why: str) -> None:
    """Nothing of a failed attempt is left, at the provider and in the ledger. Raises StillBilling."""
    with _because(world, row, why):
        clear(world, provisioner, world.ledger.cluster(row.id))
    world.ledger.cleared(row.id)


def _ask(world: World, provisioner: Provisioner, offer: Offer, row: ClusterRow, intent: Intent) -> None:
    """The one call that makes something. Raises what `create` raises, and Unknown where it made too few or too many."""
    with world.signals.shielded():  # what a provider has done must be in the ledger first
        made = provisioner.create(offer, intent, LedgerJournal(world.ledger, row.id))
        known = {(one.kind, one.id) for one in world.ledger.resources(row.id)}
        for resource in made:
            if (resource.kind, resource.id) not in known:
                world.ledger.got(row.id, resource)
    count = len(machines_of(world, row))
    if count != offer.nodes:
        raise Unknown(
            f"{provisioner.name} made {count} of {offer.nodes} machines", "try again, or ask for another kind"
        )


def _look_up(world: World, provisioner: Provisioner, offer: Offer, row: ClusterRow) -> bool:
    """After a lost answer: whether all machines are there, by their mark, and then in the ledger."""
    clock = world.clock
    deadline = clock.monotonic() + provisioner.settle_s
    while True:
        found = [one for one in owned(world, provisioner, row) if one.kind == "machine" and one.state != "ended"]
        if len(found) == offer.nodes:
            for resource in found:
                world.ledger.got(row.id, resource)
            return True
        if len(found) > offer.nodes or clock.monotonic() >= deadline:
            return False
        clock.pause(POLL_SLOW_S, deadline)


def machines_of(world: World, row: ClusterRow) -> list[Resource]:
    """The cluster's machines as the ledger knows them, in node order."""
    return in_order([one for one in world.ledger.resources(row.id) if one.kind == "machine"])


def all_ended(world: World, row: ClusterRow) -> bool:
    """Whether a cluster's provider says that none of its machines runs any more. Raises ProviderError."""
    provider = world.provisioner(row.provider)
    machines = machines_of(world, row)
    return bool(machines) and all(provider.describe(machine).state == "ended" for machine in machines)


def watchdogs_ended(world: World, row: ClusterRow) -> bool:
    """Whether every node says that its watchdog has ended it; its machine may go on, and cost money."""
    machines = machines_of(world, row)

    def one(index: int) -> bool:
        try:
            programs = programs_of(row, machines[index], index)
            try:
                AgentClient(programs.connection, programs.paths).close()
            finally:
                programs.connection.close()
        except NodeRefused as refusal:
            return refusal.kind == "ended"
        except NodeError:
            return False
        return False

    return bool(machines) and all(on_each(one, range(len(machines))))


def _wait_ready(world: World, provisioner: Provisioner, row: ClusterRow, request: Request) -> Live:
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


def name_hosts(world: World, row: ClusterRow, machines: Sequence[Resource]) -> None:
    """Write the names under which plain `ssh`, rsync and editors reach nodes that have an sshd."""
    targets = [machine.data["target"] for machine in machines if machine.data.get("connection") == "ssh"]
    if targets and len(targets) == len(machines):
        from gpuops import ssh

        ssh.write_config(world.home / "ssh", row.name, [ssh.Target.from_document(one) for one in targets])


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


def reach(
    row: ClusterRow, machines: Sequence[Resource], *, some: bool = False, progress: Progress | None = None
) -> Live:
    """Converse with every node of a cluster; with `some`, with those that answer, at least one.

    Who has not answered yet is told to `progress`. Raises ConnectionLost, NodeRefused.
    """
    told = progress or Silent()
    if not machines:
        raise NodeError(f"{row.name} has no machines", f"gpuops down {row.name}")

    def one(index: int) -> tuple[AgentClient, Mapping[str, Any], float]:
        paths = _paths(row.name, machines[index], index)
        told.waits("no answer yet", f"node{index}")
        try:
            client = _client(paths, machines[index], index)
            try:
                return client, *_hello(row.name, client)
            except BaseException:
                client.close()
                client.connection.close()
                raise
        except NodeError as error:
            failed[index] = error
            return Absent(f"node{index}", paths, error), {}, 0.0
        finally:
            told.waits("", f"node{index}")

    failed: dict[int, NodeError] = {}
    nodes = on_each(one, range(len(machines)))
    live = Live(row, list(machines), *(list(column) for column in zip(*nodes, strict=True)))
    if failed and (not some or len(failed) == len(machines)):
        live.close()
        raise _in_its_words(row, failed[min(failed)])
    return live


def _in_its_words(row: ClusterRow, error: NodeError) -> NodeError:
    """A node that has ended does not know what its cluster is called here."""
    if isinstance(error, NodeRefused) and error.kind == "ended":
        hint = f"what it left comes home with: gpuops down {row.name}; then bring up another"
        return NodeRefused(error.say, hint, error.kind, error.data)
    return error


def _client(paths: NodePaths, machine: Resource, index: int) -> AgentClient:
    connection = connect(machine, index)
    try:
        return AgentClient(connection, paths)
    except NodeRefused as refusal:
        if refusal.kind != "no-agent" or not machine.data.get("revives"):
            raise
        revive(connection, paths.python, paths.agent, paths.node)  # the machine was started anew
        return AgentClient(connection, paths)


def absent(row: ClusterRow, machines: Sequence[Resource], error: NodeError) -> Live:
    """A cluster none of whose nodes answers: asked anything, they say why."""
    nodes = [Absent(f"node{index}", _paths(row.name, one, index), error) for index, one in enumerate(machines)]
    return Live(row, list(machines), [*nodes], [{} for _ in nodes], [0.0 for _ in nodes])


def programs_of(row: ClusterRow, machine: Resource, index: int) -> Programs:
    """The agent's bulk programs on one node, whether its agent lives or not. Close its `connection` at the end."""
    return Programs(connect(machine, index), _paths(row.name, machine, index))


def _paths(cluster: str, machine: Resource, index: int) -> NodePaths:
    return NodePaths(machine, cluster, index, str(machine.data.get("artefact", "")))


def _hello(cluster: str, client: AgentClient) -> tuple[Mapping[str, Any], float]:
    """A node's facts, and its clock's distance from ours (the middle of the round trip is the moment).

    The clock is asked by `ping`: `hello` waits for the GPUs' driver. Raises NodeRefused (`protocol`) for
    an agent that speaks another version, NodeError for an answer that is none.
    """
    before = time.time()
    pong = client.call("ping")
    moment = (before + time.time()) / 2
    facts = client.call("hello")
    if facts.get("protocol") != PROTOCOL:
        raise NodeRefused(
            f"{client.label} was started by another version of gpuops", f"gpuops down {cluster}", "protocol"
        )
    try:
        skew = moment - float(pong.get("time", facts["time"]))  # an agent from before says it in `hello` only
        if not math.isfinite(skew):
            raise ValueError(skew)
        return facts, skew
    except (KeyError, TypeError, ValueError, OverflowError):
        raise NodeError(
            f"what answers on {client.label} is no agent of gpuops: it does not say what time it is",
            "end it and bring up another: gpuops down",
        ) from None


def _start_lease(world: World, live: Live, wish: LeaseWish, provisioner: Provisioner, offer: Offer) -> None:
    """The run lease replaces the boot lease. Money is counted from the intent on, at the dearer of the two prices."""
    now = world.clock.now()
    rented = provisioner.capabilities.get("rented") is True
    told = sum(machine.per_hour for machine in live.machines)
    if told > offer.per_hour * (1 + ROUNDING):
        world.out.say(f"note: {live.row.name} costs {money(told)}/h, and {money(offer.per_hour)}/h was offered")
    able = provisioner.capabilities.get("self_destruct", "nothing is known of that")
    if rented and able is not True:
        world.out.say(
            f"note: these machines cannot end themselves ({able}): the guard on this computer does it, while it is on"
        )
    price = max(offer.per_hour, told)
    lease = leases.make(rented=rented, per_hour=price, now=now, since=live.row.created, **dataclasses.asdict(wish))
    send_lease(live, lease, now)
    if not world.ledger.ready(live.row.id, lease, now):
        raise Interrupted(f"another command ends {live.row.name} while it is being created", "gpuops status")
    live.row = world.ledger.cluster(live.row.id)


def send_lease(live: Live, lease: Lease, now: float) -> None:
    """Tell every watchdog; clocks differ, so what travels is the time left."""
    ends_in = max(0.0, lease.end - now) if lease.end is not None else None
    live.each(lambda _i, client: client.call("lease", ends_in=ends_in, idle_s=lease.idle_s))


def open_live(world: World, row: ClusterRow, *, some: bool = False) -> Live:
    """Reach a cluster that the ledger says is up; with `some`, as much of it as answers. Raises NodeError."""
    with world.progress.during(f"reaching {row.name}"):
        return reach(row, machines_of(world, row), some=some, progress=world.progress)
