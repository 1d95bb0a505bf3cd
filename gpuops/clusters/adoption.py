"""Adopting a live cluster that the ledger has lost: its rows are rebuilt from provider lists and files on its nodes.

A node's folder holds every run's spec and, once it has ended, its result (docs/protocol.md); its watchdog holds the
lease. They are read by programs, so that a node whose agent has ended is taken back too, and its results come home.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpuops.clusters import virtual_nodes
from gpuops.clusters.run_files_on_nodes import LaunchSpec, Traces, find_run_home, read_traces, rebuild_request
from gpuops.core.context import Context
from gpuops.core.errors import GpuopsError, NodeError, UsageError
from gpuops.core.format import plural
from gpuops.core.models import Lease, Request, Resource
from gpuops.core.parallel import on_each
from gpuops.core.provider import is_rented
from gpuops.ledger.rows import ClusterState, RunFacts, RunState
from gpuops.ledger.store import ClusterRow, RunRow
from gpuops.nodes import host_key_handover
from gpuops.nodes.gpu_shares import fold_virtual, with_virtual
from gpuops.nodes.session import contact_cluster, open_programs, open_session, send_lease, sort_by_node, write_ssh_names
from gpuops.offers import lease_limits
from gpuops.offers.billing_account import find_payer, payer_record
from gpuops.sync.run_folder import RunHome
from gpuops.sync.run_record import RunRecord

if TYPE_CHECKING:
    from gpuops.transport.schemas import NodeHello

RUN_AGE_MAX_S = 366 * 86400.0
"""No run that is taken back began longer ago, in seconds."""


@dataclass(frozen=True)
class LostCluster:
    """A cluster of which the ledger knows nothing: what its provider lists with its tag."""

    provider: str
    name: str
    resources: Sequence[Resource]
    dotenv: bool = False
    """As `Orphan.dotenv`."""

    @property
    def machines(self) -> list[Resource]:
        return sort_by_node([resource for resource in self.resources if resource.is_machine])

    @property
    def say(self) -> str:
        """`lab at ssh (2 nodes)`."""
        count = len(self.machines)
        return f"{self.name} at {self.provider} ({plural(count, 'node')})"


@dataclass(frozen=True)
class Adopted:
    """A cluster that is in the ledger again, and a sentence for whatever a user should know."""

    row: ClusterRow
    nodes: int
    runs: Sequence[RunRow]
    notes: Sequence[str] = ()

    def describe(self, now: float) -> list[str]:
        """Sentences for people. `now`: UTC seconds."""
        count = plural(self.nodes, "node")
        until = lease_limits.describe_lease(self.row.lease, now)
        return [f"{self.row.name} is back: {count} on {self.row.provider}; {until}", *map(_describe_run, self.runs)]


def _describe_run(run: RunRow) -> str:
    if run.state is RunState.HOME:
        return f"{run.name} had ended; its results are in {run.home}"
    return f"{run.name} is followed again; its results come to {run.home}"


@dataclass
class _Node:
    """One node as it is now."""

    hello: NodeHello | None = None
    """None where no agent answers."""
    skew: float = 0.0
    runs: Mapping[str, Traces] = field(default_factory=dict)


def find_live_run(ctx: Context, lost: LostCluster) -> str:
    """The name of the run that is going on there; empty where there is none, or no node answers."""
    try:
        session = contact_cluster(_draft_row(ctx, lost), _restore_host_keys(ctx, lost, lost.machines), some=True)
    except GpuopsError:
        return ""
    session.close()
    return next((hello.busy for hello in session.hellos if hello and hello.busy), "")


def adopt_all(
    ctx: Context, clusters: Sequence[LostCluster], *, complete: bool
) -> tuple[list[Adopted], list[GpuopsError]]:
    """Adopt each cluster on its own. Returns those that are back, and the errors of the others. `complete`: every
    provider has listed all that it has."""
    adopted, errors = [], []
    for lost in clusters:
        try:
            adopted.append(adopt(ctx, lost, complete=complete))
        except GpuopsError as error:
            errors.append(error)
            continue
        for note in adopted[-1].notes:
            ctx.out.say(f"note: {note}")
    return adopted, errors


def adopt(ctx: Context, lost: LostCluster, *, complete: bool = True) -> Adopted:
    """Write a cluster into the ledger, with its runs, as one of this folder; nothing on its nodes changes.

    Raises NodeError where a node or machine is missing, UsageError where a live cluster has its name, and where it is
    in the account of the key in `.env`, which may be that of the project's author.
    """
    if lost.dotenv:
        raise UsageError(
            f"{lost.name} is in the account of the key in .env, behind the key that comes first",
            "where that account is yours, export its key; then: gpuops reap --adopt",
        )
    provisioner = ctx.provisioner(lost.provider)
    if not lost.machines:
        raise NodeError(f"{lost.name} cannot be taken back: no machine of it is left", "end the rest: gpuops reap")
    machines = [provisioner.describe(resource) for resource in lost.machines]
    _refuse_gaps(lost, machines)
    machines = _restore_host_keys(ctx, lost, machines)
    draft = _draft_row(ctx, lost)
    rented = is_rented(provisioner)
    if rented:  # who lists machines knows nothing of what is beside the first node on one
        machines = with_virtual(
            on_each(lambda index: virtual_nodes.find_virtual_nodes(draft, machines[index], index), range(len(machines)))
        )
    nodes = _inspect_nodes(draft, machines)
    lease, is_unclaimed = merge_leases(nodes)
    price = sum(resource.per_hour for resource in machines)
    payer = find_payer(ctx, Request(lost.provider, region=machines[0].region)) if rented else None
    now = ctx.clock.now()
    default_lease = lease_limits.new_lease(lease_limits.LeaseLimits(), rented=rented, per_hour=price, now=now)
    if is_unclaimed or (lease == Lease() and rented):
        lease = default_lease
    elif rented and default_lease.hard_end is not None:  # what a node says does not make it live for ever
        lease = dataclasses.replace(
            lease, hard_end=min(lease.hard_end or default_lease.hard_end, default_lease.hard_end)
        )
    runs, notes = _rebuild_runs(draft, machines, nodes, now, complete=complete)
    rest = [resource for resource in lost.resources if not resource.is_machine]
    machines = fold_virtual(machines)
    row = dataclasses.replace(
        draft, lease=lease, created=min([now, *(run.created for run in runs)]), boot_deadline=now, ready=now,
        offer={"prices": [{"what": "machines", "per_hour": price}], **payer_record(payer)},
        request=dataclasses.asdict(Request(lost.provider, nodes=len(machines))),
    )  # fmt: skip
    known_runs = ctx.ledger.adopt(row, [*machines, *rest], runs)
    (row,) = [cluster for cluster in ctx.ledger.clusters() if cluster.name == lost.name]
    notes += [f"the ledger has another run named {name}; that of {lost.name} is left out" for name in known_runs]
    if ctx.ledger.needs_guard(row):
        ctx.try_ensure_guard(row)  # first: whatever fails now, the cluster is the ledger's again
    write_ssh_names(ctx, row, machines)
    if is_unclaimed:
        notes += _send_lease(ctx, row, lease)
    return Adopted(row, len(machines), [run for run in runs if run.name not in known_runs], notes)


def _restore_host_keys(ctx: Context, lost: LostCluster, machines: Sequence[Resource]) -> list[Resource]:
    """Complete rented machines with their host keys, which no provider lists. Raises NodeError, ConnectionLost."""

    def restore(index: int) -> Resource:
        machine = machines[index]
        return (
            host_key_handover.recover_node(machine, index, lost.name, ctx.owner)
            if host_key_handover.needs_handover(machine)
            else machine
        )

    return on_each(restore, range(len(machines)))


def _draft_row(ctx: Context, lost: LostCluster) -> ClusterRow:
    """The cluster's row as far as its tags tell it."""
    tokens = [token for resource in lost.resources if (token := cluster_token(resource))]
    return ClusterRow(
        id=0, name=lost.name, provider=lost.provider, folder=ctx.folder, state=ClusterState.UP, ephemeral=False,
        token=tokens[0] if tokens else "", request={}, offer={}, boot_deadline=0.0, lease=Lease(), owner_process=None,
        created=0.0, ready=None, ended=None, why="",
    )  # fmt: skip


