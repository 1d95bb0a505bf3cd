"""Where the results of an ended run come from: its agents, the disks of nodes whose agents ended, its bucket.

`Agents`, `Disks` and `EarlierReports` are the sources of `runs.finish.finish`; `fetch_bucket` adds what absent nodes
kept in a bucket. Every source gives `Evidence`; nothing is judged here. Nodes come before the bucket: they cost money
and may vanish, the bucket stays.
"""

from __future__ import annotations

import glob
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuops.agent.run_documents import Outcome
from gpuops.agent.workers import WORKERS
from gpuops.core.context import Context
from gpuops.core.errors import ConnectionLost, GpuopsError, Interrupted, MalformedAnswer, NodeError
from gpuops.core.format import amount
from gpuops.core.models import MachineEnd, Resource
from gpuops.core.parallel import on_each
from gpuops.core.polling import Poller
from gpuops.core.reporting import Progress
from gpuops.core.sink import SinkProgress, SinkStatus
from gpuops.core.timings import Whose
from gpuops.ledger.store import ClusterRow, RunRow
from gpuops.nodes.has_ended import converse_with_what_is_left, node_has_ended
from gpuops.nodes.session import ClusterSession, left_session, measure_skew, nodes_of
from gpuops.runs.launch_spec import request_of, session_of
from gpuops.runs.outcome.node_report import NodeReport, ReasonKind, lost_report, parse_report
from gpuops.runs.outcome.run_outcome import BucketFetch, Evidence, FinalFetch, classify_nodes, join_sentences
from gpuops.runs.results.dead_agents import salvage
from gpuops.runs.results.sink_wait import wait_for_sinks
from gpuops.sync import archive
from gpuops.sync.download import UnreadableFiles, fetch
from gpuops.sync.run_folder import RunHome
from gpuops.sync.run_record import RunRecord
from gpuops.sync.unmatched_files import choose_unasked, describe_unmatched_files, exact_patterns, list_unmatched_files

if TYPE_CHECKING:
    from gpuops.transport.schemas import NodeRunState


POLL_INTERVAL_S = 0.2
VANISHING_TIMEOUT_S = 60.0
"""How long, after a failed fetch, machines that are being preempted are waited for until their provider says that they
have ended: only then what they held is certainly lost, or lies still in a batch system's home."""
VANISHING_POLL_INTERVAL_S = 2.0
RELEASE_TIMEOUT_S = 10.0
"""How long a node may take to hear that its results are home."""
HURRIED_FETCH_S = 10.0
"""How long the last fetch may go on after a second signal."""


@dataclass(frozen=True)
class Agents:
    """The nodes of a run that were followed to their end; `reports` has one for each of them."""

    session: ClusterSession
    reports: Mapping[int, NodeReport]

    def collect(self, ctx: Context, row: RunRow, progress: Progress) -> Evidence:
        """Fetch and verify what is on the nodes, and wait for what they keep elsewhere."""
        ended_at = row.ended or ctx.clock.now()
        session = session_of(self.session, row)
        nodes = classify_nodes(self.reports)
        asked = [index for index, state in nodes.items() if state.gives_files]
        with progress.during(f"looking at what {row.name} made", whose=Whose.NODE):
            fetched, vanished = self._fetch(ctx, session, row, progress, asked)
        asked = [index for index in asked if index not in vanished]
        absentees = [index for index, state in nodes.items() if state.is_absent or index in vanished]
        preempted = any(report.kind == ReasonKind.PREEMPTED for report in self.reports.values())
        return Evidence(
            ended_at,
            self.reports,
            fetched,
            vanished,
            handed=_list_handed_over(session, row, asked, absentees) if absentees or preempted else {},
            skews=_measure_skews(session, asked, self.reports),
            sink_states=wait_for_sinks(ctx, session, row, progress, asked) if request_of(row).sink else {},
        )

    def _fetch(
        self, ctx: Context, session: ClusterSession, row: RunRow, progress: Progress, nodes: Sequence[int]
    ) -> tuple[FinalFetch, list[int]]:
        """Fetch what these nodes have. Returns what came of it, and those that ended meanwhile and took theirs along.
        Machines that are being preempted are waited for."""
        preempted = any(
            report.kind == ReasonKind.PREEMPTED or report.reason.preempted for report in self.reports.values()
        )
        deadline = ctx.clock.monotonic() + (VANISHING_TIMEOUT_S if preempted else 0.0)
        fetched, asked = _run_final_fetch(ctx, session, row, progress, [*nodes]), [*nodes]
        vanished: list[int] = []
        for _ in Poller.every(ctx.clock, VANISHING_POLL_INTERVAL_S, deadline):
            if not fetched.failed:
                break
            gone, moved = _find_ended(ctx, session, asked)
            if gone or moved:
                vanished, asked = vanished + gone, [index for index in asked if index not in gone]
                fetched = _run_final_fetch(ctx, session, row, progress, asked)
            if ctx.signals.hurry:
                break
        return fetched, vanished

    def release(self, row: RunRow) -> None:
        release(self.session, row)


