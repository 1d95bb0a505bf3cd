"""The one end of a run: results home and verified, a verdict, and the record of both.

`finish` takes what a source gives (`collect`), judges it (`outcome.run_outcome`), and writes it down. It serves the
attached command, the guard, `gpuops down`, `stop` and `pull`, and a run that is judged again since its bucket could not
be asked before (`finish_late`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gpuops.core.context import Context
from gpuops.core.errors import LocalDisk, NodeError
from gpuops.core.reporting import Progress
from gpuops.core.run_models import Verdict
from gpuops.core.sink import SinkProgress
from gpuops.ledger.rows import RunFacts, RunState
from gpuops.ledger.store import ClusterRow, LedgerUnwritable, RunRow
from gpuops.runs.launch_spec import request_of
from gpuops.runs.outcome.node_report import NodeReport
from gpuops.runs.outcome.run_outcome import (
    BucketFetch,
    Evidence,
    Judgement,
    Results,
    Retryable,
    judge_run,
    may_defer,
)
from gpuops.runs.outcome.verdict import read_progress
from gpuops.runs.results.collect import EarlierReports, Source, fetch_bucket
from gpuops.sync import archive, bucket, sinks
from gpuops.sync.merged_outputs import OutFolder, inherit, list_outputs
from gpuops.sync.run_folder import RunHome
from gpuops.sync.run_record import RunRecord

OF_LEDGER = ("uploads", "told", "folder_id", "array_waiting")
"""Facts of a run that are not copied from the ledger to `run.json`."""


@dataclass(frozen=True)
class Policy:
    """What the caller of `finish` does with the machines."""

    progress: Progress
    ends_nodes: bool = False
    """The caller destroys the machines next, and calls `deferred_fetch` then: machines bill while an archive is
    fetched."""
    retry_hint: str | None = None
    """Where another try may bring more, NodeError is raised, with this hint; None: it is only written down."""
    known_cluster: ClusterRow | None = None
    """The run's cluster, for a caller that ends it next and tells the verdict: a ledger that cannot be used (a full
    disk, another command that holds it) is only noted then, and `RunOutcome.record_again` is for later."""
    requires_bucket: bool = False
    """The bucket's errors are raised. What came in part is remembered, and is not fetched again by the next try."""


@dataclass(frozen=True)
class RunOutcome:
    """What became of a run."""

    verdict: Verdict
    home: RunHome
    results: Results
    nonsense: str = ""
    """Which results are not home since their nodes answer nonsense; another try does not help."""
    left_in_bucket: str = ""
    """Why the bucket still has what is nowhere else; a retry would start without it."""
    record: RunRecord = field(default_factory=RunRecord)
    """The content of `run.json`, for `--json`."""
    ended_at: float | None = None
    """When the run had ended everywhere (UTC seconds)."""
    progress: Mapping[str, int] = field(default_factory=dict)
    """How far the program says it got (`read_progress`)."""
    kept: str = ""
    """A sentence on where else results are; empty without a sink."""
    left_behind: str = ""
    """Large files that no pattern names, and that stay on the nodes."""
    record_again: Callable[[], None] | None = None
    """Writes the verdict into the ledger, which could not be used before. Raises LedgerUnwritable."""
    deferred_fetch: Callable[[], RunOutcome] | None = None
    """Fetches what is in a bucket and judges by that as well, once the machines have ended. Until it is called the
    record says that the bucket was not asked, and `gpuops pull` does the same."""

    @property
    def missing(self) -> str:
        """The sentence that says which results are not home; empty when all are."""
        return self.results.missing

    @property
    def may_destroy(self) -> bool:
        return not isinstance(self.results, Retryable)


def finish(ctx: Context, row: RunRow, source: Source, policy: Policy) -> RunOutcome:
    """Bring home what `source` and the bucket have, judge the run, and write it down.

    The machines may be destroyed where the outcome's `may_destroy` is true. Raises NodeError by `policy.retry_hint`,
    ConnectionLost (`collect.Disks`), LocalDisk, Interrupted; by `policy.requires_bucket` ProviderError and NodeError.
    """
    evidence = source.collect(ctx, row, policy.progress)
    absent = [index for index, state in evidence.nodes.items() if state.is_absent]

    def with_bucket() -> RunOutcome:
        whole = dataclasses.replace(evidence, bucket=fetch_bucket(ctx, row, absent, policy.progress))
        if policy.requires_bucket:
            _require_bucket(ctx, row, whole)
        return _judge_and_persist(ctx, row, whole, policy)

    def deferred_fetch() -> RunOutcome:
        outcome = with_bucket()
        _abort_uploads(ctx, row, policy)
        return outcome

    if policy.ends_nodes and archive.is_kept_in_bucket(row) and may_defer(evidence):
        waiting = archive.describe_waiting(row, absent)
        outcome = _judge_and_persist(
            ctx, row, dataclasses.replace(evidence, bucket=BucketFetch(trouble=waiting)), policy
        )
        outcome = dataclasses.replace(outcome, deferred_fetch=deferred_fetch, left_in_bucket=waiting)
    else:
        outcome = with_bucket()
    if outcome.may_destroy:
        source.release(row)
        # A node that is ending may still close its archive, also when the run is judged once more.
        if outcome.deferred_fetch is None and not evidence.is_late:
            _abort_uploads(ctx, row, policy)
    elif policy.retry_hint is not None and isinstance(outcome.results, Retryable):
        hint = "; else ".join(filter(None, (outcome.results.hint, policy.retry_hint)))
        raise NodeError(f"results of {row.name} are not home: {outcome.results.why}", hint)
    return outcome


