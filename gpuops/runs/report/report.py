"""Makes `runs/<run>/report.html` from what is home of a run."""

from __future__ import annotations

import io
import shlex
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gpuops import __version__
from gpuops.core.context import Context
from gpuops.core.errors import GpuopsError
from gpuops.core.safe_folder import local_errors
from gpuops.ledger.store import ClusterRow, RunRow
from gpuops.runs.launch_spec import request_of
from gpuops.runs.logs.events import first_step_time
from gpuops.runs.logs.home_tail import LogTimes
from gpuops.runs.receipt import receipt_rows
from gpuops.runs.report.curves import find_curves, read_usage
from gpuops.runs.report.page import Story, render
from gpuops.runs.report.phases import Moments, phases
from gpuops.sync.run_folder import RECORD, REPORT, RunHome
from gpuops.sync.run_record import RunRecord

AT_END_LIMIT_S = 1.0
"""How long a run's end waits for its report: machines may bill meanwhile."""
CHARTED_NODES_MAX = 16
"""Of so many nodes the page shows what they used."""


def make_page(
    row: RunRow, cluster: ClusterRow, record: RunRecord, home_at: float | None, now: float, is_late: Callable[[], bool]
) -> str:
    """The page of a run. `record`: of one that goes on, what is known; `home_at`: when it was all home."""
    home, request = RunHome(row.home), request_of(row)
    skews = row.facts.skews
    since = row.started or row.created
    curves = find_curves(home, is_late)
    usage = [
        read_usage(home, node, since, skews[node] if node < len(skews) else 0.0, is_late)
        for node in range(min(request.nodes, CHARTED_NODES_MAX))
    ]
    words = [*filter(None, (request.workload or request.script or request.module,)), *request.argv]
    rows = [("command", shlex.join(words)), *receipt_rows(record)]
    return render(
        Story(
            run=row.name,
            verdict=record.verdict,
            rows=[(label, text) for label, text in rows if label not in ("run", "report")],
            phases=phases(_moments(row, cluster, home_at, now, is_late), row.facts.per_hour),
            per_hour=row.facts.per_hour,
            curves=curves,
            usage=usage,
            made=now,
            version=__version__,
            is_cut=is_late(),
        )
    )


def _moments(
    row: RunRow, cluster: ClusterRow, home_at: float | None, now: float, is_late: Callable[[], bool]
) -> Moments:
    times = LogTimes(RunHome(row.home), row.facts.skews, is_late)
    is_own = cluster.ephemeral and request_of(row).array_index is None  # else it serves other runs, too
    latest = row.ended if row.ended is not None else now

    def by_node(moment: float | None) -> float | None:
        """A node's clock may be ahead, and tells no later moment than this computer's for the end."""
        return None if moment is None else min(moment, latest)

    return Moments(
        rented=cluster.created if is_own else None,
        booted=cluster.ready if is_own else None,
        prepared=row.created,
        launched=row.started,
        first_step=by_node(first_step_time(row, is_late) or times.earliest()),
        last_step=by_node(times.latest()),
        ended=row.ended,
        home=home_at,
        gone=cluster.ended if is_own else None,
        billed_until=cluster.ended,
    )


def write_page(home: RunHome, page: str) -> Path:
    """Write it to the run's folder. Raises LocalDisk."""
    content = page.encode(errors="replace")
    path = home.path / REPORT
    with local_errors(path):
        home.folder.write(REPORT, io.BytesIO(content), len(content))
    return path


def try_report(ctx: Context, row: RunRow, cluster: ClusterRow, record: RunRecord, home_at: float | None) -> str:
    """Make the report at a run's end, within a second. Returns its path; empty where it cannot be made, which is
    printed and fails nothing."""
    deadline = time.monotonic() + AT_END_LIMIT_S
    try:
        page = make_page(row, cluster, record, home_at, ctx.clock.now(), lambda: time.monotonic() > deadline)
        return str(write_page(RunHome(row.home), page))
    except Exception as error:
        ctx.out.say(f"note: the report of {row.name} could not be made: {getattr(error, 'message', error)}")
        return ""


def renew_reports(ctx: Context, cluster: int) -> None:
    """Make the reports of the runs that a cluster was brought up for once more, now that it is gone: they tell when,
    and what it came to. Fails nothing: where the ledger cannot be read, they stay as they are."""
    with suppress(GpuopsError):
        row = ctx.ledger.cluster(cluster)
        for run in ctx.ledger.runs(cluster=cluster) if row.ephemeral else ():
            record = RunHome(run.home).read_record()
            if record is not None and record.report:
                try_report(ctx, run, row, record, home_since(run))


def home_since(row: RunRow) -> float | None:
    """When all of a run was home: `run.json` is written then."""
    try:
        return (row.home / RECORD).stat().st_mtime
    except OSError:
        return None