@dataclass(frozen=True)
class Disks:
    """The nodes of a run whose agents have ended: their disks may still have its logs and its report.

    `ended`: their provider says that the machines have ended, and `reports` is what is known without them. Otherwise
    `error` says why no agent answers.
    """

    cluster: ClusterRow
    error: NodeError
    ended: bool = False
    reports: Mapping[int, NodeReport] | None = None

    def collect(self, ctx: Context, row: RunRow, progress: Progress) -> Evidence:
        """Raises ConnectionLost where a host of the user's own is out of reach: it costs nothing, and keeps what it
        has; LocalDisk."""
        machines = nodes_of(ctx, self.cluster)
        known = self.reports
        if known is None:
            chosen = [machines[number] for number in request_of(row).nodes_at] or machines
            endings = _describe_endings(ctx, self.cluster, chosen) if self.ended else {}
            known = unreachable_reports(row, self.error, ended=self.ended, endings=endings)
        session = left_session(self.cluster, machines, self.error)
        with closing(session):
            return self._collect(ctx, row, progress, session, known)

    def _collect(
        self, ctx: Context, row: RunRow, progress: Progress, session: ClusterSession, known: Mapping[int, NodeReport]
    ) -> Evidence:
        salvaged, unreachable = salvage(ctx, self.cluster, row)
        if unreachable and ctx.provisioner(self.cluster.provider).capabilities.get("rented") is not True:
            raise next(iter(unreachable.values()))
        return Agents(session, {**known, **salvaged}).collect(ctx, row, progress)

    def release(self, row: RunRow) -> None:
        """No agent is there to be released."""


@dataclass(frozen=True)
class EarlierReports:
    """The nodes of a run that was judged before its bucket could be asked, as they are known since then: the ledger has
    the reports of some, and the others' can only be in the bucket."""

    def collect(self, ctx: Context, row: RunRow, progress: Progress) -> Evidence:  # noqa: ARG002
        documents = row.facts.documents
        record = RunHome(row.home).read_record() or RunRecord()
        reports = {
            index: parse_report(index, documents[index])
            if index in documents
            else lost_report(index, f"node{index} kept nothing", ReasonKind.ENDED, record.machine_end(index))
            for index in range(request_of(row).nodes)
        }
        sink_states = {
            index: SinkProgress.parse(document.get("sink") or {"state": SinkStatus.SAFE.value})
            for index, document in documents.items()
        }
        return Evidence(row.ended or ctx.clock.now(), reports, FinalFetch(), sink_states=sink_states, is_late=True)

    def release(self, row: RunRow) -> None:
        """No agent is there to be released."""


Source = Agents | Disks | EarlierReports


def fetch_now(
    session: ClusterSession, row: RunRow, progress: Progress, *, final: bool, nodes: list[int] | None = None
) -> None:
    """Bring home what the run has made so far; with `final`, all of it, verified."""
    request = request_of(row)
    indices = range(request.nodes) if nodes is None else nodes
    part = session_of(session, row)
    clients = {index: part.clients[index] for index in indices}
    fetch(clients, row.name, row.tree, request.outs, RunHome(row.home), final=final, progress=progress)