def _abort_uploads(ctx: Context, row: RunRow, policy: Policy) -> None:
    with suppress(*_ledger_errors(policy)):  # the teardown does it once more
        bucket.abort_uploads(ctx, ctx.ledger.run(row.id))


def _ledger_errors(policy: Policy) -> tuple[type[LedgerUnwritable], ...]:
    """The errors of the ledger that do not count."""
    return (LedgerUnwritable,) if policy.known_cluster else ()


def latest_row(ctx: Context, row: RunRow) -> RunRow:
    """The run as the ledger has it by now; as it was, where the ledger cannot be used."""
    try:
        return ctx.ledger.run(row.id)
    except LedgerUnwritable:
        return row


def _require_bucket(ctx: Context, row: RunRow, evidence: Evidence) -> None:
    """Raise what kept the bucket from giving all that it has; NodeError where no node has a report."""
    fetched = evidence.bucket
    judgement = judge_run(row, request_of(row), evidence, saved=False)
    if fetched.errors:
        if fetched.brought:
            ctx.ledger.set_run(row.id, facts={**ctx.ledger.run(row.id).facts, **_bucket_facts(row, judgement)})
        raise fetched.errors[0]
    if len(judgement.absent) == len(judgement.nodes):
        raise NodeError(
            f"nothing that {row.name} left is in {row.facts.bucket_place}",
            "its nodes ended before they had sent it: see its logs",
        )


def _judge_and_persist(ctx: Context, row: RunRow, evidence: Evidence, policy: Policy) -> RunOutcome:
    home, request = RunHome(row.home), request_of(row)
    if was_folder_replaced(row):
        ctx.out.say(
            f"note: {row.home.parent.parent} was moved or removed after {row.name} began; what came home since is in "
            f"{row.home}, what came before, where you moved it"
        )
    inherit(home, evidence.handed)
    judgement = judge_run(row, request, evidence, saved=bool(list_outputs(home)))
    record = _write_record(ctx, row, evidence, judgement, policy)
    record_again = None
    try:
        _write_row(ctx, row, evidence, judgement)
    except _ledger_errors(policy) as error:
        ctx.out.say(f"note: what came of {row.name} is in {home.path}, and not in the ledger: {error.message}")
        record_again = partial(_write_row, ctx, row, evidence, judgement)
    if judgement.may_destroy:
        OutFolder(home).clear_dead()
    return RunOutcome(
        judgement.verdict,
        home,
        judgement.results,
        nonsense=evidence.fetched.nonsense,
        left_in_bucket=judgement.left_in_bucket,
        record=record,
        ended_at=evidence.ended_at,
        progress=read_progress(judgement.reports.values()),
        kept=record.kept,
        left_behind=evidence.fetched.left_behind,
        record_again=record_again,
    )


def was_folder_replaced(row: RunRow) -> bool:
    """Whether another folder lies where that of the run was made, or none: results go to the path that is known."""
    made = row.facts.folder_id
    return made != 0 and RunHome(row.home).folder_id() != made


def _write_record(ctx: Context, row: RunRow, evidence: Evidence, judgement: Judgement, policy: Policy) -> RunRecord:
    """Write `run.json`. Returns what is in it."""
    request, home = request_of(row), RunHome(row.home)
    states, place = judgement.sink_states, row.facts.bucket_place
    earlier = home.read_record() if evidence.is_late else None
    record = dataclasses.replace(
        earlier or _make_record(ctx, row, _cluster_of(ctx, row, policy), evidence.ended_at),
        verdict=judgement.verdict,
        missing=judgement.results.missing,
        nodes_ended=_nodes_ended(judgement.reports),
        kept=sinks.describe_outcome(request, row.name, states, range(request.nodes), place) if request.sink else "",
    )
    if evidence.is_late:
        record = dataclasses.replace(record, in_bucket=judgement.absent)
    else:
        reports = judgement.reports
        progress = read_progress(reports[index] for index in sorted(reports))
        record = dataclasses.replace(record, left_behind=evidence.fetched.left_behind, progress=progress)
    home.write_record(record)
    if judgement.may_destroy:
        record = _with_report(ctx, dataclasses.replace(row, ended=evidence.ended_at), record, policy)
        home.flush()
    return record


