"""Sessions with the agents of a cluster's nodes, and questions about machines that the ledger knows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

from gpuops.agent.wire_format import PROTOCOL
from gpuops.core.context import Context
from gpuops.core.errors import ConnectionLost, GpuopsError, MalformedAnswer, NodeError, NodeRefused, RefusalKind
from gpuops.core.models import Lease, Resource
from gpuops.core.parallel import BackgroundTask, on_each
from gpuops.core.provider import is_rented
from gpuops.core.reporting import Progress, Silent
from gpuops.core.timings import Whose
from gpuops.ledger.store import ClusterRow
from gpuops.nodes import bootstrap
from gpuops.nodes.gpu_shares import is_virtual, with_virtual
from gpuops.transport.connect import connect
from gpuops.transport.rpc import AgentClient, NodePaths, Programs, UnreachableAgent

if TYPE_CHECKING:
    from gpuops.transport.schemas import NodeHello, OtherHello, Pong

T = TypeVar("T")

NodeContact = tuple[AgentClient, "NodeHello | None", float]
"""A node's agent, its `hello` where it answers, and the seconds to add to its clock to get ours."""
CLOCK_ATTEMPTS = 3
"""How many times a node's clock is read: one slow round trip must not decide its skew."""
PROMPT_ANSWER_S = 0.5
"""An answer within this time is precise enough; the clock is not read again."""
ENDED_KINDS = (RefusalKind.ENDED, RefusalKind.NO_NODE)
"""Kinds of refusal of a node that has ended."""


@dataclass
class ClusterSession:
    """A cluster that answers: its row, its nodes' machines and a conversation with each node's agent."""

    row: ClusterRow
    machines: list[Resource]
    """Each node's, in node order; virtual nodes share some of them (`gpuops.nodes.gpu_shares`)."""
    clients: list[AgentClient] = field(default_factory=list)
    hellos: list[NodeHello | None] = field(default_factory=list)
    """What each node says of itself; None where it does not answer."""
    skews: list[float] = field(default_factory=list)
    """Seconds to add to a node's clock to get ours."""
    whole: ClusterSession | None = field(default=None, kw_only=True)
    """The session of all the cluster's nodes, where this is a part of it."""
    part_of: Sequence[int] = field(default=(), kw_only=True)
    """The numbers in the cluster of a part's nodes."""

    def part(self, numbers: Sequence[int]) -> ClusterSession:
        """The session with some of the nodes alone, numbered from 0 as a run numbers them; this one, where it has just
        these. It ends with the whole."""
        if [*numbers] == [*self.part_of]:
            return self
        whole = self.whole or self
        return ClusterSession(
            self.row,
            [whole.machines[number] for number in numbers],
            [whole.clients[number] for number in numbers],
            [whole.hellos[number] for number in numbers],
            [whole.skews[number] for number in numbers],
            whole=whole,
            part_of=numbers,
        )

    def number(self, index: int) -> int:
        """The number in the cluster of the node at `index`."""
        return self.part_of[index] if self.part_of else index

    def each(self, action: Callable[[int, AgentClient], T]) -> list[T]:
        """Do something on every node at once; the first error wins, after all have ended."""
        return on_each(lambda index: action(index, self.clients[index]), range(len(self.clients)))

    def present(self) -> list[AgentClient]:
        """Without nodes that do not answer."""
        return [client for client in self.clients if not isinstance(client, UnreachableAgent)]

    def hello(self, index: int) -> NodeHello:
        """What one node says of itself. Raises NodeError where it does not answer."""
        found: NodeHello = self.hellos[index] or self.clients[index].call("hello")
        return found

    def gpus(self) -> list[list[str]]:
        """The indices of each node's GPUs; none where it does not answer."""
        return [[str(gpu.index) for gpu in hello.gpus] if hello else [] for hello in self.hellos]

    def reconnect(self, index: int, machine: Resource | None = None) -> AgentClient:
        """A new conversation with one node; `machine`: as it is reached from now on. Raises ConnectionLost."""
        if self.whole is not None:
            client = self.clients[index] = self.whole.reconnect(self.number(index), machine)
            self.machines[index] = self.whole.machines[self.number(index)]
            return client
        self.clients[index].close()
        self.machines[index] = machine or self.machines[index]
        self.clients[index] = _open_client(self.clients[index].paths, self.machines[index], index)
        return self.clients[index]

    def join(self, index: int, machine: Resource, met: NodeContact) -> None:
        """Add a node at `index`, or replace one that has ended."""
        columns: list[list[Any]] = [self.machines, self.clients, self.hellos, self.skews]
        for column, value in zip(columns, (machine, *met), strict=True):
            column[index : index + 1] = [value]

    def close(self) -> None:
        for client in self.clients:
            client.close()
            client.connection.close()


