"""May the machines be destroyed? By what each node is, what its object store has, and what else is known."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuops.core.run_models import RunRequest
from gpuops.core.sink import FolderSink, SinkProgress, SinkStatus
from gpuops.ledger.rows import RunFacts
from gpuops.runs.outcome.node_report import NodeReport, ReasonKind, lost_report, parse_report
from gpuops.runs.outcome.run_outcome import (
    BucketFetch,
    Complete,
    Evidence,
    FinalFetch,
    Judgement,
    Lost,
    NodeState,
    Retryable,
    classify_nodes,
    find_moved_clocks,
    judge_run,
    may_defer,
)
from gpuops.sync.archive import FetchedNode

DONE = {"outcome": "done", "reason": {"kind": "command"}, "ranks": []}
OWN = parse_report(0, DONE)
LOST_KINDS = {
    NodeState.UNREACHABLE: ReasonKind.UNREACHABLE,
    NodeState.ENDED: ReasonKind.ENDED,
    NodeState.NONSENSE: ReasonKind.NONSENSE,
    NodeState.NEVER_STARTED: ReasonKind.NEVER_STARTED,
}
NOTHING = BucketFetch()
WHOLE = BucketFetch({0: FetchedNode(DONE, 0)})
PARTIAL = BucketFetch({0: FetchedNode(DONE, 2)})
FILES_ONLY = BucketFetch({0: FetchedNode(None, 0)})
UNASKED = BucketFetch(trouble="the session has ended")

UNREACHABLE = "node0 cannot be reached any more"
ENDED = "node0 ended before all results were home"
SHORT = "node0 could not keep 2 files"


def report(state: NodeState) -> NodeReport:
    return lost_report(0, "as it says", LOST_KINDS[state]) if state in LOST_KINDS else OWN


def judged(evidence: Evidence, sink: Any = None, *, saved: bool = False) -> Judgement:
    request = RunRequest(kind="command", mode="run", nodes=1, gpus=None, argv=("true",), sink=sink)
    row = SimpleNamespace(name="r-1", facts=RunFacts(bucket={"place": "s3://results/r-1"}), home=Path())
    return judge_run(cast("Any", row), request, evidence, saved=saved)


TABLE: list[tuple[NodeState, BucketFetch, Complete | Retryable | Lost]] = [
    (NodeState.REPORTED, NOTHING, Complete()),
    (NodeState.REPORTED, UNASKED, Lost("the session has ended; `gpuops pull r-1` fetches it")),
    (NodeState.NONSENSE, NOTHING, Complete()),
    (NodeState.NEVER_STARTED, NOTHING, Complete()),
    (NodeState.UNREACHABLE, NOTHING, Retryable(UNREACHABLE, UNREACHABLE)),
    (NodeState.UNREACHABLE, WHOLE, Complete()),
    (NodeState.UNREACHABLE, PARTIAL, Retryable(UNREACHABLE, f"{UNREACHABLE}; {SHORT}")),
    (NodeState.UNREACHABLE, FILES_ONLY, Retryable(UNREACHABLE, UNREACHABLE)),
    (NodeState.UNREACHABLE, UNASKED, Retryable(UNREACHABLE, UNREACHABLE)),
    (NodeState.ENDED, NOTHING, Lost(ENDED)),
    (NodeState.ENDED, WHOLE, Complete()),
    (NodeState.ENDED, PARTIAL, Lost(SHORT)),
    (NodeState.ENDED, FILES_ONLY, Lost(ENDED)),
    (NodeState.ENDED, UNASKED, Lost(ENDED)),
]


@pytest.mark.parametrize(("state", "bucket", "results"), TABLE)
def test_may_the_machines_be_destroyed(
    state: NodeState, bucket: BucketFetch, results: Complete | Retryable | Lost
) -> None:
    """Only where no other try could bring anything home."""
    end = judged(Evidence(0.0, {0: report(state)}, FinalFetch(), bucket=bucket))
    assert end.results == results
    assert end.may_destroy is not isinstance(results, Retryable)


@pytest.mark.parametrize(("bucket", "state", "results"), [
    (NOTHING, NodeState.ENDED, Lost(ENDED)),
    (WHOLE, NodeState.REPORTED, Complete()),
    (FILES_ONLY, NodeState.REPORTED, Complete()),
    (PARTIAL, NodeState.REPORTED, Lost(SHORT)),
])  # fmt: skip
def test_a_node_whose_machine_ended_after_it_had_reported(
    bucket: BucketFetch, state: NodeState, results: Complete | Lost
) -> None:
    """Its report is known: with its archive nothing of it is lost."""
    end = judged(Evidence(0.0, {0: OWN}, FinalFetch(), vanished=[0], bucket=bucket))
    assert (end.nodes[0], end.results) == (state, results)


@pytest.mark.parametrize(("sink", "results"), [
    (None, Retryable("away", "away")),
    (FolderSink("data", "/w"), Lost("away")),
])  # fmt: skip
def test_a_failed_fetch_keeps_machines_unless_their_results_are_safe_elsewhere(
    sink: Any, results: Retryable | Lost
) -> None:
    evidence = Evidence(0.0, {0: OWN}, FinalFetch("away"), sink_states={0: SinkProgress(SinkStatus.SAFE)})
    assert judged(evidence, sink).results == results


def test_answers_that_cannot_be_believed_keep_no_machine() -> None:
    end = judged(Evidence(0.0, {0: OWN}, FinalFetch(nonsense="node0 answers nonsense")))
    assert (end.results, end.verdict.outcome) == (Lost("node0 answers nonsense"), "unclear")


def test_only_where_no_node_answered_is_the_bucket_all_there_is() -> None:
    alone = judged(Evidence(0.0, {0: report(NodeState.ENDED)}, FinalFetch(), bucket=UNASKED))
    assert alone.left_in_bucket == "the session has ended"
    assert judged(Evidence(0.0, {0: OWN}, FinalFetch(), bucket=UNASKED)).left_in_bucket == ""


@pytest.mark.parametrize(("states", "failed", "later"), [
    ([NodeState.REPORTED, NodeState.ENDED], "", True),
    ([NodeState.REPORTED, NodeState.ENDED], "away", False),
    ([NodeState.REPORTED, NodeState.UNREACHABLE], "", False),
    ([NodeState.REPORTED, NodeState.REPORTED], "", False),
    ([NodeState.ENDED, NodeState.ENDED], "", False),
])  # fmt: skip
def test_the_bucket_waits_only_for_machines_that_have_given_everything(
    states: list[NodeState], failed: str, later: bool
) -> None:
    """Of the others it is certain that they have ended."""
    assert may_defer(Evidence(0.0, dict(enumerate(map(report, states))), FinalFetch(failed))) is later


def test_every_kind_of_reason_is_a_state() -> None:
    """What only this computer writes is a state of its own; all else is a node's own word."""
    reports = {index: lost_report(index, "", kind) for index, kind in enumerate(ReasonKind)}
    own = [reports[index].kind for index, state in classify_nodes(reports).items() if state is NodeState.REPORTED]
    assert {*ReasonKind} - {*own} == {*LOST_KINDS.values()}
    assert ReasonKind("of a later version") is ReasonKind.OTHER