def _with_report(ctx: Context, row: RunRow, record: RunRecord, policy: Policy) -> RunRecord:
    """The record with its report, which comes after it: a nearly full disk has room for the more important one."""
    from gpuops.runs.report.report import try_report  # only a run's end needs it

    path = try_report(ctx, row, _cluster_of(ctx, row, policy), record, ctx.clock.now())
    if path:
        record = dataclasses.replace(record, report=path)
        with suppress(LocalDisk):
            RunHome(row.home).write_record(record)
    return record


def _cluster_of(ctx: Context, row: RunRow, policy: Policy) -> ClusterRow:
    try:
        return ctx.ledger.cluster(row.cluster)
    except LedgerUnwritable:
        if policy.known_cluster is None:
            raise
        return policy.known_cluster


def _write_row(ctx: Context, row: RunRow, evidence: Evidence, judgement: Judgement) -> None:
    """Write the run's row of the ledger. Raises LedgerUnwritable."""
    ctx.ledger.set_run(
        row.id,
        state=RunState.HOME if judgement.may_destroy else RunState.ENDED,
        owner_process=None,
        ended=evidence.ended_at,
        verdict=judgement.verdict,
        facts={
            **ctx.ledger.run(row.id).facts,
            **_bucket_facts(row, judgement),
            "folder_id": RunHome(row.home).folder_id(),
        },
    )


def _make_record(ctx: Context, row: RunRow, cluster: ClusterRow, ended_at: float) -> RunRecord:
    """What the ledger knows of a run. `ended_at`: when it had ended everywhere (UTC seconds).

    On a cluster that is kept, and in an array, a run is billed from its own beginning.
    """
    started = row.started or ended_at
    until = cluster.ended or ctx.clock.now()
    is_own = cluster.ephemeral and request_of(row).array_index is None
    since, before = (cluster.created, cluster.spent_before) if is_own else (row.created, 0.0)
    return RunRecord(
        run=row.name,
        request=row.request,
        cluster=cluster.name,
        created=row.created,
        started=row.started,
        ended=ended_at,
        duration_s=ended_at - started,
        before_s=started - since,
        cost=before + row.facts.per_hour * (until - since) / 3600,
        payer=cluster.payer,
        is_rented=cluster.provider != "local" and bool(row.facts.per_hour),
        home=str(row.home),
        facts=RunFacts({name: fact for name, fact in row.facts.items() if name not in OF_LEDGER}),
    )


def _nodes_ended(reports: Mapping[int, NodeReport]) -> dict[str, Any]:
    return {
        str(index): {key: report.document[key] for key in ("outcome", "reason")} for index, report in reports.items()
    }


def _bucket_facts(row: RunRow, judgement: Judgement) -> dict[str, Any]:
    """Facts for `finish_late`: whose results can only be in the bucket, and the documents of all other nodes."""
    if not archive.is_kept_in_bucket(row):
        return {}
    absent = judgement.absent
    documents = {
        str(index): {
            **judgement.reports[index].document,
            "sink": judgement.sink_states.get(index, SinkProgress()).document(),
        }
        for index in judgement.nodes
        if index not in absent
    }
    return {"in_bucket": absent, "told": documents if absent else {}}


def is_awaited(row: RunRow) -> bool:
    """Whether something of a judged run can only be in its bucket."""
    return row.state is RunState.HOME and bool(row.facts.in_bucket) and archive.is_kept_in_bucket(row)


def finish_late(ctx: Context, row: RunRow, progress: Progress) -> None:
    """Bring home what is in the bucket of a judged run, and judge it again.

    Raises NodeError, ProviderError, LocalDisk.
    """
    outcome = finish(ctx, row, EarlierReports(), Policy(progress, requires_bucket=True))
    ctx.out.say(f"{row.name}: {outcome.verdict.say}")


def finish_before_resume(ctx: Context, row: RunRow) -> None:
    """`finish_late` for a run that another one resumes. What is home is enough where the bucket has nothing more.

    Raises ProviderError, and NodeError where nothing is home either.
    """
    try:
        finish_late(ctx, row, ctx.progress)
    except NodeError as error:
        if not list_outputs(RunHome(row.home)):
            raise
        ctx.out.say(f"note: {error.message}; going on from what is home")
