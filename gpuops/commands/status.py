"""`gpuops status`: live clusters by the ledger, or resources by the providers (`--cloud`): reports and tables."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from gpuops.core.context import Context
from gpuops.core.errors import GpuopsError, LocalDisk
from gpuops.core.format import money, plural, span, table
from gpuops.core.models import COSTLESS, Resource, ResourceState
from gpuops.core.parallel import on_each
from gpuops.core.timings import Whose
from gpuops.guard import guard_heartbeat
from gpuops.guard.schedule import NOTICE_FAILURES
from gpuops.guard.start import LOG
from gpuops.ledger.rows import ClusterState, RunState
from gpuops.ledger.store import ClusterRow, RunRow
from gpuops.nodes.gpu_shares import host_index, with_virtual
from gpuops.offers.lease_limits import describe_lease, money_spent
from gpuops.runs.logs.home_tail import last_output_time
from gpuops.sync.run_folder import REPORT

if TYPE_CHECKING:
    from gpuops.clusters.orphans import UncheckedProvider

NARROW_DROPS = ("$/H", "PROVIDER", "AGE")
"""Columns that a narrow terminal leaves out, in this order; names are typed again, so they are never cut."""
NARROW_DROPS_CLOUD = ("$/H", "KIND", "PROVIDER", "STATE")
"""The same for `--cloud`."""
QUEUED = "queued"
"""What `--cloud` says of a resource that waits at its provider for its turn."""
NODE_STATE_NOTES = {
    ResourceState.UNKNOWN: "does not answer",
    ResourceState.ENDED: "has ended",
    ResourceState.STARTING: "is starting",
    ResourceState.LEAVING: "shuts down",
}
"""What is said of a node that is not running, by the state of its machine."""


NOT_IN_LEDGER = "not in the ledger: `gpuops reap --adopt` takes it back, `gpuops reap` ends it"


class ShownState(StrEnum):
    """State of a cluster: the ledger's, corrected by the states of its machines."""

    CREATING = "creating"
    UP = "up"
    PARTLY_UP = "partly up"
    OUT_OF_REACH = "out of reach"
    """The provider describes none of its machines."""
    ENDED = "ended"
    """Every machine has ended; the ledger does not know that yet."""
    ENDING = "ending"
    GONE = "gone"


@dataclass(frozen=True)
class LiveRun:
    """A run that is being prepared or is running."""

    run: str
    state: RunState
    """STARTING or RUNNING."""
    ranks: int | None
    """None before they are counted, and for a run without torchrun."""
    for_s: float
    silent_s: float | None
    """Seconds since its last byte was downloaded; None where there was none."""


@dataclass(frozen=True)
class ClusterReport:
    """One live cluster. `dataclasses.asdict` of it is the document that `--json` prints."""

    name: str
    provider: str
    state: ShownState
    nodes: list[ResourceState]
    """State of the machine of each node; UNKNOWN where its provider does not answer."""
    virtual: int
    """How many of the nodes are virtual."""
    why_ended: dict[str, str]
    """Why a node has ended, by its name."""
    urls: dict[str, list[str]]
    """Addresses that a node's open ports are shown at, by its name."""
    run: str | None
    folder: str
    created: float
    """UTC seconds."""
    age_s: float
    ephemeral: bool
    """Whether it ends with its run."""
    per_hour: float
    """Dollars; 0 where nothing is billed."""
    spent: float
    """Dollars, by our own count."""
    hard_end: float | None
    """UTC seconds."""
    idle_s: float | None
    """Seconds without use after which it ends."""
    lease: str
    doing: LiveRun | None
    beside: Sequence[LiveRun] = ()
    """The other live runs, of an array."""
    report: str | None = None
    """The page about its latest run that has ended."""
    phase: str = ""
    """What its machines are at until they are ready: `queued: Priority, starts about 14:20`."""


def describe_clusters(ctx: Context) -> list[ClusterReport]:
    """The live clusters: the ledger's facts, and the state of their machines by their provider."""
    with ctx.progress.during("asking the nodes how they are", whose=Whose.NODE):
        return [_describe_cluster(ctx, row) for row in ctx.ledger.clusters()]


def _describe_cluster(ctx: Context, row: ClusterRow) -> ClusterReport:
    machines = [machine for machine in ctx.ledger.resources(row.id) if machine.is_machine]
    described = _describe_machines(ctx, row, machines)
    states = [machine.state if machine else ResourceState.UNKNOWN for machine in described]
    nodes = [states[host_index(node, index)] for index, node in enumerate(with_virtual(machines))] if machines else []
    runs = [run for run in ctx.ledger.runs(cluster=row.id) if run.state in (RunState.STARTING, RunState.RUNNING)]
    now = ctx.clock.now()
    per_hour = sum(machine.per_hour for machine in machines if machine.bills)
    return ClusterReport(
        name=row.name,
        provider=row.provider,
        state=_cluster_state(row.state, nodes),
        nodes=nodes,
        virtual=len(nodes) - len(machines),
        why_ended={f"node{i}": why for i, machine in enumerate(described) if machine and (why := _why_ended(machine))},
        urls={
            f"node{index}": list(urls)
            for index, machine in enumerate(machines)
            if (urls := machine.data.get("urls")) and states[index] not in COSTLESS
        },
        run=runs[-1].name if runs else None,
        folder=str(row.folder),
        created=row.created,
        age_s=now - row.created,
        ephemeral=row.ephemeral,
        per_hour=per_hour,
        spent=row.spent_before + money_spent(per_hour, row.created, now),
        hard_end=row.lease.end,
        idle_s=row.lease.idle_s,
        lease=describe_lease(row.lease, now, ephemeral=row.ephemeral),
        doing=_describe_run(runs[-1], now) if runs else None,
        beside=[_describe_run(run, now) for run in runs[:-1]],
        report=None if runs else _latest_report(ctx, row),
        phase=next((phase for machine in described if machine and (phase := _phase(machine))), ""),
    )