@pytest.mark.parametrize(
    ("saved", "ending"), [(True, "; what it had made is home: `--resume r-1` goes on from that"), (False, "")]
)
def test_a_failed_run_that_left_something_says_how_to_go_on(saved: bool, ending: str) -> None:
    failed = {"outcome": "failed", "reason": {"kind": "command"}, "ranks": [], "launcher": {"code": 3}, "tail": "boom"}
    verdict = judged(Evidence(0.0, {0: parse_report(0, failed)}, FinalFetch()), saved=saved).verdict
    assert verdict.hint == f"its last words are above; `gpuops logs r-1 --node 0` shows everything it said{ending}"


CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.5]:30107"
NAN = "ValueError: loss is nan"


def died(node: int, at: float, words: str, **reason: object) -> NodeReport:
    rank = {"rank": node, "code": 1, "ended": at, "tail": words}
    why = {"kind": "rank", **reason}
    return parse_report(node, {"outcome": "failed", "reason": why, "ended": at, "ranks": [rank]})


def blamed(reports: list[NodeReport], before: list[float], after: dict[int, float]) -> int | None:
    request = RunRequest(kind="torchrun", mode="multinode", nodes=2, gpus=1, script="train.py")
    row = SimpleNamespace(name="r-1", facts=RunFacts(skews=before, world=2), home=Path())
    evidence = Evidence(0.0, {one.node: one for one in reports}, FinalFetch(), skews=after)
    return judge_run(cast("Any", row), request, evidence, saved=False).verdict.node


def test_a_clock_that_was_set_during_the_run_does_not_clear_the_culprit() -> None:
    """Node 1 raised first, by a clock that had meanwhile been put forward by nine seconds."""
    reports = [died(0, 100.3, CLOSED), died(1, 109.0, NAN)]
    assert blamed(reports, [0.0, 0.0], {}) == 0  # as it looks without a second look at the clocks
    assert blamed(reports, [0.0, 0.0], {0: 0.01, 1: -9.0}) == 1


@pytest.mark.parametrize(("origin", "culprit"), [(0, 0), (1, 1)])
def test_where_clocks_cannot_tell_it_is_whom_the_others_heard_of_first(origin: int, culprit: int) -> None:
    other = parse_report(2, {"outcome": "stopped", "reason": {"kind": "gang", "from": origin}, "ranks": []})
    reports = [died(0, 100.0, "ValueError: a"), died(1, 101.0, NAN), other]
    assert blamed(reports, [0.0, 0.0, 0.0], {0: 0.0, 1: -9.0, 2: 0.0}) == culprit


@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [
        ([5.0, 0.0], {0: 5.2, 1: 0.1}, set()),
        ([5.0, 0.0], {0: 5.2, 1: -9.0}, {1}),
        ([5.0, 0.0], {0: 3605.0, 1: 3600.0}, set()),  # this computer slept
        ([5.0, 0.0], {1: 9.0}, {1}),
        ([], {0: 1.0, 1: 9.0}, set()),
        ([5.0, 0.0], {}, set()),
    ],
)
def test_whose_clock_was_set(before: list[float], after: dict[int, float], moved: set[int]) -> None:
    assert find_moved_clocks(dict(enumerate(before)), after) == moved