def contact_cluster(
    row: ClusterRow,
    machines: Sequence[Resource],
    *,
    some: bool = False,
    any_version: bool = False,
    progress: Progress | None = None,
) -> ClusterSession:
    """Converse with every node of a cluster; with `some`, with those that answer, at least one; with `any_version`,
    also with agents of another protocol, for what no protocol changes (docs/protocol.md).

    A virtual node that has ended is no error: a run that needs it creates it again. `progress` shows the nodes that
    have not answered yet. Raises ConnectionLost, NodeRefused.
    """
    display = progress or Silent()
    if not machines:
        raise NodeError(f"{row.name} has no machines", f"gpuops down {row.name}")

    def contact(index: int) -> NodeContact:
        display.waits("no answer yet", f"node{index}")
        try:
            return contact_node(row, machines[index], index, any_version=any_version)
        except NodeError as error:
            failed[index] = error
            return UnreachableAgent(f"node{index}", node_paths(row.name, machines[index], index), error), None, 0.0
        finally:
            display.waits("", f"node{index}")

    failed: dict[int, NodeError] = {}
    nodes = on_each(contact, range(len(machines)))
    session = ClusterSession(row, list(machines), *(list(column) for column in zip(*nodes, strict=True)))
    missed = [index for index, error in failed.items() if not (is_virtual(machines[index]) and means_ended(error))]
    if len(failed) == len(machines) or (missed and not some):
        session.close()
        raise _with_cluster_hint(row, machines[min(missed)], failed[min(missed)])
    return session


def contact_node(row: ClusterRow, machine: Resource, index: int, *, any_version: bool = False) -> NodeContact:
    """A conversation with one node. `any_version`: see `contact_cluster`. Raises ConnectionLost, NodeRefused."""
    client = _open_client(node_paths(row.name, machine, index), machine, index)
    try:
        return client, *_read_hello(row.name, client, any_version=any_version)
    except BaseException:
        client.close()
        client.connection.close()
        raise


def means_ended(error: NodeError) -> bool:
    """Whether a node itself says that it has ended, or is there no more."""
    return isinstance(error, NodeRefused) and error.kind in ENDED_KINDS


def open_session(
    ctx: Context, row: ClusterRow, *, some: bool = False, any_version: bool | None = None
) -> ClusterSession:
    """Reach a cluster that the ledger says is up. Raises NodeError.

    `some`: as much of it as answers, to look at what it has or to end it, which agents of any version allow.
    `any_version`: these, where all nodes are needed.
    """
    any_version = some if any_version is None else any_version

    def contact() -> ClusterSession:
        return contact_cluster(row, nodes_of(ctx, row), some=some, any_version=any_version, progress=ctx.progress)

    with ctx.progress.during(f"reaching {row.name}", whose=Whose.NETWORK):
        try:
            return contact()
        except ConnectionLost as error:
            restored = restore_agents(ctx, dict(enumerate(nodes_of(ctx, row))), error)
            if not restored and not readmit_this_computer(ctx, row, ctx.ledger.resources(row.id)):
                raise (error if some else explain_connection_loss(ctx, row, error)) from error.__cause__
        return contact()


def is_agent_removed(machine: Resource, error: NodeError) -> bool:
    """Whether somebody has removed the file of a node's agent, which this gpuops can put back."""
    return bootstrap.NO_AGENT_FILE in error.message and bootstrap.is_own_agent(str(machine.data.get("artefact", "")))


def restore_agents(ctx: Context, nodes: Mapping[int, Resource], error: NodeError) -> bool:
    """Put back the file of nodes' agents, where somebody's removal of it is what `error` tells. Returns whether one was
    put back. `nodes`: their machines, by number."""
    removed = {index: machine for index, machine in nodes.items() if is_agent_removed(machine, error)}

    def restore(index: int) -> bool:
        machine = removed[index]
        try:
            agent, _ = bootstrap.build_agent(ctx.home / "cache")
            with closing(connect(machine, index)) as connection:
                bootstrap.install_agent(
                    connection, str(machine.data["root"]), agent, str(machine.data.get("python", ""))
                )
        except (NodeError, OSError):
            return False  # the caller reports that the agent is not there
        return True

    return any(on_each(restore, list(removed)))


