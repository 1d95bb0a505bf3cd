"""`run` and `train`: choose or create a cluster, prepare, launch, follow and finish a run, tear down, print a receipt.

A cluster that this created is torn down in every case, unless `--keep` was given. The verdict is printed last.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from gpuops.commands.array import Place, run_array
from gpuops.commands.cluster_bill import describe_bill
from gpuops.commands.end_after_run import end_after, end_cluster, end_preempted, hand_over
from gpuops.commands.logs import make_merger
from gpuops.commands.plan import Job, Plan
from gpuops.core.context import Context
from gpuops.core.errors import Interrupted, LocalDisk, MachineGone, NodeError, worst_exit_code
from gpuops.core.format import listed, plural
from gpuops.core.models import Offer
from gpuops.core.provider import is_rented
from gpuops.core.reporting import Progress
from gpuops.core.run_models import RunRequest
from gpuops.core.settings import Settings
from gpuops.core.signals import HandOver
from gpuops.core.sink import BucketSink
from gpuops.ledger.rows import ClusterState
from gpuops.ledger.store import LedgerUnwritable, RunRow
from gpuops.nodes.session import ClusterSession, open_session
from gpuops.offers import lease_limits
from gpuops.offers.lease_limits import LeaseLimits
from gpuops.offers.price_approval import PriceApproval
from gpuops.runs import retries, taken_over
from gpuops.runs.finish import Policy, RunOutcome, finish, latest_row
from gpuops.runs.launch import launch
from gpuops.runs.logs.events import first_step_time
from gpuops.runs.logs.home_tail import Filter, HomeTail, TracebackFilter
from gpuops.runs.monitor import show_run, tensorboard_command
from gpuops.runs.outcome.node_report import NodeReport
from gpuops.runs.outcome.run_outcome import Complete, Lost
from gpuops.runs.outcome.verdict import RETRIES_HINT, is_port_clash
from gpuops.runs.prepare import Prepared, describe_secrets, prepare, record_not_started
from gpuops.runs.ready_nodes import choose_tree
from gpuops.runs.receipt import format_receipt
from gpuops.runs.results import retention
from gpuops.runs.results.collect import Agents, release
from gpuops.runs.retries import JobOutcome, RetryState
from gpuops.runs.taken_over import TakenOver
from gpuops.sync import archive, bucket, sinks, uplink, workloads_and_data
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


def execute(ctx: Context, settings: Settings, plan: Plan, progress: Progress) -> JobOutcome:
    """Carry a plan out, from the cluster to the receipt. Raises GpuopsError where it ends before a run is judged."""
    plan = _with_sink(ctx, plan)
    job, choice = plan.job, plan.choice
    for message in filter(None, (choice.say, describe_secrets(ctx, job.request))):
        ctx.out.say(message)
    if choice.row and job.detach:
        row = choice.row
        retention.confirm_hold(ctx, job.request, row.provider, retention.cluster_price(ctx, row.id), row.lease)
    if choice.row and job.wish != LeaseLimits():
        ctx.out.say(
            f"note: limits belong to a new cluster, {choice.row.name} keeps its own: gpuops lease {choice.row.name}"
        )
    ctx.out.hold_up_nothing()
    replacements = job.retries if _replaces_machines(ctx, plan) else 0
    state = RetryState(replacements, PriceApproval(replaces=replacements > 0), resume=job.request.resume)

    def run_attempt(wish: LeaseLimits, resume: str | None) -> JobOutcome:
        limited = dataclasses.replace(job.resuming(resume), wish=wish)
        return _run_attempt(RunAttempt(ctx, settings, dataclasses.replace(plan, job=limited), progress, state))

    with ctx.signals:
        return retries.run_with_retries(ctx, state, job.wish, run_attempt)


def _with_sink(ctx: Context, plan: Plan) -> Plan:
    """The plan with its bucket or volume checked and completed. Raises UsageError and ProviderError."""
    request, row = plan.job.request, plan.choice.row
    if request.sink and not row:
        sinks.with_volume_option(plan.provider, ctx.provisioner(plan.provider).options, {}, request.sink)
    if not isinstance(request.sink, BucketSink):
        return plan
    options = row.request.get("options") or {} if row else plan.job.machines.options
    request = dataclasses.replace(
        request, sink=bucket.check_bucket(ctx, sinks.with_profile(request.sink, plan.provider, options))
    )
    return dataclasses.replace(plan, job=dataclasses.replace(plan.job, request=request))


def _run_attempt(attempt: RunAttempt) -> JobOutcome:
    """One run on one cluster, which is gone afterwards where it was brought up for it. What is to be replaced (`loss`)
    is gone in any case."""
    ctx, job, choice = attempt.ctx, attempt.job, attempt.plan.choice
    session = _open_session(ctx, attempt.plan, attempt.retries)
    try:
        outcome = _run_all(attempt, session) if job.array else _run_with_restarts(attempt, session)
    except HandOver:
        hand_over(ctx, session)
        raise
    except TakenOver as taken:
        return _leave_to_guard(ctx, session, taken.run)
    except BaseException as error:
        ctx.signals.backward()
        if attempt.owns_cluster and taken_over.is_cluster_taken(ctx, session.row):
            return _leave_to_guard(ctx, session)
        if attempt.owns_cluster or isinstance(error, MachineGone):
            why = "interrupted" if isinstance(error, Interrupted) else "the run could not be started"
            end_after(ctx, session, why, error)
        elif choice.row is None:
            _say_kept(ctx, session, in_receipt=False)
        raise
    finally:
        session.close()
    if ctx.signals.count or choice.row is not None or (job.keep and attempt.retries.left <= 0):
        outcome.loss = None
    if outcome.loss is not None:
        end_preempted(ctx, session, outcome)
    elif attempt.owns_cluster and not (job.detach and outcome.document.get("detached")):
        end_after(ctx, session, "its run ended", outcome)
    elif choice.row is None and not outcome.document.get("detached"):
        with suppress(LedgerUnwritable):  # it is kept all the same, and the verdict is still to be told
            ctx.ledger.set_cluster(session.row.id, owner_process=None)
        _say_kept(ctx, session, in_receipt=True)
    if outcome.record_again and outcome.finished is not None:
        with suppress(LedgerUnwritable):  # it was noted before
            outcome.record_again()
    return outcome


def _replaces_machines(ctx: Context, plan: Plan) -> bool:
    """Whether `--retries` replaces machines: those that are rented or queued for, for this run."""
    provisioner = ctx.provisioner(plan.provider)
    is_fresh = plan.choice.row is None and not plan.job.array
    return is_fresh and (is_rented(provisioner) or provisioner.grants_machines)


def _run_all(attempt: RunAttempt, session: ClusterSession) -> JobOutcome:
    """The runs of an array, on one cluster."""
    job = attempt.job
    assert job.array is not None

    def run_one(ctx: Context, place: Place, request: RunRequest) -> JobOutcome:
        plan = dataclasses.replace(attempt.plan, job=dataclasses.replace(job, request=request))
        one = RunAttempt(ctx, attempt.settings, plan, ctx.progress, RetryState(), place)
        return _run_with_restarts(one, place.session)

    outcome = run_array(attempt.ctx, attempt.settings, session, job.request, job.array, job.sending, run_one)
    if bill := "" if attempt.owns_cluster else _describe_known_bill(attempt.ctx, session):
        outcome.last = [*outcome.last, bill]
    return outcome


def _run_with_restarts(attempt: RunAttempt, session: ClusterSession) -> JobOutcome:
    """A run, started again on the same nodes with what it left while it fails by itself and `--retries` are left."""
    ctx = attempt.ctx
    outcome = _run_on(attempt, session)
    while (failure := outcome.failure) and attempt.may_restart and _may_start_again(ctx, session, outcome):
        attempt.retries.restarts += 1
        ctx.out.say(failure.announce(attempt.retries.used, attempt.job.retries, session.row.name))
        if failure.resumable:
            attempt = attempt.resuming(failure.run)
        outcome = _run_on(attempt, session)
    return outcome


def _may_start_again(ctx: Context, session: ClusterSession, outcome: JobOutcome) -> bool:
    """Whether another run may begin in place of one that has ended. None does where the ledger cannot be used: it does
    not know that the one before has ended, or would not have the next."""
    with suppress(LedgerUnwritable):
        is_up = ctx.ledger.cluster(session.row.id).state is ClusterState.UP
        return is_up and outcome.record_again is None and not ctx.signals.count
    return False


def _leave_to_guard(ctx: Context, session: ClusterSession, ours: RunRow | None = None) -> JobOutcome:
    """What the guard took over while this command was stopped is not touched."""
    code, run, say = taken_over.describe_takeover(ctx, session.row, ours)
    document = {"run": run.name, "home": str(run.home)} if run else {}
    return JobOutcome(code, {**document, "cluster": session.row.name, "taken_over": True, "exit_code": code}, [say])


def _say_kept(ctx: Context, session: ClusterSession, *, in_receipt: bool) -> None:
    """Say that a cluster stays, and what it bills, unless that is `in_receipt`."""
    name, bill = session.row.name, _describe_known_bill(ctx, session)
    if not bill:
        ctx.out.say(f"{name} is kept: `gpuops down {name}` ends it")
    elif not in_receipt:
        ctx.out.say(bill)


def _describe_known_bill(ctx: Context, session: ClusterSession) -> str:
    """What a cluster that stays costs; empty where the ledger cannot say it now."""
    with suppress(LedgerUnwritable):
        return describe_bill(ctx, session.row.id)
    return ""


def _open_session(ctx: Context, plan: Plan, state: RetryState) -> ClusterSession:
    """A session with the cluster that the plan uses, brought up where there is none."""
    job = plan.job
    if plan.choice.row is not None:
        return open_session(ctx, plan.choice.row)
    from gpuops.clusters import market_creation  # most launches go to a cluster that there is

    wanted = market_creation.Wanted(
        job.machines, None, not job.keep, job.wish, lambda offer: _announce_offer(ctx, job, offer), state.approval
    )
    return market_creation.bring_up_wanted(ctx, job.market, wanted, state.lost_by)


def _announce_offer(ctx: Context, job: Job, offer: Offer) -> str:
    """What is settled and said before anything is rented. Raises UsageError."""
    if job.detach:
        rented = is_rented(ctx.provisioner(offer.provider))
        lease = lease_limits.new_lease(job.wish, rented=rented, per_hour=offer.per_hour, now=ctx.clock.now())
        retention.confirm_hold(ctx, job.request, offer.provider, offer.per_hour, lease)
    return estimate_upload(ctx, job, offer)


def estimate_upload(ctx: Context, job: Job, offer: Offer) -> str:
    """What is to be sent, how long that will take and cost: said before anything is rented. Raises UsageError."""
    if not is_rented(ctx.provisioner(offer.provider)):
        return ""
    tree = workloads_and_data.scan_project(ctx, choose_tree(job.request, ctx.folder)[1], job.sending.send_anyway)
    data = workloads_and_data.local_data(ctx, offer.provider, job.request)
    size = tree.size + (workloads_and_data.scan_data(ctx, data, job.sending.send_anyway).size if data else 0)
    return uplink.describe_estimate(size, offer.nodes, offer.per_hour, uplink.read_upload_rate(ctx.home / "cache"))


def _run_on(attempt: RunAttempt, session: ClusterSession) -> JobOutcome:
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
    outcome = _job_outcome(ctx, run, _describe_known_bill(ctx, session) if stays else "")
    outcome.taken = row_now.owner_process != ctx.me
    outcome.finished, outcome.record_again = (row.id if run.may_destroy else None), run.record_again
    if attempt.retries.retries:  # machines that another command ends are not lost
        granted = ctx.provisioner_of(session.row).grants_machines and _may_start_again(ctx, session, outcome)
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
        on += f" (to the run: {listed([f'node{index}' for index in range(nodes)])})"
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