def fetch_bucket(ctx: Context, row: RunRow, nodes: Sequence[int], progress: Progress) -> BucketFetch:
    """What absent nodes have kept in a bucket. Raises Interrupted."""
    if not nodes or not archive.is_kept_in_bucket(row):
        return BucketFetch()
    try:
        brought, errors = archive.fetch_archives(ctx, row, nodes, progress)
        return BucketFetch(brought, join_sentences(*dict.fromkeys(error.message for error in errors)), errors)
    except GpuopsError as error:
        return BucketFetch(trouble=error.message, errors=[error])
    except Interrupted as error:
        error.hint = f"gpuops pull {row.name} fetches what is in {row.facts.bucket_place}"
        raise


def release(session: ClusterSession, row: RunRow) -> None:
    """Tell the nodes that the run's results are home. A node that does not hear it holds them until its grace ends."""
    request, part = request_of(row), session_of(session, row)
    if request.hold_s is None:
        return  # nothing is held

    def tell(index: int) -> None:
        with suppress(GpuopsError):
            part.clients[index].call("home", timeout=RELEASE_TIMEOUT_S, run=row.name)

    on_each(tell, range(min(request.nodes, len(part.clients))))


def unreachable_reports(
    row: RunRow, error: NodeError, *, ended: bool, endings: Mapping[int, MachineEnd | None]
) -> dict[int, NodeReport]:
    """Reports for a run none of whose nodes answers. `ended`: their provider says that the machines have;
    `endings`: and how."""
    nonsense = isinstance(error, MalformedAnswer)
    kind = ReasonKind.ENDED if ended else ReasonKind.NONSENSE if nonsense else ReasonKind.UNREACHABLE
    return {
        index: lost_report(index, error.message, kind, endings.get(index)) for index in range(request_of(row).nodes)
    }


def _describe_endings(ctx: Context, row: ClusterRow, machines: Sequence[Resource]) -> dict[int, MachineEnd | None]:
    """What their provider says of how machines ended; empty where it does not answer."""
    with suppress(GpuopsError):
        provider = ctx.provisioner_of(row)
        return {index: provider.describe(machine).end for index, machine in enumerate(machines)}
    return {}


def _find_ended(ctx: Context, session: ClusterSession, nodes: Sequence[int]) -> tuple[list[int], list[int]]:
    """Nodes that have ended: those that took their results along, and those that left them in a batch system's home,
    where they are read from now on. A provider that does not answer says nothing about its machines."""
    provider, machines = ctx.provisioner_of(session.row), dict(enumerate(session.machines))
    asked = [index for index in nodes if index in machines and not machines[index].data.get("left")]
    try:
        gone = [
            index for index in asked if node_has_ended(provider, session.row, machines[index], session.number(index))
        ]
        return gone, converse_with_what_is_left(
            session, provider, [index for index in asked if not machines[index].bills]
        )
    except GpuopsError:
        return [], []


def _run_final_fetch(
    ctx: Context, session: ClusterSession, row: RunRow, progress: Progress, nodes: list[int]
) -> FinalFetch:
    """The final fetch, in a thread, so that signals are heard: the first raises here, a second limits the fetch to
    `HURRIED_FETCH_S`."""
    failures: list[BaseException] = []
    fetched: list[FinalFetch] = []

    def fetch_some(some: list[int]) -> str:
        fetch_now(session, row, progress, final=True, nodes=some)
        return _fetch_unnamed(session, row, progress, some)

    def fetch_again_if_cut(some: list[int]) -> str:
        """What a machine has left elsewhere is there when it has ended, for a new conversation (`inside_modes`)."""
        try:
            return fetch_some(some)
        except ConnectionLost:
            machines = enumerate(session.machines)
            beside = [index for index, machine in machines if index in some and machine.data.get("inside_modes")]
            if not beside:
                raise
            on_each(session.reconnect, beside)
            return fetch_some(some)

    def fetch_all() -> None:
        try:
            fetched.append(_fetch_from_nodes(fetch_again_if_cut, nodes))
        except BaseException as error:
            failures.append(error)

    fetch = WORKERS.start(fetch_all, f"last fetch {row.name}")
    deadline = math.inf
    for attempt in Poller.every(ctx.clock, POLL_INTERVAL_S, wait=fetch.join):
        if not fetch.is_alive():
            break
        if ctx.signals.hurry:
            deadline = min(deadline, attempt.started + HURRIED_FETCH_S)
        if attempt.started > deadline:
            return FinalFetch("the last fetch was cut short")
    for error in failures:
        if not isinstance(error, GpuopsError):
            raise error
        return FinalFetch(error.message, _hint_for(session.row, row, error))
    return fetched[0]