def explain_connection_loss(ctx: Context, row: ClusterRow, error: ConnectionLost) -> ConnectionLost:
    """The error to show: that rented machines have ended, if their provider says so; else the given one."""
    gone = [index for index, machine in enumerate(nodes_of(ctx, row)) if rented_machine_ended(ctx, row, machine)]
    if not gone:
        return error
    names = " and ".join(f"node{index}" for index in gone)
    return ConnectionLost(
        f"{names} of {row.name} {'has' if len(gone) == 1 else 'have'} ended: gpuops status says why",
        f"gpuops down {row.name} brings home what there is; then bring up another",
    )


def readmit_this_computer(ctx: Context, row: ClusterRow, resources: Sequence[Resource]) -> bool:
    """Admit this computer's new address where the provider's firewall admits only one. Whether that was needed."""
    try:
        if not ctx.provisioner_of(row).admit(resources):
            return False
    except GpuopsError:
        return False  # the caller reports that the node does not answer
    ctx.out.say(f"note: this computer's address has changed: {row.name} lets it in now")
    return True


def _open_client(paths: NodePaths, machine: Resource, index: int) -> AgentClient:
    """A conversation with one node, on a connection of its own. Raises ConnectionLost, NodeRefused."""
    connection = connect(machine, index)
    try:
        try:
            return AgentClient(connection, paths)
        except NodeRefused as refusal:
            if refusal.kind != RefusalKind.NO_AGENT or not machine.data.get("revives"):
                raise
            bootstrap.revive(connection, paths.python, paths.agent, paths.node)  # the machine was restarted
            return AgentClient(connection, paths)
    except BaseException:
        connection.close()
        raise


def _with_cluster_hint(row: ClusterRow, machine: Resource, error: NodeError) -> NodeError:
    """Add the command that makes an end of a node, which does not know its cluster's name."""
    if isinstance(error, NodeRefused) and error.kind in (*ENDED_KINDS, RefusalKind.NO_AGENT):
        what = "what it left comes home with" if error.kind == RefusalKind.ENDED else "what is left of it ends with"
        hint = f"{what}: gpuops down {row.name}; then bring up another"
        return NodeRefused(error.message, hint, error.kind, error.data)
    if not isinstance(error, NodeRefused):  # nobody answers, or not the host that it was
        error.hint = suggest_giving_up(row, machine, error.hint)
    return error


def suggest_giving_up(row: ClusterRow, machine: Resource, hint: str) -> str:
    """A hint for a machine that is out of reach, with the end of its cluster where it is a host of the user's own: such
    a host may never come back, and costs nothing."""
    if machine.bills or machine.data.get("connection") != "ssh" or "gpuops down" in hint:
        return hint
    return "; ".join(filter(None, [hint, f"gone for good? gpuops down {row.name} --force"]))


def left_session(row: ClusterRow, machines: Sequence[Resource], error: NodeError) -> ClusterSession:
    """A session with a cluster none of whose nodes lives: what one has left in a batch system's home is read as from
    its agent; every request to another raises `error`."""

    def open_left(index: int) -> AgentClient:
        machine = machines[index]
        try:
            if not machine.data.get("inside_modes"):
                raise error
            return _open_client(node_paths(row.name, machine, index), machine, index)
        except NodeError:
            return UnreachableAgent(f"node{index}", node_paths(row.name, machine, index), error)

    nodes = on_each(open_left, range(len(machines)))
    return ClusterSession(row, list(machines), [*nodes], [None for _ in nodes], [0.0 for _ in nodes])


def open_programs(row: ClusterRow, machine: Resource, index: int) -> Programs:
    """The agent's bulk programs on one node, whether its agent lives or not. Close its `connection` at the end."""
    return Programs(connect(machine, index), node_paths(row.name, machine, index))


def node_paths(cluster: str, machine: Resource, index: int) -> NodePaths:
    """Where the agent of one node lies. Raises NodeError where the provisioner left out how the machine is reached."""
    return NodePaths(machine, cluster, index, str(machine.data.get("artefact", "")))