def _latest_report(ctx: Context, row: ClusterRow) -> str | None:
    ended = [run.home / REPORT for run in ctx.ledger.runs(cluster=row.id) if run.state is RunState.HOME]
    return str(ended[-1]) if ended and ended[-1].is_file() else None


def _describe_run(run: RunRow, now: float) -> LiveRun:
    latest = last_output_time(run.home)
    return LiveRun(
        run=run.name,
        state=run.state,
        # Not `request_of`: one damaged row must not hide what else is up.
        ranks=run.facts.get("world") if run.request.get("kind") == "torchrun" else None,
        for_s=now - (run.started or run.created),
        silent_s=None if latest is None else max(0.0, now - latest),
    )


def _why_ended(machine: Resource) -> str:
    return machine.why_ended if machine.status.has_ended else ""


def _phase(machine: Resource) -> str:
    return str(machine.data.get("phase") or "") if machine.state == ResourceState.STARTING else ""


def _describe_machines(ctx: Context, row: ClusterRow, machines: Sequence[Resource]) -> list[Resource | None]:
    """Each machine as its provider describes it; None where the provider does not answer."""
    try:
        provisioner = ctx.provisioner_of(row)
    except GpuopsError:  # the package that brings it is no longer installed
        return [None] * len(machines)

    def describe(index: int) -> Resource | None:
        node = f"node{index} of {row.name}"
        ctx.progress.waits("no answer yet", node)
        try:
            return provisioner.describe(machines[index])
        except GpuopsError:
            return None
        finally:
            ctx.progress.waits("", node)

    return on_each(describe, range(len(machines)))


def _cluster_state(recorded: ClusterState, nodes: Sequence[ResourceState]) -> ShownState:
    """The state by the ledger, corrected by the states of the nodes' machines."""
    if recorded is not ClusterState.UP or not nodes:
        return ShownState(recorded)
    if all(state in COSTLESS for state in nodes):
        return ShownState.ENDED
    if all(state == ResourceState.UNKNOWN for state in nodes):
        return ShownState.OUT_OF_REACH
    return ShownState.UP if all(state == ResourceState.RUNNING for state in nodes) else ShownState.PARTLY_UP


def describe_missing_guards(ctx: Context) -> Iterator[tuple[str, str]]:
    """Sentence and hint for each cluster whose guard does not work, although one was started, or works in vain."""
    for row in ctx.ledger.list_guarded():
        last = guard_heartbeat.read(ctx.home, row.id)
        if last is None or not guard_heartbeat.works(ctx.home, row, time.monotonic()):
            try:
                ctx.ensure_guard(row)
            except LocalDisk as error:
                yield f"no guard works for {row.name}: {error.message}", error.hint
        elif last.failures >= NOTICE_FAILURES:
            say = f"the guard of {row.name} works in vain: its last {last.failures} attempts failed"
            yield say, f"{ctx.home / LOG} says why; `gpuops down {row.name}` ends it"


def cluster_lines(clusters: Sequence[ClusterReport], width: int | None = None) -> list[str]:
    """One table, and below it the live runs and the nodes that are not running; one sentence where nothing is up."""
    if not clusters:
        return ["nothing is up"]
    rows = [_table_row(cluster) for cluster in clusters]
    notes = [f"{cluster.name}: {note}" for cluster in clusters for note in _format_notes(cluster)]
    headings = [heading for heading in rows[0] if heading != "$/H" or any(cluster.per_hour for cluster in clusters)]
    cells = [[row[heading] for heading in headings] for row in rows]
    return [*table([headings, *cells], width, spare=NARROW_DROPS), *notes]


def _table_row(cluster: ClusterReport) -> dict[str, str]:
    """One cluster's cells, by their headings."""
    return {
        "NAME": cluster.name,
        "PROVIDER": cluster.provider,
        "NODES": str(len(cluster.nodes)),
        "STATE": cluster.state,
        "AGE": span(cluster.age_s),
        "$/H": money(cluster.per_hour) if cluster.per_hour else "-",
        "COST": money(cluster.spent) if cluster.per_hour else "free",
        "ENDS": _format_end(cluster),
    }


