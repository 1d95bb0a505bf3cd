"""One run on a cluster that is up: prepared, launched, followed, finished, and what is printed of it last."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from gpuops.commands.array import Place
from gpuops.commands.cluster_bill import describe_bill
from gpuops.commands.end_after_run import end_cluster
from gpuops.commands.logs import make_merger
from gpuops.commands.plan import Job, Plan
from gpuops.core.context import Context
from gpuops.core.errors import Interrupted, LocalDisk, NodeError, worst_exit_code
from gpuops.core.format import listed, plural
from gpuops.core.provider import is_rented
from gpuops.core.reporting import Progress
from gpuops.core.run_models import RunRequest
from gpuops.core.settings import Settings
from gpuops.core.signals import HandOver
from gpuops.ledger.rows import ClusterState
from gpuops.ledger.store import LedgerUnwritable, RunRow
from gpuops.nodes.session import ClusterSession
from gpuops.runs import retries, taken_over
from gpuops.runs.finish import Policy, RunOutcome, finish, latest_row
from gpuops.runs.launch import launch
from gpuops.runs.logs.events import first_step_time
from gpuops.runs.logs.home_tail import Filter, HomeTail, TracebackFilter
from gpuops.runs.monitor import show_run, tensorboard_command
from gpuops.runs.outcome.node_report import NodeReport
from gpuops.runs.outcome.run_outcome import Complete, Lost
from gpuops.runs.outcome.verdict import RETRIES_HINT, is_port_clash
from gpuops.runs.prepare import Prepared, prepare, record_not_started
from gpuops.runs.receipt import format_receipt
from gpuops.runs.results import retention
from gpuops.runs.results.collect import Agents, release
from gpuops.runs.retries import JobOutcome, RetryState
from gpuops.sync import archive
from gpuops.sync.run_folder import RunHome

TRACEBACK_HOLD_S = 5.0
"""How long a traceback waits to be shown: by then it is known whether a rank failed."""
RELAUNCHES_MAX = 1
"""How often a run is launched once more where another program took its port."""


@dataclass(frozen=True)
class RunAttempt:
    """One run on one cluster: what is carried out, and what it shares with the attempts before it."""

    ctx: Context
    settings: Settings
    plan: Plan
    progress: Progress
    retries: RetryState
    place: Place | None = None
    """Where it is a run of an array."""

    @property
    def job(self) -> Job:
        return self.plan.job

    @property
    def owns_cluster(self) -> bool:
        """Whether the cluster is brought up for this run alone, and ends with it."""
        return self.place is None and self.plan.choice.row is None and not self.job.keep

    @property
    def may_restart(self) -> bool:
        """Whether a run that failed by itself is started again: where nothing is rented for it alone."""
        is_fresh = self.place is None and self.plan.choice.row is None
        is_paid = is_fresh and is_rented(self.ctx.provisioner(self.plan.provider))
        return not is_paid and self.retries.used < self.job.retries

    def resuming(self, run: str) -> RunAttempt:
        """The same with what a run left."""
        job = self.job.resuming(run)
        return dataclasses.replace(self, plan=dataclasses.replace(self.plan, job=job))


def carry_out(attempt: RunAttempt, session: ClusterSession) -> JobOutcome:
    """Prepare, launch, follow and finish a run. Raises MachineGone where a machine ended before and may be replaced."""
    ctx, job = attempt.ctx, attempt.job
    request = retention.complete_request(ctx, session, job.request)
    prepared = _start(attempt, session, request)
    row = ctx.ledger.run(prepared.row.id)
    ctx.out.say(f"{row.name} runs on {_describe_placement(session, prepared)}; results come to {row.home}")
    if hold := retention.describe_hold(ctx, session, row, request):
        ctx.out.say(f"note: {hold}")
    if job.detach:
        return _detach(ctx, session, row, attempt.owns_cluster)
    reports = _follow(ctx, session, prepared, row)
    taken_over.check_run(ctx, row)
    failed = attempt.retries.retries > 0 and retries.have_machines_failed(ctx, session, reports.values())
    policy = Policy(attempt.progress, ends_nodes=attempt.place is None, known_cluster=session.row)
    row_now = latest_row(ctx, row)
    run = finish(ctx, row_now, Agents(session, reports), policy)
    if run.deferred_fetch:
        run = _fetch_deferred(ctx, session, row, run, run.deferred_fetch, attempt.owns_cluster)
    if attempt.retries.resumed(first_step_time(row)):
        run = dataclasses.replace(run, record=run.record.with_retries(attempt.retries.documents))
        run.home.write_record(run.record)
    if job.retries:  # the hint to use --retries is for those who have not
        verdict = dataclasses.replace(run.verdict, hint=run.verdict.hint.removesuffix(RETRIES_HINT))
        run = dataclasses.replace(run, verdict=verdict)
    stays = not attempt.owns_cluster and attempt.place is None
    outcome = _job_outcome(ctx, run, describe_known_bill(ctx, session) if stays else "")
    outcome.taken = row_now.owner_process != ctx.me
    outcome.finished, outcome.record_again = (row.id if run.may_destroy else None), run.record_again
    if attempt.retries.retries:  # machines that another command ends are not lost
        granted = ctx.provisioner_of(session.row).grants_machines and may_start_again(ctx, session, outcome)
        outcome.loss = retries.find_preemption(row, session.row, run, granted=granted, failed=failed)
    outcome.failure = retries.find_own_failure(row, run)
    return outcome


def _start(attempt: RunAttempt, session: ClusterSession, request: RunRequest) -> Prepared:
    """Prepare the run and launch it. Raises MachineGone where a machine has ended and may be replaced."""
    ctx, job = attempt.ctx, attempt.job
    try:
        if attempt.place:
            prepared = attempt.place.prepare(ctx, request)
        else:
            prepared = prepare(ctx, attempt.settings, session, request, job.sending, attempt.progress)
        if attempt.retries.losses:  # in the ledger, so that every process that writes the record has them
            facts = ctx.ledger.run(prepared.row.id).facts
            ctx.ledger.set_run(prepared.row.id, facts={**facts, "retries": attempt.retries.documents})
        _launch(ctx, session, prepared)
    except NodeError as error:
        if not attempt.retries.retries or ctx.signals.count:
            raise
        gone = retries.find_ended_machine(ctx, session, error)
        if gone is None:
            raise
        raise gone from error
    return prepared


def _follow(ctx: Context, session: ClusterSession, prepared: Prepared, row: RunRow) -> dict[int, NodeReport]:
    """Show the run until it has ended, launched once more where its port was taken. Returns the nodes' reports."""
    tail = HomeTail(RunHome(row.home), make_merger(ctx, row, Filter()), TracebackFilter(TRACEBACK_HOLD_S, ctx.clock))
    while True:
        reports = dict(show_run(ctx, session, row, tail).reports)
        may_relaunch = not ctx.signals.count and prepared.attempt <= RELAUNCHES_MAX
        if not may_relaunch or not has_port_clash(prepared.request, reports):
            return reports
        ctx.out.say("the port was taken by another program in the meantime: launching once more")
        _launch(ctx, session, prepared)


