"""`push` and `pull` by hand: the project to a cluster, edits and results home."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from gpuops import sync
from gpuops.clusters import select
from gpuops.commands.down import pick_run
from gpuops.core.context import Context
from gpuops.core.errors import NodeError, UsageError
from gpuops.core.format import plural
from gpuops.core.reporting import Progress
from gpuops.ledger.store import ClusterRow, RunRow
from gpuops.nodes.session import ClusterSession, open_live
from gpuops.runs.collect import Agents, fetch_now
from gpuops.runs.finish import Policy, finish, finish_late, is_awaited
from gpuops.runs.report import NodeReport, parse_report
from gpuops.sync import RunHome, archive, inputs, mirror
from gpuops.sync.edits import BroughtEdit, pull_edits
from gpuops.sync.project import shown
from gpuops.sync.push_record import PushRecord
from gpuops.sync.restore import outputs


def _cluster(ctx: Context, name: str | None, verb: str) -> ClusterRow:
    live = ctx.ledger.clusters()
    return select.by_name(live, name) if name else select.the_one(live, ctx.folder, f"gpuops {verb} --cluster")


def push_project(
    ctx: Context, cluster: str | None, progress: Progress, *, overwrite: bool, allow: Sequence[str], dry_run: bool
) -> tuple[dict[str, Any], list[str]]:
    """Bring every node's copy of the project up to date. Raises UsageError, NodeError."""
    tree = inputs.scan_project(ctx, ctx.folder, allow)
    document: dict[str, Any] = {
        "files": len(tree.files),
        "bytes": tree.size,
        "held": [{"path": held.path, "why": held.why} for held in tree.held],
    }
    if dry_run:
        return document | {"paths": [entry.path for entry in tree.files]}, [
            *(f"would send: {sentence}" for sentence in sync.summary(tree)[:1]),
            *sync.summary(tree)[1:],
            *(f"  {shown(entry.path)}" for entry in tree.files),
        ]
    row = _cluster(ctx, cluster, "push")
    live = open_live(ctx, row)
    try:
        first, *more = sync.summary(tree)
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
    return document | {"nodes": nodes}, [_said(report) for report in reports]


@contextmanager
def _noted(failed: dict[int, NodeError], index: int) -> Iterator[None]:
    """A node that does not answer keeps nothing of the others away."""
    try:
        yield
    except NodeError as error:
        failed[index] = error


def _partly(failed: Mapping[int, NodeError], what: str, command: str) -> NodeError:
    """After what answers was brought: who did not."""
    names = "; ".join(f"node{index}: {error.say.removeprefix(f'node{index}: ')}" for index, error in failed.items())
    return NodeError(f"{what}: {names}", f"what answers is home; try again: {command}")


def _said(report: sync.PushReport) -> str:
    """`node0: 2 files sent, 1 removed`, or that there was nothing to do."""
    parts = [f"{plural(report.files_sent, 'file')} sent"] if report.files_sent else []
    parts += [f"{report.removed} removed"] if report.removed else []
    parts += [f"kept as edited there: {', '.join(report.kept)}"] if report.kept else []
    return f"{report.node}: {', '.join(parts) or 'up to date'}"


