"""`gpuops push`: bring each node's copy of the project up to date."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuops import sync
from gpuops.clusters import select
from gpuops.core.context import Context
from gpuops.core.format import plural
from gpuops.core.reporting import Progress
from gpuops.nodes.session import open_session
from gpuops.sync import inputs
from gpuops.sync.project import printable_path
from gpuops.sync.push_record import PushRecord


def push_project(
    ctx: Context, cluster: str | None, progress: Progress, *, overwrite: bool, allow: Sequence[str], dry_run: bool
) -> tuple[dict[str, Any], list[str]]:
    """Send what differs to every node. `allow`: files to send although they look like secrets; `dry_run`: list only.

    Returns a document and lines. Raises UsageError and NodeError.
    """
    tree = inputs.scan_project(ctx, ctx.folder, allow)
    document: dict[str, Any] = {
        "files": len(tree.files),
        "bytes": tree.size,
        "held": [{"path": held.path, "why": held.why} for held in tree.held],
    }
    first, *more = sync.summary(tree)
    if dry_run:
        return document | {"paths": [entry.path for entry in tree.files]}, [
            f"would send: {first}",
            *more,
            *(f"  {printable_path(entry.path)}" for entry in tree.files),
        ]
    clusters = ctx.ledger.clusters()
    row = (
        select.find_by_name(clusters, cluster)
        if cluster
        else select.find_only_cluster(clusters, ctx.folder, "gpuops push --cluster")
    )
    live = open_session(ctx, row)
    try:
        for sentence in (f"code: {first}", *more):
            ctx.out.say(sentence)
        with progress.during("comparing the project with what the nodes have"):
            record = PushRecord(ctx.home, row.token, "project")
            reports = sync.push_many(
                live.present(), "project", tree, overwrite=overwrite, progress=progress, record=record
            )
    finally:
        live.close()
    nodes: list[dict[str, Any]] = [
        {
            "node": report.node,
            "files_sent": report.files_sent,
            "bytes_sent": report.bytes_sent,
            "removed": report.removed,
            "kept": list(report.kept),
        }
        for report in reports
    ]
    return document | {"nodes": nodes}, [_describe(report) for report in reports]


def _describe(report: sync.PushReport) -> str:
    """`node0: 2 files sent, 1 removed`, or that there was nothing to do."""
    parts = [f"{plural(report.files_sent, 'file')} sent"] if report.files_sent else []
    parts += [f"{report.removed} removed"] if report.removed else []
    parts += [f"kept as edited there: {', '.join(report.kept)}"] if report.kept else []
    return f"{report.node}: {', '.join(parts) or 'up to date'}"