def _fetch_deferred(
    ctx: Context, session: ClusterSession, row: RunRow, run: RunOutcome, fetch: Callable[[], RunOutcome], ours: bool
) -> RunOutcome:
    """What is in a bucket comes home when nothing bills any more, and stays there while something may. Raises
    Interrupted, which loses nothing."""
    stopped = ctx.signals.count
    if ours:
        ctx.out.say(archive.describe_deferred_fetch(row, session.row.name))
        if end_cluster(ctx, session, "its run ended", row.id):
            return run  # this command and then the guard try to end them first: a fetch may take hours
        if not stopped:
            try:
                ctx.signals.forward()
            except Interrupted as error:
                error.hint = f"gpuops pull {row.name} fetches what is in {row.facts.bucket_place}"
                raise
    try:
        return fetch()
    except HandOver:
        ctx.ledger.add_notice(f"what {row.name} kept in its bucket is not all home: gpuops pull {row.name} fetches it")
        raise


def _launch(ctx: Context, session: ClusterSession, prepared: Prepared) -> None:
    taken_over.check_run(ctx, prepared.row)
    try:
        ctx.signals.check()
        launch(ctx, session, prepared)
    except BaseException as error:
        record_not_started(ctx, prepared.row, error)
        release(session, prepared.row)
        raise