def _read_hello(cluster: str, client: AgentClient, *, any_version: bool = False) -> tuple[NodeHello | None, float]:
    """What a node says of itself, and the seconds to add to its clock to get ours.

    The clock is read by `ping`, since `hello` waits for the GPUs' driver. An agent of another version says nothing that
    can be relied on; without `any_version`, NodeRefused (`protocol`) is raised for it. Raises MalformedAnswer.
    """
    greeting: BackgroundTask[NodeHello | OtherHello] = BackgroundTask(lambda: client.call("hello"))  # beside the ping
    pong, moment = _ping(client)
    answer = greeting.result()
    if answer.protocol != PROTOCOL and any_version:
        return None, 0.0 if pong.time is None else moment - pong.time
    if answer.protocol != PROTOCOL:
        raise NodeRefused(
            f"{client.label} was started by another version of gpuops", f"gpuops down {cluster}", "protocol"
        )
    hello = cast("NodeHello", answer)
    its_time = pong.time if pong.time is not None else hello.time
    if its_time is None:
        raise MalformedAnswer(client.label, "it does not say what time it is")
    return hello, moment - its_time


def measure_skew(client: AgentClient) -> float | None:
    """The seconds to add to a node's clock to get ours; None for an agent that does not say its time. Raises
    NodeError."""
    pong, moment = _ping(client)
    return None if pong.time is None else moment - pong.time


def _ping(client: AgentClient) -> tuple[Pong, float]:
    """The fastest of some answers to `ping`, and the middle of its round trip by our clock (UTC seconds). The middle of
    a slow round trip may be seconds off."""
    pongs: list[tuple[float, float, Pong]] = []
    while len(pongs) < CLOCK_ATTEMPTS:
        before, began = time.time(), time.monotonic()
        pong = client.call("ping")
        pongs.append((time.monotonic() - began, (before + time.time()) / 2, pong))
        if pongs[-1][0] < PROMPT_ANSWER_S:
            break
    _, moment, pong = min(pongs, key=lambda timed: timed[0])
    return pong, moment


def machines_of(ctx: Context, row: ClusterRow) -> list[Resource]:
    """The cluster's machines as the ledger knows them, in node order."""
    return sort_by_node([machine for machine in ctx.ledger.resources(row.id) if machine.is_machine])


def nodes_of(ctx: Context, row: ClusterRow) -> list[Resource]:
    """The machine of each of the cluster's nodes, as the ledger knows them; virtual ones are among them."""
    return with_virtual(machines_of(ctx, row))


def rented_machine_ended(ctx: Context, row: ClusterRow, machine: Resource) -> bool:
    """Whether a machine is rented and has ended, so that nothing can come from it. A provider that does not answer
    says nothing of it."""
    try:
        provider = ctx.provisioner_of(row)
        return is_rented(provider) and provider.describe(machine).status.has_ended
    except GpuopsError:
        return False


def send_lease(session: ClusterSession, lease: Lease, now: float) -> None:
    """Send the lease to every watchdog, as the time left, since clocks differ.

    A virtual node has no idle end of its own: it ends with its machine's own node.
    """
    ends_in = max(0.0, lease.end - now) if lease.end is not None else None

    def tell(index: int, client: AgentClient) -> None:
        virtual = is_virtual(session.machines[index])
        if not (virtual and isinstance(client, UnreachableAgent)):
            client.call("lease", ends_in=ends_in, idle_s=None if virtual else lease.idle_s)

    session.each(tell)


def write_ssh_names(ctx: Context, row: ClusterRow, machines: Sequence[Resource]) -> None:
    """Write the names under which plain `ssh`, rsync and editors reach nodes that have an sshd."""
    targets = [machine.data["target"] for machine in machines if machine.data.get("connection") == "ssh"]
    if targets and len(targets) == len(machines):
        from gpuops.transport import ssh

        ssh.write_config(ctx.home / "ssh", row.name, [ssh.Target.from_document(target) for target in targets])


def sort_by_node(resources: Sequence[Resource]) -> list[Resource]:
    """Sort by the number at the end of the name: machines in node order."""
    return sorted(resources, key=lambda resource: resource.name.rpartition("-")[2].zfill(6))