def cluster_token(resource: Resource) -> str:
    """The token of the cluster that a resource was made for; those of calls and nodes begin with it."""
    return resource.token.partition("-")[0]


def _refuse_gaps(lost: LostCluster, machines: Sequence[Resource]) -> None:
    """Raise NodeError where a node's number is missing: the others would be mistaken for each other."""
    numbers = {machine.name.rpartition("-")[2] for machine in machines}
    for index in range(len(machines)):
        if str(index) not in numbers:
            raise _missing_node_error(lost.name, index)


def _missing_node_error(name: str, index: int) -> NodeError:
    return NodeError(
        f"{name} cannot be taken back: node{index} of it is not found",
        "try again when all its machines answer, or end what is there: gpuops reap",
    )


def _inspect_nodes(draft: ClusterRow, machines: Sequence[Resource]) -> list[_Node]:
    """Every node, as far as it answers. Raises NodeError where a program cannot be started on one."""
    nodes = on_each(lambda index: _Node(runs=_read_node_traces(draft, machines[index], index)), range(len(machines)))
    try:
        session = contact_cluster(draft, machines, some=True)
    except NodeError:
        return nodes  # no agent lives there any more: what it left can be had all the same
    session.close()
    for node, hello, skew in zip(nodes, session.hellos, session.skews, strict=True):
        node.hello, node.skew = hello, skew
    return nodes


