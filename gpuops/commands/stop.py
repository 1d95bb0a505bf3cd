"""`gpuops stop`: stop one run and download its results; and the choice of a run by name or folder."""

from __future__ import annotations

from contextlib import closing

from gpuops.core.context import Context
from gpuops.core.errors import NodeError, UsageError
from gpuops.core.reporting import Progress
from gpuops.ledger.rows import RunState
from gpuops.ledger.store import RunRow
from gpuops.nodes.session import open_session
from gpuops.runs.finish import Policy, finish
from gpuops.runs.graceful_stop import stop_and_wait
from gpuops.runs.outcome.node_report import ReasonKind
from gpuops.runs.ready_nodes import find_run
from gpuops.runs.results.collect import Agents


def pick_run(ctx: Context, name: str | None, *, running: bool) -> RunRow:
    """The run that a command means: the named one, otherwise the latest of this folder (`running`: the only running
    one). Raises UsageError."""
    if name is not None:
        return find_run(ctx, name)
    rows = [row for row in ctx.ledger.runs() if row.folder == ctx.folder]
    if running:
        rows = [row for row in rows if row.state in (RunState.STARTING, RunState.RUNNING)]
    if not rows:
        raise UsageError(
            "no run of this folder is going on" if running else "this folder has had no run yet",
            "`gpuops runs` lists all runs" if running else "start one: gpuops train multinode --nodes 2",
        )
    if running and len(rows) > 1:
        names = ", ".join(row.name for row in rows)
        raise UsageError(f"several runs of this folder are going on: {names}", f"name one: gpuops stop {rows[-1].name}")
    return rows[-1]


def stop(ctx: Context, run: RunRow, progress: Progress) -> str:
    """Stop a run and download its results; the cluster stays, unless it was brought up for this run. Returns a
    sentence. Raises UsageError while the run is being started, NodeError where results are not home."""
    if run.state not in (RunState.STARTING, RunState.RUNNING):
        return f"{run.name} has ended already"
    if run.state is RunState.STARTING:
        if _has_live_owner(ctx, run):
            raise UsageError(f"{run.name} is still being prepared", "press Ctrl-C where it was started")
        return f"{run.name} was never started: the guard removes it"
    row = ctx.ledger.cluster(run.cluster)
    with closing(open_session(ctx, row, some=True)) as session:
        reports = stop_and_wait(ctx, session, run, "gpuops stop")
        if ctx.ledger.take_run_ownership(run.id, ctx.me):
            bring_home(ctx, run, Agents(session, reports), progress)
        elif _has_live_owner(ctx, run) and all(one.kind == ReasonKind.NEVER_STARTED for one in reports.values()):
            raise UsageError(f"{run.name} is only just being started", f"try again: gpuops stop {run.name}")
    return f"{run.name} is stopped; its results are in {run.home}"


def bring_home(ctx: Context, run: RunRow, nodes: Agents, progress: Progress) -> None:
    """Download the results of a run that has ended, and judge it. Raises NodeError where some are not home."""
    outcome = finish(ctx, run, nodes, Policy(progress, retry_hint=f"try again: gpuops pull {run.name}"))
    if outcome.missing:
        raise NodeError(
            f"results of {run.name} are not home: {outcome.missing}",
            outcome.kept or f"what came home is in {run.home}",
        )


def _has_live_owner(ctx: Context, run: RunRow) -> bool:
    """Whether another live process, its command or the guard, finishes the run."""
    return ctx.ledger.run(run.id).has_live_owner(besides=ctx.me)
