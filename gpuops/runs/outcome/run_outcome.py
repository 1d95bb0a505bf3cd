"""What a run's end amounts to: which results are home, which may still come, and the verdict. Pure.

Evidence (what the nodes and their bucket gave)
    -> classify_nodes: a NodeState for each node
    -> judge_run: a Judgement, which says whether the machines may be destroyed
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from gpuops.core.errors import GpuopsError
from gpuops.core.format import plural
from gpuops.core.run_models import RunRequest, Verdict, VerdictOutcome
from gpuops.core.sink import SinkProgress, SinkStatus
from gpuops.ledger.store import RunRow
from gpuops.runs.outcome.node_report import NodeReport, ReasonKind, parse_report
from gpuops.runs.outcome.suggested_fixes import held_back
from gpuops.runs.outcome.verdict import NODE_FAILED, judge
from gpuops.sync import archive, sinks
from gpuops.sync.archive import FetchedNode

CLOCK_MOVED_S = 1.0
"""By how much a node's clock and ours may part during a run before its times are in no order with others'."""
FOREIGN_ANSWERS = "check that this node is yours; what came home of it is in the run's folder"


class NodeState(Enum):
    """What a node is to the end of a run."""

    REPORTED = auto()
    """Its own report is known. Its files come from its agent, or came from its archive in the bucket."""
    NONSENSE = auto()
    """It answers, and its answers cannot be believed: its files are asked for once more, alone."""
    UNREACHABLE = auto()
    """It may live, and may hold results that are nowhere else."""
    ENDED = auto()
    """Its machine has ended: what it held is lost, but for its archive in the bucket."""
    NEVER_STARTED = auto()
    """It knows no such run: it holds nothing."""

    @property
    def gives_files(self) -> bool:
        """Whether its agent is asked for the run's files."""
        return self in (NodeState.REPORTED, NodeState.NONSENSE)

    @property
    def is_absent(self) -> bool:
        """Whether only the bucket can still give what it made."""
        return self in (NodeState.UNREACHABLE, NodeState.ENDED)


STATES = {
    ReasonKind.NONSENSE: NodeState.NONSENSE,
    ReasonKind.UNREACHABLE: NodeState.UNREACHABLE,
    ReasonKind.ENDED: NodeState.ENDED,
    ReasonKind.NEVER_STARTED: NodeState.NEVER_STARTED,
}
"""The state of a node by the kind of its report's reason; every other kind is a node's own report."""

Nodes = Mapping[int, NodeState]


@dataclass(frozen=True)
class FinalFetch:
    """What came of the last fetch from the agents."""

    failed: str = ""
    """Why not all is home that another try may bring."""
    hint: str = ""
    """What makes it come, or gives it up, where a plain retry does not."""
    nonsense: str = ""
    """Why not all is home of nodes that answer nonsense: another try does not help."""
    left_behind: str = ""
    """What stays on the nodes."""


@dataclass(frozen=True)
class BucketFetch:
    """What came home from the bucket of absent nodes."""

    brought: Mapping[int, FetchedNode] = field(default_factory=dict)
    trouble: str = ""
    """Why not all came that is there; a sentence."""
    errors: Sequence[GpuopsError] = ()
    """The errors that `trouble` tells, where the bucket was asked."""


@dataclass(frozen=True)
class Evidence:
    """What is known of a run when nothing more can come from its nodes."""

    ended_at: float
    """When the run had ended everywhere (UTC seconds)."""
    reports: Mapping[int, NodeReport]
    fetched: FinalFetch
    vanished: Sequence[int] = ()
    """Nodes that had reported, and that ended before all their files were home."""
    handed: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """By node: the paths that it has from a node that ended, and that node."""
    sink_states: Mapping[int, SinkProgress] = field(default_factory=dict)
    """By node: what its agent says of the results that it keeps elsewhere."""
    skews: Mapping[int, float] = field(default_factory=dict)
    """By node: the seconds to add to its clock to get ours, measured after the run; empty where it does not matter."""
    bucket: BucketFetch = BucketFetch()
    is_late: bool = False
    """The run was judged before: its machines ended long ago, and what the bucket does not have now never comes."""

    @property
    def nodes(self) -> Nodes:
        """The states before the bucket was asked."""
        return classify_nodes(self.reports, self.vanished)

    @property
    def is_answered(self) -> bool:
        """Whether some node was there to give its files."""
        return any(state.gives_files for state in self.nodes.values())


