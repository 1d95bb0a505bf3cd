"""`run` and `train`: choose or create a cluster, prepare, launch, follow and finish a run, tear down, print a receipt.

A cluster that this created is torn down in every case, unless `--keep` was given. The verdict is printed last.
"""

from __future__ import annotations

import dataclasses
from contextlib import suppress

from gpuops.commands.array import Place, run_array
from gpuops.commands.end_after_run import end_after, end_preempted, hand_over
from gpuops.commands.plan import Job, Plan
from gpuops.commands.run_attempt import RunAttempt, carry_out, describe_known_bill, may_start_again
from gpuops.core.context import Context
from gpuops.core.errors import Interrupted, MachineGone
from gpuops.core.models import Offer
from gpuops.core.provider import is_rented
from gpuops.core.reporting import Progress
from gpuops.core.run_models import RunRequest
from gpuops.core.settings import Settings
from gpuops.core.signals import HandOver
from gpuops.core.sink import BucketSink
from gpuops.ledger.store import LedgerUnwritable, RunRow
from gpuops.nodes.session import ClusterSession, open_session
from gpuops.offers import lease_limits
from gpuops.offers.lease_limits import LeaseLimits
from gpuops.offers.price_approval import PriceApproval
from gpuops.runs import retries, taken_over
from gpuops.runs.prepare import describe_secrets
from gpuops.runs.ready_nodes import choose_tree
from gpuops.runs.results import retention
from gpuops.runs.retries import JobOutcome, RetryState
from gpuops.runs.taken_over import TakenOver
from gpuops.sync import bucket, sinks, uplink, workloads_and_data


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
    if bill := "" if attempt.owns_cluster else describe_known_bill(attempt.ctx, session):
        outcome.last = [*outcome.last, bill]
    return outcome


def _run_with_restarts(attempt: RunAttempt, session: ClusterSession) -> JobOutcome:
    """A run, started again on the same nodes with what it left while it fails by itself and `--retries` are left."""
    ctx = attempt.ctx
    outcome = carry_out(attempt, session)
    while (failure := outcome.failure) and attempt.may_restart and may_start_again(ctx, session, outcome):
        attempt.retries.restarts += 1
        ctx.out.say(failure.announce(attempt.retries.used, attempt.job.retries, session.row.name))
        if failure.resumable:
            attempt = attempt.resuming(failure.run)
        outcome = carry_out(attempt, session)
    return outcome


def _leave_to_guard(ctx: Context, session: ClusterSession, ours: RunRow | None = None) -> JobOutcome:
    """What the guard took over while this command was stopped is not touched."""
    code, run, say = taken_over.describe_takeover(ctx, session.row, ours)
    document = {"run": run.name, "home": str(run.home)} if run else {}
    return JobOutcome(code, {**document, "cluster": session.row.name, "taken_over": True, "exit_code": code}, [say])


def _say_kept(ctx: Context, session: ClusterSession, *, in_receipt: bool) -> None:
    """Say that a cluster stays, and what it bills, unless that is `in_receipt`."""
    name, bill = session.row.name, describe_known_bill(ctx, session)
    if not bill:
        ctx.out.say(f"{name} is kept: `gpuops down {name}` ends it")
    elif not in_receipt:
        ctx.out.say(bill)


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
