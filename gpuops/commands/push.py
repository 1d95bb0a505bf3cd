"""`gpuops push`: the project to every node, or what one node has to the others (`--from`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from gpuops.clusters import selection
from gpuops.core.context import Context
from gpuops.core.errors import UsageError
from gpuops.core.format import amount, first_few, plural
from gpuops.core.reporting import Progress
from gpuops.core.timings import Whose
from gpuops.nodes.session import open_session
from gpuops.sync import scan, upload, workloads_and_data
from gpuops.sync.copy_from_node import Copies, copy_to, list_copies
from gpuops.sync.project_files import printable_path
from gpuops.sync.push_record import PushRecord
from gpuops.sync.uplink import open_uplink

MAX_NAMED = 5
"""Files that one sentence names."""


@dataclass(frozen=True)
class PushOutcome:
    """What a push sent, or would send."""

    tree: scan.Tree
    reports: Sequence[upload.PushReport] | None
    """One per node; None for a dry run."""

    def document(self) -> dict[str, object]:
        document: dict[str, object] = {
            "files": len(self.tree.files),
            "bytes": self.tree.size,
            "held": [{"path": held.path, "why": held.why} for held in self.tree.held],
        }
        if self.reports is None:
            return document | {"paths": [entry.path for entry in self.tree.files]}
        return document | {"nodes": [dataclasses.asdict(report) for report in self.reports]}

    def lines(self) -> list[str]:
        if self.reports is not None:
            return [_describe(report) for report in self.reports]
        first, *more = scan.summary(self.tree)
        return [f"would send: {first}", *more, *(f"  {printable_path(entry.path)}" for entry in self.tree.files)]


def push_project(
    ctx: Context,
    cluster: str | None,
    progress: Progress,
    *,
    overwrite: bool,
    allow: Sequence[str],
    dry_run: bool,
    bwlimit: str | None = None,
) -> PushOutcome:
    """Send what differs to every node. `allow`: files to send although they look like secrets; `dry_run`: list only;
    `bwlimit`: at most so many bytes per second (`500k`, `2M`).

    Raises UsageError and NodeError.
    """
    line = open_uplink(ctx.home / "cache", bwlimit)
    if dry_run:
        return PushOutcome(workloads_and_data.scan_project(ctx, ctx.folder, allow), None)
    row = selection.pick_cluster(ctx.ledger.clusters(), ctx.folder, cluster, "gpuops push --cluster")
    scanning = workloads_and_data.begin_scan(ctx, ctx.folder, allow)  # beside the login, which mostly waits
    with closing(open_session(ctx, row)) as session:
        tree = workloads_and_data.await_scan(ctx, scanning)
        first, *more = scan.summary(tree)
        for sentence in (f"code: {first}", *more):
            ctx.out.say(sentence)
        with progress.during("comparing the project with what the nodes have", whose=Whose.NODE):
            record = PushRecord(ctx.home, row.token, "project")
            reports = upload.push_many(
                session.present(), "project", tree, overwrite=overwrite, progress=progress, record=record, uplink=line
            )
    return PushOutcome(tree, reports)


@dataclass(frozen=True)
class CopyOutcome:
    """What went from one node to the others, or would go."""

    copies: Copies
    reports: Sequence[upload.PushReport] | None
    """One for each of the others; None for a dry run."""

    def document(self) -> dict[str, object]:
        copies = self.copies
        document: dict[str, object] = {"from": copies.origin.label, "files": len(copies.files), "bytes": copies.size}
        if self.reports is None:
            return document | {"paths": [file.path for file in copies.files]}
        return document | {"nodes": [dataclasses.asdict(report) for report in self.reports]}

    def lines(self) -> list[str]:
        if self.reports is not None:
            return [_describe(report) for report in self.reports]
        what = f"{plural(len(self.copies.files), 'file')}, {amount(self.copies.size)}"
        paths = [f"  {printable_path(file.path)}" for file in self.copies.files]
        return [f"would copy from {self.copies.origin.label}: {what}", *paths]


def copy_from_node(
    ctx: Context, cluster: str | None, node: str, paths: Sequence[str], *, overwrite: bool, dry_run: bool
) -> CopyOutcome:
    """Copy what `node` (`node0` or `0`) has in these paths of the project to all other nodes, from node to node.

    Raises UsageError, NodeError.
    """
    for path in paths:
        if path.startswith(("/", "~")) or ".." in path.split("/"):
            raise UsageError(f"{path} leads out of the project", "name a path relative to the project's folder")
    row = selection.pick_cluster(ctx.ledger.clusters(), ctx.folder, cluster, "gpuops push --cluster")
    with closing(open_session(ctx, row)) as session:
        labels = [client.label for client in session.clients]
        label = f"node{node}" if node.isdecimal() else node
        if label not in labels:
            raise UsageError(f"{row.name} has no {label}", f"its nodes: {', '.join(labels)}")
        origin = session.clients[labels.index(label)]
        targets = [client for client in session.clients if client is not origin]
        if not targets:
            raise UsageError(f"{row.name} has no other node than {label}", "gpuops pull brings home what it has")
        with ctx.progress.during(f"listing what {label} has", whose=Whose.NODE):
            copies = list_copies(origin, "project", paths)
        if copies.edited:
            edited = first_few([printable_path(path) for path in copies.edited], MAX_NAMED)
            ctx.out.say(f"not copied, since edited on {label}: {edited}; gpuops pull --edits, then gpuops push")
        if dry_run:
            return CopyOutcome(copies, None)
        with ctx.progress.during("comparing the nodes", whose=Whose.NODE):
            return CopyOutcome(copies, copy_to(copies, targets, overwrite=overwrite, progress=ctx.progress))


def _describe(report: upload.PushReport) -> str:
    """`node0: 2 files sent, 1 removed`, or that there was nothing to do."""
    parts = [f"{plural(report.files_sent, 'file')} sent {report.way}"] if report.files_sent else []
    parts += [f"{report.removed} removed"] if report.removed else []
    parts += [f"kept as edited there: {', '.join(report.kept)}"] if report.kept else []
    return f"{report.node}: {', '.join(parts) or 'up to date'}"