def _format_end(cluster: ClusterReport) -> str:
    """The next certain end, in a few words; `overdue by 1:10 min` where it has passed and something is left."""
    if cluster.hard_end is not None:
        left_s = cluster.hard_end - cluster.created - cluster.age_s
        is_overdue = left_s < 0 and cluster.state is not ShownState.ENDED
        return f"overdue by {span(-left_s)}" if is_overdue else f"in {span(left_s)}"
    if cluster.idle_s:
        return f"{span(cluster.idle_s)} idle"
    return "with its run" if cluster.ephemeral else "by hand"


def _format_notes(cluster: ClusterReport) -> Iterator[str]:
    """`digits-3 runs for 12 min on 4 ranks, last line 3 s ago`; `node1 does not answer`."""
    if cluster.phase:
        yield cluster.phase
    yield from map(_format_run, cluster.beside)
    if cluster.doing:
        yield _format_run(cluster.doing)
    if cluster.report:
        yield f"report of its latest run: {cluster.report}"
    if cluster.hard_end is not None and cluster.idle_s:
        yield f"ends after {span(cluster.idle_s)} without use, too"
    if cluster.virtual:
        count = len(cluster.nodes)
        yield f"{count} nodes on {plural(count - cluster.virtual, 'machine')}, {cluster.virtual} of them virtual"
    if cluster.state is ShownState.PARTLY_UP:
        nodes = enumerate(cluster.nodes)
        yield ", ".join(
            f"node{index} {NODE_STATE_NOTES.get(state, state)}"
            for index, state in nodes
            if state != ResourceState.RUNNING
        )
    for node, urls in cluster.urls.items():
        yield from (f"{node} shows {url}" for url in urls)
    for node, why in cluster.why_ended.items():
        yield f"{node} is gone: {why}"


def _format_run(live: LiveRun) -> str:
    if live.state is RunState.STARTING:
        return f"{live.run} is being prepared for {span(live.for_s)}"
    ranks = f" on {plural(live.ranks, 'rank')}" if live.ranks else ""
    last = "no line yet" if live.silent_s is None else f"last line {span(live.silent_s)} ago"
    return f"{live.run} runs for {span(live.for_s)}{ranks}, {last}"


@dataclass(frozen=True)
class CloudResource:
    """A resource that a provider lists with our tag. `dataclasses.asdict` of it is what `--json` prints."""

    provider: str
    mark: str
    """Its tag."""
    id: str
    kind: str
    state: str
    """A ResourceState, or QUEUED."""
    per_hour: float
    bills: bool
    known: bool
    """Whether the ledger knows it."""
    owner: str
    """The 8 hex digits of the home that made it."""


@dataclass(frozen=True)
class CloudReport:
    resources: list[CloudResource]
    unchecked: list[UncheckedProvider]
    """Providers that could not be asked."""
    idle: list[UncheckedProvider]
    """Providers that were not asked, being neither set up nor ever used."""
    remarks: Sequence[str] = ()
    """Sentences about what this ledger does not know."""

    def document(self) -> dict[str, object]:
        return {
            "resources": [dataclasses.asdict(resource) for resource in self.resources],
            "unasked": [provider.say for provider in self.unchecked],
            "not_set_up": [str(provider) for provider in self.idle],
        }


def list_cloud(ctx: Context) -> CloudReport:
    """Ask the providers for resources with our tag, and for those of other owners. Works without a ledger."""
    from gpuops.clusters.orphans import find_resources, select_orphans
    from gpuops.clusters.other_owners import describe_other_owners, find_other_owners

    idle: list[UncheckedProvider] = []
    listed, unchecked = find_resources(ctx, idle)
    others = find_other_owners(ctx)
    orphans = [*select_orphans(ctx, listed), *others]
    resources = [
        CloudResource(
            provider=entry.provider,
            mark=entry.resource.name,
            id=entry.resource.id,
            kind=entry.resource.kind,
            state=QUEUED if entry.resource.data.get("queued") else entry.resource.state,
            per_hour=entry.resource.per_hour,
            bills=entry.resource.bills,
            known=entry not in orphans,
            owner=entry.owner,
        )
        for entry in [*listed, *others]
    ]
    own = [resource for resource in resources if resource.owner == ctx.owner]
    lines = [NOT_IN_LEDGER] if not all(resource.known for resource in own) else []
    return CloudReport(resources, unchecked, idle, [*lines, *describe_other_owners(others)])


def cloud_lines(report: CloudReport, width: int | None = None) -> list[str]:
    """A table of the resources; where there is none, a sentence that tells which providers were asked."""
    if not report.resources:
        who = "no provider that is set up here" if report.idle else "no provider"
        return [*([] if report.unchecked else [f"{who} lists anything of ours"]), *map(str, report.idle)]
    rows = [["MARK", "PROVIDER", "KIND", "STATE", "$/H", "IN THE LEDGER"]]
    for resource in report.resources:
        price = money(resource.per_hour) if resource.bills else "free"
        known = "yes" if resource.known else "no"
        rows.append([resource.mark, resource.provider, resource.kind, resource.state, price, known])
    return [*table(rows, width, spare=NARROW_DROPS_CLOUD), *report.remarks]
