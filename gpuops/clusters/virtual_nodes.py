"""Nodes beyond a cluster's machines, made when a run asks for more than there are: `train --nodes 2` on one machine.

Each is made by `init`, as every node is, and asking again makes no second one. It has the cluster's hard end and no
idle one: it goes with its machine's own node (docs/protocol.md), and by `down` with the machine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from gpuops.core.context import Context
from gpuops.core.errors import NodeError, UsageError
from gpuops.core.format import plural
from gpuops.core.models import Resource
from gpuops.core.parallel import on_each
from gpuops.core.run_models import RunRequest
from gpuops.core.timings import Whose
from gpuops.ledger.rows import RunState
from gpuops.ledger.store import ClusterRow
from gpuops.nodes import bootstrap, gpu_shares
from gpuops.nodes.gpu_shares import MOST_NODES
from gpuops.nodes.session import ClusterSession, contact_node, machines_of, node_paths
from gpuops.sync.pull_edits import save_node_edits
from gpuops.transport.connect import connect
from gpuops.transport.rpc import UnreachableAgent


def add_virtual_nodes(ctx: Context, session: ClusterSession, request: RunRequest) -> None:
    """See to it that a cluster that answers has the nodes that a run asks for, and say where they are.

    Raises UsageError where the machines have not what is asked of them, NodeError.
    """
    machines = [machine for machine in session.machines if not gpu_shares.is_virtual(machine)]
    if request.nodes <= len(machines):
        return
    if not all(map(gpu_shares.bears_virtual, machines)):
        raise UsageError(
            f"{session.row.name} has {plural(len(machines), 'machine')}, each of which is one node of its job, and "
            f"{request.nodes} nodes were asked for",
            f"leave out --nodes, or bring up a larger one: gpuops up {session.row.provider} --nodes {request.nodes}",
        )
    wanted = gpu_shares.with_virtual(machines, request.nodes)[: request.nodes]
    given, notes = gpu_shares.share_gpus(wanted, session.gpus(), request.gpus)
    ctx.out.say(gpu_shares.describe_shares(given, len(machines)))
    for note in notes:
        ctx.out.say(f"note: {note}")
    missing = [index for index in range(len(machines), request.nodes) if _is_missing(session, index)]
    if missing:
        names = ", ".join(f"node{index}" for index in missing)
        with ctx.progress.during(f"making {names}", whose=Whose.NODE):
            _create_nodes(ctx, session, wanted, missing)


def _is_missing(session: ClusterSession, index: int) -> bool:
    return index >= len(session.clients) or isinstance(session.clients[index], UnreachableAgent)


def _create_nodes(ctx: Context, session: ClusterSession, wanted: list[Resource], missing: list[int]) -> None:
    """The ledger knows of them when they are there: one that it does not know of is found by its mark, or goes with
    its machine."""
    for index in missing:
        if index < len(session.clients):  # it was there, and is over
            _remove_ended_node(ctx, session.row, wanted[index], index)
    on_each(lambda index: _init_node(ctx, session.row, wanted[index], index), missing)
    for first, machine in enumerate(machines_of(ctx, session.row)):
        here = [index for index in missing if gpu_shares.host_index(wanted[index], index) == first]
        ctx.ledger.add_virtual_nodes(session.row.id, machine, here)
    met = on_each(lambda index: contact_node(session.row, wanted[index], index), missing)
    for index, node in zip(missing, met, strict=True):
        session.join(index, wanted[index], node)


def _init_node(ctx: Context, row: ClusterRow, machine: Resource, index: int) -> None:
    paths = node_paths(row.name, machine, index)
    with closing(connect(machine, index)) as connection:
        bootstrap.init(connection, paths.python, paths.agent, paths.node, init_document(ctx, row, machine, index))


def init_document(ctx: Context, row: ClusterRow, machine: Resource, index: int) -> Mapping[str, Any]:
    """What `init` reads. The mark and the token are those by which a provider's own list knows it as this cluster's."""
    end = row.lease.end
    return {
        "node": {
            "cluster": row.name,
            "owner": ctx.owner,
            "index": index,
            "mark": machine.name,
            "token": f"{row.token}-v{index}",
            "end": None,
            "gpus": None,
            "cores_share": 1.0,
            "artefact": machine.data["artefact"],
            "host": machine.region,
            "on": gpu_shares.host_index(machine, index),
        },
        "lease": {"ends_in": None if end is None else max(0.0, end - ctx.clock.now()), "idle_s": None},
    }


def find_virtual_nodes(row: ClusterRow, machine: Resource, index: int) -> Resource:
    """A machine as the ledger should know it, told by the folders there. Raises NodeRefused, ConnectionLost."""
    paths = node_paths(row.name, machine, index)
    with closing(connect(machine, index)) as connection:
        listing = bootstrap.call_agent_mode(
            connection, [paths.python, "-I", paths.agent, "nodes", "--root", paths.root]
        )
    ours = [one for one in listing.nodes or () if (one.get("cluster"), one.get("on")) == (row.name, index)]
    made = [one["index"] for one in ours if one.get("index") in range(1, MOST_NODES)]
    return dataclasses.replace(machine, data={**machine.data, "virtual": made}) if made else machine


def _remove_ended_node(ctx: Context, row: ClusterRow, machine: Resource, index: int) -> None:
    """Remove what is left of a node that has ended while its machine goes on; what lies there comes home first.

    Raises NodeError where a run's results may lie there, or what is there cannot be had.
    """
    waiting = [run.name for run in ctx.ledger.runs(cluster=row.id) if run.state is not RunState.HOME]
    if waiting:
        raise NodeError(
            f"node{index} of {row.name} has ended, and {waiting[-1]} is not all home yet",
            "wait until it is: gpuops status; a run with fewer --nodes does not need that node",
        )
    if said := save_node_edits(ctx, row, machine, index, set(), ctx.progress):
        ctx.out.say(said)
    paths = node_paths(row.name, machine, index)
    with closing(connect(machine, index)) as connection:
        bootstrap.call_agent_mode(connection, paths.argv("end", "--remove"))