def pull_project_edits(ctx: Context, cluster: str | None) -> tuple[dict[str, Any], list[str]]:
    """Bring home the project's files that were edited on the nodes; nothing here is overwritten unsaved."""
    row = _cluster(ctx, cluster, "pull --edits")
    live = open_live(ctx, row, some=True)
    record = PushRecord(ctx.home, row.token, "project")
    brought: list[BroughtEdit] = []
    failed: dict[int, NodeError] = {}
    refused: list[str] = []
    try:
        with ctx.progress.during("looking for what was edited on the nodes"):
            for index, client in enumerate(live.clients):
                with _noted(failed, index):
                    if said := pull_edits(client, "project", ctx.folder, record, brought):
                        refused.append(f"{client.label}: {said}")
    finally:
        live.close()
    if failed or refused:
        for one in brought:
            ctx.out.say(one.say)
    if refused:
        for sentence in refused if failed else refused[:-1]:
            ctx.out.say(f"note: not brought home: {sentence}")
    if failed:
        raise _partly(failed, "what was edited there is not home", "gpuops pull --edits")
    if refused:
        raise NodeError(
            f"not brought home: {refused[-1]}",
            f"if you know what was edited, `gpuops down` saves it in runs/{row.name}-left, beside the project",
        )
    return (
        {"files": [{"path": one.path, "node": one.node, "at": str(one.at), "beside": one.beside} for one in brought]},
        [one.say for one in brought] or ["nothing was edited on the nodes"],
    )


def _from_bucket(ctx: Context, row: RunRow, cluster: ClusterRow, progress: Progress) -> bool:
    """Where none of a run's nodes answers any more: what they kept in a bucket. Whether there was some; the guard
    concludes."""
    if not archive.is_kept(row) or row.started is None:
        return False
    if cluster.state == "up":
        try:
            open_live(ctx, cluster, some=True).close()
            return False
        except NodeError:
            pass  # they are gone, or out of reach
    brought, errors = archive.fetch_archives(ctx, row, range(int(row.request["nodes"])), progress)
    for error in errors:
        raise error
    return bool(brought)


def _from_nodes(ctx: Context, live: ClusterSession, row: RunRow, progress: Progress) -> None:
    """What a run's nodes have. Raises NodeError where not all of it came home."""
    nodes = range(int(row.request["nodes"]))
    reports: dict[int, NodeReport] = {}
    failed: dict[int, NodeError] = {}
    for index in nodes:
        with _noted(failed, index):
            result = mirror(live.clients[index], row.name, index, RunHome(row.home), False, lambda *_: None)
            if result is not None:
                reports[index] = parse_report(index, result)
    if failed:
        fetch_now(live, row, progress, final=False, nodes=[index for index in nodes if index not in failed])
        raise _partly(failed, f"what {row.name} made there is not home", f"gpuops pull {row.name}")
    if len(reports) == len(nodes) and row.state == "ended":
        outcome = finish(ctx, row, Agents(live, reports), Policy(progress))
        if outcome.missing:
            raise NodeError(f"results of {row.name} are not home: {outcome.missing}", "try again: gpuops pull")
    else:
        with progress.during(f"looking at what {row.name} made"):
            fetch_now(live, row, progress, final=len(reports) == len(nodes))


def pull_results(ctx: Context, name: str | None, progress: Progress) -> tuple[dict[str, Any], list[str]]:
    """Bring home what a run has made so far, or, when it has ended, all of it."""
    row = pick_run(ctx, name, running=False)
    home = RunHome(row.home)
    cluster = ctx.ledger.cluster(row.cluster)
    if is_awaited(row):
        finish_late(ctx, row, progress)
    elif row.state != "home" and not _from_bucket(ctx, row, cluster, progress):
        if cluster.state != "up":
            raise NodeError(
                f"{row.name} has results that are not home, and {cluster.name} is {cluster.state}",
                "`gpuops status --cloud` shows what is still there",
            )
        live = open_live(ctx, cluster, some=True)
        try:
            _from_nodes(ctx, live, row, progress)
        finally:
            live.close()
    places = outputs(home)
    if not places and not home.path.exists():
        where = "`gpuops runs` lists where each run's results are"
        if row.started is None:
            why = str((row.verdict or {}).get("say") or "never started")
            raise UsageError(f"{row.name} was {why}", where)
        raise UsageError(f"{row.name} left nothing at home", where)
    say = f"{plural(len(places), 'file')} of {row.name} in {home.out}" if places else f"{row.name} has made no files"
    return {"run": row.name, "home": str(row.home), "files": places}, [say]