@dataclass(frozen=True)
class Complete:
    """Every result is home and verified."""

    @property
    def missing(self) -> str:
        return ""


@dataclass(frozen=True)
class Retryable:
    """Another try may bring more: the machines must not be destroyed."""

    why: str
    missing: str
    """All that is not home, including what no try would bring."""
    hint: str = ""
    """As in FinalFetch."""


@dataclass(frozen=True)
class Lost:
    """What is not home comes from no machine any more: the machines may be destroyed."""

    why: str

    @property
    def missing(self) -> str:
        return self.why


Results = Complete | Retryable | Lost


@dataclass(frozen=True)
class Judgement:
    """What a run's end amounts to."""

    verdict: Verdict
    results: Results
    nodes: Nodes
    reports: Mapping[int, NodeReport]
    sink_states: Mapping[int, SinkProgress]
    left_in_bucket: str = ""
    """Why the bucket still has what is nowhere else; a retry would start without it."""

    @property
    def may_destroy(self) -> bool:
        """Whether the machines hold nothing that another try could bring home."""
        return not isinstance(self.results, Retryable)

    @property
    def absent(self) -> list[int]:
        return [index for index, state in self.nodes.items() if state.is_absent]


def classify_nodes(reports: Mapping[int, NodeReport], vanished: Sequence[int] = ()) -> dict[int, NodeState]:
    """By node, in order; `vanished` as in Evidence."""
    return {
        index: NodeState.ENDED if index in vanished else STATES.get(report.kind, NodeState.REPORTED)
        for index, report in sorted(reports.items())
    }


def may_defer(evidence: Evidence) -> bool:
    """Whether the bucket can be asked after the machines have ended: some nodes are there and gave everything, and
    of the others it is certain that they have ended. An unreachable node may hold more than the bucket, and only the
    bucket's contents tell that.
    """
    states = evidence.nodes.values()
    return (
        not evidence.fetched.failed
        and evidence.is_answered
        and any(state is NodeState.ENDED for state in states)
        and all(state is not NodeState.UNREACHABLE for state in states)
    )


def judge_run(row: RunRow, request: RunRequest, evidence: Evidence, *, saved: bool) -> Judgement:
    """`saved`: something that the run made is home, so that `--resume` can go on from it."""
    brought = evidence.bucket.brought
    own = {index: parse_report(index, node.result) for index, node in brought.items() if node.result}
    reports = {**evidence.reports, **own}
    nodes = _states_after_bucket(evidence, reports)
    sink_states = {**evidence.sink_states, **{index: _archive_state(node) for index, node in brought.items()}}
    all_safe = all(index in sink_states and sink_states[index].is_safe for index in range(request.nodes))
    return Judgement(
        _complete_verdict(row, request, evidence, reports, nodes, saved),
        _judge_results(row.name, evidence, nodes, kept_elsewhere=bool(request.sink) and all_safe),
        nodes,
        reports,
        sink_states,
        "" if evidence.is_answered else evidence.bucket.trouble,
    )


def _archive_state(node: FetchedNode) -> SinkProgress:
    """What a node kept, by its archive."""
    if not node.missing:
        return SinkProgress(SinkStatus.SAFE)
    return SinkProgress(SinkStatus.FAILED, why=f"{plural(node.missing, 'file')} could not be kept")


def _weigh_reports(
    row: RunRow, request: RunRequest, reports: Mapping[int, NodeReport], after: Mapping[int, float], saved: bool
) -> Verdict:
    """The verdict by the nodes' reports alone, their clocks corrected to ours. `after`: `Evidence.skews`."""
    before = dict(enumerate(row.facts.skews))
    moved = find_moved_clocks(before, after)
    by_our_clock = [
        report.shifted(None if index in moved else after.get(index, before.get(index, 0.0)))
        for index, report in sorted(reports.items())
    ]
    first = next((one.reason.origin for one in by_our_clock if one.kind is ReasonKind.GANG), None) if moved else None
    verdict = judge(request, row.facts.world, by_our_clock, run=row.name, saved=saved, first_node=first)
    if saved and verdict.outcome is VerdictOutcome.FAILED and "--resume" not in verdict.hint:
        goes_on = f"what it had made is home: `--resume {row.name}` goes on from that"
        verdict = dataclasses.replace(verdict, hint=join_sentences(verdict.hint, goes_on))
    return verdict


