"""A command that was stopped (Ctrl-Z) for so long that the guard has taken over its run or its cluster.

Once it is continued it asks, before each of its steps, whether what it looks after is still its own.
"""

from __future__ import annotations

from gpuops.core.context import Context
from gpuops.core.errors import Interrupted
from gpuops.ledger.rows import RunState
from gpuops.ledger.store import ClusterRow, LedgerUnwritable, RowGone, RunRow


class TakenOver(Interrupted):
    """A run of this command is the guard's."""

    def __init__(self, run: RunRow) -> None:
        say = f"the guard goes on with {run.name}, since this command was stopped"
        super().__init__(say, f"gpuops logs {run.name} -f")
        self.run = run


def check_run(ctx: Context, run: RunRow) -> None:
    """Raises TakenOver where another process looks after a run of this command, or has finished it."""
    if not ctx.heart.was_silent():
        return
    try:
        if ctx.ledger.run(run.id).owner_process == ctx.me or ctx.ledger.take_run_ownership(run.id, ctx.me):
            return
    except (LedgerUnwritable, RowGone):
        return  # a full disk takes nothing over
    raise TakenOver(run)


def is_cluster_taken(ctx: Context, row: ClusterRow) -> bool:
    """Whether another process ends a cluster of this command."""
    if not ctx.heart.was_silent():
        return False
    try:
        return not ctx.ledger.take_ownership(row.id, ctx.me)
    except (LedgerUnwritable, RowGone):
        return False


def describe_takeover(ctx: Context, row: ClusterRow, ours: RunRow | None = None) -> tuple[int, RunRow | None, str]:
    """Exit code, run and sentence of a command whose run `ours` was taken over, or its cluster with all runs on it."""
    runs = [ctx.ledger.run(ours.id)] if ours else ctx.ledger.runs(cluster=row.id)
    run = runs[-1] if runs else None
    if run is None:
        return Interrupted.exit_code, None, f"the guard ends {row.name}, since this command was stopped"
    if run.state is RunState.HOME and run.verdict:
        say = f"the guard finished {run.name} while this command was stopped; results are in {run.home}"
        return run.verdict.exit_code, run, f"{say}\n{run.verdict.say}"
    say = f"the guard goes on with {run.name}, since this command was stopped"
    return Interrupted.exit_code, run, f"{say}; follow it with: gpuops logs {run.name} -f"
