"""How `run` and `train` end the cluster that they brought up, or hand it to the guard."""

from __future__ import annotations

from gpuops.clusters.teardown import describe_shutdown, tear_down
from gpuops.clusters.teardown_errors import still_billing_error
from gpuops.core.context import Context
from gpuops.core.errors import GpuopsError, Interrupted, NodeError, worst_exit_code
from gpuops.core.format import plural, span
from gpuops.ledger.rows import ClusterState, RunState
from gpuops.ledger.store import LedgerUnwritable
from gpuops.nodes.session import ClusterSession
from gpuops.runs import retries, taken_over
from gpuops.runs.report.report import renew_reports
from gpuops.runs.retries import JobOutcome


def end_preempted(ctx: Context, session: ClusterSession, outcome: JobOutcome) -> None:
    """End what is left of preempted machines; where that fails, nothing replaces them."""
    per_hour = sum(machine.per_hour for machine in session.machines)
    ended = end_after(ctx, session, "its machines were taken back or lost", outcome)
    outcome.gone = ctx.ledger.cluster(session.row.id)
    outcome.cost = retries.final_cost(outcome.gone, per_hour)
    if not ended:
        outcome.loss = None


def end_after(ctx: Context, session: ClusterSession, why: str, result: JobOutcome | BaseException) -> bool:
    """End what this command brought up. Returns whether nothing of it is left; where something may be, that decides
    the exit code of `result` if it is the worse of the two."""
    finished = result.finished if isinstance(result, JobOutcome) else None
    code = end_cluster(ctx, session, why, finished)
    if isinstance(result, JobOutcome | GpuopsError | Interrupted):
        result.exit_code = worst_exit_code(result.exit_code, code)
    if isinstance(result, JobOutcome):
        result.document = {**result.document, "exit_code": result.exit_code}
    return not code


def end_cluster(ctx: Context, session: ClusterSession, why: str, finished: int | None = None) -> int:
    """End what this command brought up, and print what became of it. Returns an exit code, 0 where nothing is left.

    A cluster whose runs are not finished is handed to the guard instead. `finished`: the number of a run that is, also
    where the ledger could not be told.
    """
    ctx.signals.backward()
    try:
        return _end_cluster(ctx, session, why, finished)
    except LedgerUnwritable as error:  # it could not even be read
        left = still_billing_error(session.machines, 0.0, error.message, session.row.name, error.hint)
        ctx.out.say(f"error: {left.message}\nhint: {left.hint}; then: gpuops down {session.row.name}")
        return left.exit_code


def _end_cluster(ctx: Context, session: ClusterSession, why: str, finished: int | None) -> int:
    if ctx.ledger.cluster(session.row.id).state is ClusterState.GONE:
        return 0  # before what was in a bucket was fetched, or by another command
    if taken_over.is_cluster_taken(ctx, session.row):
        ctx.out.say(f"the guard ends {session.row.name}, since this command was stopped")
        return 0
    began = ctx.clock.monotonic()
    runs = [run for run in ctx.ledger.runs(cluster=session.row.id) if run.id != finished]
    if any(run.state in (RunState.RUNNING, RunState.ENDED) for run in runs):
        if hand_over(ctx, session):
            ctx.out.say(
                f"{session.row.name} is kept for now: the guard brings the results home and ends {session.row.name}; "
                f"`gpuops down {session.row.name} --force` gives them up"
            )
        return NodeError.exit_code
    nodes, seen = len(session.machines), len(session.present()) == len(session.clients)
    session.close()
    try:
        tear_down(ctx, session.row.id, why, seen=seen)
    except LedgerUnwritable as error:
        ended = f"{plural(nodes, 'node')} of {session.row.name} ended"
        ctx.out.say(f"note: {ended}, and the ledger does not know: {error.message}; the next command looks again")
        return 0
    except GpuopsError as error:
        ctx.out.say(f"error: {error.message}\nhint: {error.hint}")
        return error.exit_code
    renew_reports(ctx, session.row.id)
    left = describe_shutdown(ctx.ledger.list_leftovers(session.row.id)) or "nothing left"
    ended = f"{plural(nodes, 'node')} of {session.row.name} ended"
    ctx.out.say(f"{ended}, {left} ({span(ctx.clock.monotonic() - began)})")
    return 0


def hand_over(ctx: Context, session: ClusterSession) -> bool:
    """Give the cluster and this command's runs to the guard. Returns whether one works; where not, that is printed."""
    try:
        for run in ctx.ledger.runs(cluster=session.row.id):
            if run.owner_process == ctx.me:
                ctx.ledger.set_run(run.id, owner_process=None)
        ctx.ledger.set_cluster(session.row.id, owner_process=None)
    except LedgerUnwritable:
        pass  # this command ends now, and a dead owner process says the same
    return ctx.try_ensure_guard(session.row)