def _read_node_traces(draft: ClusterRow, machine: Resource, index: int) -> dict[str, Traces]:
    programs = open_programs(draft, machine, index)
    with closing(programs.connection):
        return read_traces(programs, index)


def merge_leases(nodes: Sequence[_Node]) -> tuple[Lease, bool]:
    """The earliest ends of all watchdogs' leases, by our clock; and whether one still has its boot lease."""
    kept_leases = [(node.hello.lease, node.skew) for node in nodes if node.hello and node.hello.lease]
    ends = [lease.hard_wall + skew for lease, skew in kept_leases if lease.hard_wall is not None]
    idle = [lease.idle_s for lease, _ in kept_leases if lease.idle_s is not None]
    is_unclaimed = any(lease.boot_wall is not None for lease, _ in kept_leases)
    return Lease(min(ends, default=None), min(idle, default=None)), is_unclaimed


def _send_lease(ctx: Context, row: ClusterRow, lease: Lease) -> list[str]:
    """Replace the boot lease, which the dead command did not: the nodes would end with it. Returns notes."""
    try:
        with closing(open_session(ctx, row)) as session:
            send_lease(session, lease, ctx.clock.now())
    except GpuopsError as error:
        return [f"{row.name} cannot be told its lease and ends by itself soon: {error.message}"]
    return []


def _rebuild_runs(
    draft: ClusterRow, machines: Sequence[Resource], nodes: Sequence[_Node], now: float, *, complete: bool
) -> tuple[list[RunRow], list[str]]:
    """The runs that the nodes have files of, oldest first, and notes on those that are left out. Raises NodeError where
    a node of one is missing, which may be on a machine that does not answer now."""
    names = sorted({name for node in nodes for name in node.runs}, key=lambda name: _start_time(nodes, name, now))
    runs, notes = [], []
    for name in names:
        spec = next(node.runs[name].spec for node in nodes if name in node.runs)
        if spec.nodes > len(machines) and not complete:
            raise _missing_node_error(draft.name, len(machines))
        if spec.nodes > len(machines):
            notes.append(f"{name} ran on {spec.nodes} nodes, of which {len(machines)} are left: it is left out")
        else:
            runs.append(_rebuild_run(draft, machines, nodes, name, spec, now))
    return runs, notes


def _start_time(nodes: Sequence[_Node], name: str, now: float) -> float:
    """When a run started, by our clock (UTC seconds). Its cost is counted from it, so that what nodes say is limited to
    the last `RUN_AGE_MAX_S` before `now`."""
    started = min(node.runs[name].began + node.skew for node in nodes if name in node.runs)
    return min(max(started, now - RUN_AGE_MAX_S), now)


def _rebuild_run(
    draft: ClusterRow,
    machines: Sequence[Resource],
    nodes: Sequence[_Node],
    name: str,
    spec: LaunchSpec,
    now: float,
) -> RunRow:
    events = {index: node.runs[name].events for index, node in enumerate(nodes) if name in node.runs}
    home = find_run_home(draft.folder, name, draft.name, events)
    started = _start_time(nodes, name, now)
    record = (RunHome(home).read_record() if _is_over(nodes, name) else None) or RunRecord()
    is_home = record.missing == ""  # its results were all here before the ledger was lost
    verdict = record.verdict if is_home else None
    facts = {
        "provider": draft.provider,
        "cluster": draft.name,
        "per_hour": sum(machine.per_hour for machine in machines),
        "skews": [node.skew for node in nodes],
        "nodes": spec.nodes,
        "world": spec.world,
    }
    return RunRow(
        id=0, name=name, cluster=0, folder=draft.folder, home=home, tree=spec.tree,
        request=rebuild_request(spec).document(), state=RunState.HOME if verdict else RunState.RUNNING,
        facts=RunFacts(facts), verdict=verdict, owner_process=None, created=started, started=started,
        ended=record.ended if verdict else None,
    )  # fmt: skip


def _is_over(nodes: Sequence[_Node], name: str) -> bool:
    return all(node.runs[name].result for node in nodes if name in node.runs)


def adoption_document(adopted: Adopted) -> dict[str, Any]:
    """For `--json`."""
    return {
        "name": adopted.row.name,
        "provider": adopted.row.provider,
        "folder": str(adopted.row.folder),
        "nodes": adopted.nodes,
        "hard_end": adopted.row.lease.end,
        "idle_s": adopted.row.lease.idle_s,
        "runs": [{"run": run.name, "state": run.state, "home": str(run.home)} for run in adopted.runs],
    }
