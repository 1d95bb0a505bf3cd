"""`gpuops report`: a run as one HTML file, made anew from what is home by now."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from gpuops.commands.logs import fetch_lines
from gpuops.commands.stop import pick_run
from gpuops.core.context import Context
from gpuops.core.errors import GpuopsError, LocalDisk, UsageError
from gpuops.ledger.rows import ClusterState, RunState
from gpuops.nodes.session import open_session
from gpuops.runs.report.report import home_since, make_page, write_page
from gpuops.sync.run_folder import RunHome
from gpuops.sync.run_record import RunRecord

LIMIT_S = 60.0
"""How long what is home is read: a node may have sent files without end."""


def make_report(ctx: Context, name: str | None, target: Path | None) -> Path:
    """Write the report of a run to `target`, or into its folder. What nodes of a live run have written by now comes
    home first. Raises UsageError, LocalDisk."""
    row = pick_run(ctx, name, running=False)
    if not row.home.is_dir():
        raise UsageError(f"nothing of {row.name} is here: {row.home} does not exist", "gpuops runs lists all runs")
    cluster = ctx.ledger.cluster(row.cluster)
    if row.state is RunState.RUNNING and cluster.state is ClusterState.UP:
        try:
            with closing(open_session(ctx, cluster, some=True)) as session:
                fetch_lines(ctx, session, row)
        except GpuopsError as error:
            ctx.out.say(f"note: {error.message}; the report tells what is home")
    home, now = RunHome(row.home), ctx.clock.now()
    record = home.read_record() or RunRecord(run=row.name, request=row.request, home=str(row.home), facts=row.facts)
    deadline = ctx.clock.monotonic() + LIMIT_S
    page = make_page(row, cluster, record, home_since(row), now, lambda: ctx.clock.monotonic() > deadline)
    if target is None:
        return write_page(home, page)
    try:
        target.write_text(page, encoding="utf-8", errors="replace")
    except OSError as error:
        raise LocalDisk(f"{target} cannot be written: {error.strerror}", "name another file: --html FILE") from error
    return target