def _hint_for(cluster: ClusterRow, row: RunRow, error: GpuopsError) -> str:
    """What brings home what its node cannot read, or leaves it there; empty for any other error."""
    if not isinstance(error, UnreadableFiles):
        return ""
    index, path = error.files[0]
    node = request_of(row).nodes_at[index] if request_of(row).nodes_at else index
    name = shlex.quote(path)
    leave = shlex.quote(f"!./{glob.escape(path)}")  # this file alone, wherever others of its name lie
    return (
        f"gpuops ssh {cluster.name} --node {node} -- chmod u+r {name}; then: gpuops pull {row.name}; "
        f"or leave it there: gpuops down {cluster.name} --out {leave}"
    )


def _fetch_from_nodes(fetch_some: Callable[[list[int]], str], nodes: list[int]) -> FinalFetch:
    """From all nodes at once; where one answers nonsense, from each alone, so that it affects no other node.
    `fetch_some` returns what stays behind, and raises GpuopsError."""
    try:
        return FinalFetch(left_behind=fetch_some(nodes))
    except MalformedAnswer:
        pass
    left_behind, nonsense = [], []
    for index in nodes:
        try:
            left_behind.append(fetch_some([index]))
        except MalformedAnswer as error:
            nonsense.append(error.message)
    return FinalFetch(nonsense=join_sentences(*nonsense), left_behind=", ".join(filter(None, left_behind)))


def _fetch_unnamed(session: ClusterSession, row: RunRow, progress: Progress, nodes: list[int]) -> str:
    """What the run made and no pattern names comes home too; large files only where they would end with their node.

    Returns what stays behind.
    """
    clients = {index: session.clients[index] for index in nodes}
    unnamed = list_unmatched_files(clients, request_of(row).outs, run=row.name)
    worthy, large = choose_unasked(unnamed)
    if session.row.ephemeral and large:
        size = amount(sum(one.size for one in unnamed))
        progress.say(
            f"bringing home {size} that no --out names: {describe_unmatched_files(large)}; "
            "next time --out '!GLOB' leaves it"
        )
        worthy, large = unnamed, []
    if worthy:
        fetch(clients, row.name, row.tree, exact_patterns(worthy), RunHome(row.home), final=True, progress=progress)
    return describe_unmatched_files(large)


def _list_handed_over(
    session: ClusterSession, row: RunRow, nodes: Sequence[int], absentees: Sequence[int]
) -> dict[int, Mapping[str, int]]:
    """By node: the paths that absent nodes handed to it before they ended, which count as theirs. What a node that
    answers has made, only that node says."""
    handed: dict[int, Mapping[str, int]] = {}

    def ask(index: int) -> None:
        with suppress(GpuopsError):
            answer: NodeRunState = session.clients[index].call("run", run=row.name)
            handed[index] = {path: node for path, node in (answer.handed or {}).items() if node in absentees}

    on_each(ask, nodes)
    return handed


def _measure_skews(
    session: ClusterSession, nodes: Sequence[int], reports: Mapping[int, NodeReport]
) -> dict[int, float]:
    """By node: the seconds to add to its clock to get ours, where the order of deaths on several nodes matters."""
    skews: dict[int, float] = {}

    def measure(index: int) -> None:
        with suppress(GpuopsError):
            skew = measure_skew(session.clients[index])
            if skew is not None:
                skews[index] = skew

    if len(nodes) > 1 and any(report.outcome is Outcome.FAILED for report in reports.values()):
        on_each(measure, nodes)
    return skews
