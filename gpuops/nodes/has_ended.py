"""Whether nodes and their machines have ended: by their provider, by their host, or by their own word."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from gpuops.core.context import Context
from gpuops.core.errors import GpuopsError, NodeError, NodeRefused, RefusalKind
from gpuops.core.models import Resource
from gpuops.core.parallel import on_each
from gpuops.core.provider import Provisioner, is_rented
from gpuops.ledger.store import ClusterRow
from gpuops.nodes.gpu_shares import is_virtual
from gpuops.nodes.session import ClusterSession, contact_node, machines_of, means_ended, open_programs
from gpuops.transport.rpc import AgentClient


def node_has_ended(provider: Provisioner, row: ClusterRow, machine: Resource, index: int) -> bool:
    """Whether a node's machine has ended, or a virtual node has while its machine goes on. A node whose files can be
    read all the same has not: it still answers what is asked of a run.

    Raises ProviderError, and NodeError where that of a virtual node cannot be known.
    """
    described = provider.describe(machine)
    if described.data.get("left"):
        return False
    return described.status.has_ended or (is_virtual(machine) and _agent_has_ended(row, machine, index))


def converse_with_what_is_left(session: ClusterSession, provider: Provisioner, nodes: Sequence[int]) -> list[int]:
    """Read what ended nodes have left in a batch system's home, and ask their machines no longer. Returns which nodes
    these are. Raises ProviderError, NodeError."""
    described = {index: provider.describe(session.machines[index]) for index in nodes}
    left = [index for index, machine in described.items() if machine.data.get("left")]
    for index in left:
        session.reconnect(index, described[index])
    return left


def _agent_has_ended(row: ClusterRow, machine: Resource, index: int) -> bool:
    try:
        client, *_ = contact_node(row, machine, index)
    except NodeRefused as refusal:
        return means_ended(refusal)
    client.close()
    client.connection.close()
    return False


def all_machines_ended(ctx: Context, row: ClusterRow) -> bool:
    """Whether a cluster's provider says that none of its machines runs any more. Raises ProviderError."""
    provider = ctx.provisioner_of(row)
    machines = machines_of(ctx, row)
    return bool(machines) and all(provider.describe(machine).status.has_ended for machine in machines)


def host_node_ended(ctx: Context, row: ClusterRow, machine: Resource) -> bool:
    """Whether a node on a host of the user's own is there no more, by the host's own answer."""
    try:
        provider = ctx.provisioner_of(row)
        return not is_rented(provider) and provider.describe(machine).status.has_ended
    except GpuopsError:
        return False


def watchdogs_ended(ctx: Context, row: ClusterRow) -> bool:
    """Whether every node says that its watchdog has ended it; its machine may go on, and cost money."""
    machines = machines_of(ctx, row)

    def has_ended(index: int) -> bool:
        try:
            programs = open_programs(row, machines[index], index)
            with closing(programs.connection):
                AgentClient(programs.connection, programs.paths).close()
        except NodeError as error:
            return isinstance(error, NodeRefused) and error.kind == RefusalKind.ENDED
        return False

    return bool(machines) and all(on_each(has_ended, range(len(machines))))