def find_moved_clocks(before: Mapping[int, float], after: Mapping[int, float]) -> set[int]:
    """The nodes whose clock was set during the run: nothing can be said of the order of what happened there. Where
    the skews of several have changed alike it was this computer's."""
    changes = {index: after[index] - before[index] for index in after if index in before}
    if len(changes) > 1 and max(changes.values()) - min(changes.values()) <= CLOCK_MOVED_S:
        return set()
    return {index for index, change in changes.items() if abs(change) > CLOCK_MOVED_S}


def join_sentences(*sentences: str) -> str:
    return "; ".join(filter(None, sentences))


def _states_after_bucket(evidence: Evidence, reports: Mapping[int, NodeReport]) -> dict[int, NodeState]:
    """The states once the bucket was asked: an archive's own report counts, and the report of a node that vanished
    after it, where its archive came. An unreachable node whose archive lacks files may still have them."""
    brought = evidence.bucket.brought
    states = classify_nodes(reports, [index for index in evidence.vanished if index not in brought])
    for index, node in brought.items():
        if node.missing and evidence.nodes[index] is NodeState.UNREACHABLE:
            states[index] = NodeState.UNREACHABLE
    return states


def _judge_results(run: str, evidence: Evidence, nodes: Nodes, *, kept_elsewhere: bool) -> Results:
    """`kept_elsewhere`: every node's results are safe without it, so that nothing goes with the nodes."""
    bucket = evidence.bucket
    retryable = join_sentences(
        evidence.fetched.failed, _name_nodes(nodes, NodeState.UNREACHABLE, "cannot be reached any more")
    )
    missing = join_sentences(
        retryable,
        evidence.fetched.nonsense,
        _name_nodes(
            nodes, NodeState.ENDED, "kept nothing" if evidence.is_late else "ended before all results were home"
        ),
        archive.describe_missing(bucket.brought),
    )
    if bucket.trouble and evidence.is_answered:  # else the verdict says it
        missing = join_sentences(missing, f"{bucket.trouble}; `gpuops pull {run}` fetches it")
    if retryable and not kept_elsewhere:
        return Retryable(retryable, missing, evidence.fetched.hint)
    return Lost(missing) if missing else Complete()


def _name_nodes(nodes: Nodes, state: NodeState, what: str) -> str:
    names = ", ".join(f"node{index}" for index, state_of_node in nodes.items() if state_of_node is state)
    return f"{names} {what}" if names else ""


def _complete_verdict(
    row: RunRow,
    request: RunRequest,
    evidence: Evidence,
    reports: Mapping[int, NodeReport],
    nodes: Nodes,
    saved: bool,
) -> Verdict:
    """That of the reports, with what stands against it: results that are not home, or are in the bucket alone."""
    verdict = _weigh_reports(row, request, reports, evidence.skews, saved)
    if not_sent := held_back(verdict.tail, row.facts.held):
        verdict = dataclasses.replace(verdict, hint=not_sent)
    if evidence.fetched.hint and not verdict.exit_code:
        verdict = dataclasses.replace(verdict, hint=evidence.fetched.hint)
    preempted, trouble = verdict.outcome is VerdictOutcome.PREEMPTED, evidence.bucket.trouble
    ended_while_away = not evidence.is_answered and not evidence.is_late and NodeState.ENDED in nodes.values()
    if request.sink and ended_while_away and not preempted:
        verdict = Verdict(
            VerdictOutcome.UNCLEAR,
            NODE_FAILED,
            *sinks.describe_ended_while_away(request, row.name, row.facts.bucket_place, trouble),
        )
    if evidence.fetched.nonsense and not verdict.exit_code:
        say = f"{verdict.say}, but its results are not all home: {evidence.fetched.nonsense}"
        verdict = Verdict(VerdictOutcome.UNCLEAR, NODE_FAILED, say, FOREIGN_ANSWERS)
    if preempted and trouble and not evidence.is_answered:
        more_said, hint = sinks.describe_not_fetched(row.name, row.facts.bucket_place, trouble)
        verdict = dataclasses.replace(verdict, say=verdict.say + more_said, hint=hint)
    return verdict