def has_port_clash(request: RunRequest, reports: Mapping[int, NodeReport]) -> bool:
    """Whether the rendezvous port was taken between our look and torchrun's; a plain command's ports are its own."""
    return request.kind == "torchrun" and is_port_clash(reports.values())


def _describe_placement(session: ClusterSession, prepared: Prepared) -> str:
    ranks, nodes = prepared.world_size, len(prepared.nodes)
    on = listed([f"node{number}" for number in session.part_of]) or plural(nodes, "node")
    if session.part_of and [*session.part_of] != [*range(nodes)]:
        on += f" (in its logs: {listed([f'node{index}' for index in range(nodes)])})"
    return f"{on}, {plural(ranks, 'rank')}" if prepared.request.kind == "torchrun" else on


def _job_outcome(ctx: Context, run: RunOutcome, bill: str) -> JobOutcome:
    """What is printed last. `bill`: what a cluster that stays costs."""
    verdict = run.verdict
    is_safe = isinstance(run.results, Complete) or (isinstance(run.results, Lost) and run.kept)
    ended_with = worst_exit_code(verdict.exit_code, 0 if is_safe else NodeError.exit_code)
    code = Interrupted.exit_code if ctx.signals.count else ended_with
    document = {**run.record.document(), "exit_code": code}
    last = [*format_receipt(run.record, bill), *filter(None, [tensorboard_command(run.home)])]
    if verdict.tail and verdict.exit_code:
        last += ["", *verdict.tail.splitlines()]
    last += [verdict.say + (f"\nhint: {verdict.hint}" if verdict.hint else "")]
    return JobOutcome(code, document, last)


def _detach(ctx: Context, session: ClusterSession, row: RunRow, ours: bool) -> JobOutcome:
    """Leave the run to the guard, which brings results home and, where the cluster is the run's own, ends it."""
    ctx.ledger.set_run(row.id, owner_process=None)
    ctx.ledger.set_cluster(session.row.id, owner_process=None)
    code = 0
    after = "then ends the nodes" if ours else f"{session.row.name} stays up"
    say = f"detached: the guard brings the results home, {after}; follow it with: gpuops logs {row.name} -f"
    if not ctx.try_ensure_guard(session.row):
        code = LocalDisk.exit_code
        say = f"detached, without a guard: `gpuops pull {row.name}` brings the results home"
    return JobOutcome(
        code,
        {"run": row.name, "home": str(row.home), "cluster": session.row.name, "detached": True, "exit_code": code},
        [say],
    )


def may_start_again(ctx: Context, session: ClusterSession, outcome: JobOutcome) -> bool:
    """Whether another run may begin in place of one that has ended. None does where the ledger cannot be used: it does
    not know that the one before has ended, or would not have the next."""
    with suppress(LedgerUnwritable):
        is_up = ctx.ledger.cluster(session.row.id).state is ClusterState.UP
        return is_up and outcome.record_again is None and not ctx.signals.count
    return False


def describe_known_bill(ctx: Context, session: ClusterSession) -> str:
    """What a cluster that stays costs; empty where the ledger cannot say it now."""
    with suppress(LedgerUnwritable):
        return describe_bill(ctx, session.row.id)
    return ""
