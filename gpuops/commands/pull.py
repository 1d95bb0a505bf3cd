"""`gpuops pull`: download a run's results, or files of the project that were edited on nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from gpuops.clusters import selection
from gpuops.commands.stop import bring_home, pick_run
from gpuops.core.context import Context
from gpuops.core.errors import NodeError, UsageError
from gpuops.core.format import plural
from gpuops.core.reporting import Progress
from gpuops.core.timings import Whose
from gpuops.ledger.rows import ClusterState, RunState
from gpuops.ledger.store import ClusterRow, RunRow
from gpuops.nodes.session import ClusterSession, open_session
from gpuops.runs.finish import finish_late, is_awaited
from gpuops.runs.launch_spec import request_of, session_of
from gpuops.runs.outcome.node_report import NodeReport, parse_report
from gpuops.runs.results.collect import Agents, fetch_bucket, fetch_now
from gpuops.sync import archive
from gpuops.sync.log_mirror import mirror
from gpuops.sync.merged_outputs import list_outputs
from gpuops.sync.pull_edits import PulledEdit, pull_edits
from gpuops.sync.push_record import PushRecord
from gpuops.sync.run_folder import RunHome


@contextmanager
def _collect_failure(failed: dict[int, NodeError], index: int) -> Iterator[None]:
    """Record a NodeError of one node in `failed`, so that the other nodes are still asked."""
    try:
        yield
    except NodeError as error:
        failed[index] = error


def _partial_error(failed: Mapping[int, NodeError], what: str, command: str) -> NodeError:
    """The error that names the nodes that did not answer, after the others' files were downloaded."""
    names = "; ".join(f"node{index}: {error.message.removeprefix(f'node{index}: ')}" for index, error in failed.items())
    return NodeError(f"{what}: {names}", f"what answers is home; try again: {command}")


@dataclass(frozen=True)
class PulledEdits:
    """Files of the project that were downloaded since they were edited on nodes."""

    files: Sequence[PulledEdit]

    def document(self) -> dict[str, object]:
        fields = [
            {"path": edit.path, "node": edit.node, "at": str(edit.target), "beside": edit.beside} for edit in self.files
        ]
        return {"files": fields}

    def lines(self) -> list[str]:
        return [edit.say for edit in self.files] or ["nothing was edited on the nodes"]


@dataclass(frozen=True)
class PulledResults:
    """What a run has made and this computer has."""

    run: str
    home: RunHome
    files: Sequence[str]
    """Paths inside of `home.out`."""

    def document(self) -> dict[str, object]:
        return {"run": self.run, "home": str(self.home.path), "files": self.files}

    def lines(self) -> list[str]:
        if not self.files:
            return [f"{self.run} has made no files"]
        return [f"{plural(len(self.files), 'file')} of {self.run} in {self.home.out}"]


def pull_project_edits(ctx: Context, cluster: str | None) -> PulledEdits:
    """Download the project's files that were edited on the nodes; where the file here was changed as well, the node's
    is put beside it. Raises UsageError, and NodeError where some of it is missing."""
    row = selection.pick_cluster(ctx.ledger.clusters(), ctx.folder, cluster, "gpuops pull --edits --cluster")
    record = PushRecord(ctx.home, row.token, "project")
    brought: list[PulledEdit] = []
    failed: dict[int, NodeError] = {}
    refused: list[str] = []
    with (
        closing(open_session(ctx, row, some=True)) as session,
        ctx.progress.during("looking for what was edited on the nodes", whose=Whose.NODE),
    ):
        for index, client in enumerate(session.clients):
            with _collect_failure(failed, index):
                if refusal := pull_edits(client, "project", ctx.folder, record, brought):
                    refused.append(f"{client.label}: {refusal}")
    if failed or refused:
        for edit in brought:
            ctx.out.say(edit.say)
    if refused:
        for sentence in refused if failed else refused[:-1]:
            ctx.out.say(f"note: not brought home: {sentence}")
    if failed:
        raise _partial_error(failed, "what was edited there is not home", f"gpuops pull --edits --cluster {row.name}")
    if refused:
        raise NodeError(
            f"not brought home: {refused[-1]}",
            f"if you know what was edited, `gpuops down` saves it in runs/{row.name}-left, beside the project",
        )
    return PulledEdits(brought)


def _pull_from_bucket(ctx: Context, row: RunRow, cluster: ClusterRow, progress: Progress) -> bool:
    """Download what a run kept in a bucket, where none of its nodes answers. Returns whether there was anything; the
    guard finishes the run."""
    if not archive.is_kept_in_bucket(row) or row.started is None:
        return False
    if cluster.state is ClusterState.UP:
        try:
            open_session(ctx, cluster, some=True).close()
            return False
        except NodeError:
            pass  # they are gone, or out of reach
    fetched = fetch_bucket(ctx, row, range(request_of(row).nodes), progress)
    for error in fetched.errors:
        raise error
    return bool(fetched.brought)


def _pull_from_nodes(ctx: Context, session: ClusterSession, row: RunRow, progress: Progress) -> None:
    """Download what a run's nodes have. Raises NodeError where some of it is missing."""
    nodes, part = range(request_of(row).nodes), session_of(session, row)
    reports: dict[int, NodeReport] = {}
    failed: dict[int, NodeError] = {}
    for index in nodes:
        with _collect_failure(failed, index):
            result = mirror(part.clients[index], row.name, index, RunHome(row.home), False, lambda *_: None)
            if result is not None:
                reports[index] = parse_report(index, result)
    if failed:
        fetch_now(session, row, progress, final=False, nodes=[index for index in nodes if index not in failed])
        raise _partial_error(failed, f"what {row.name} made there is not home", f"gpuops pull {row.name}")
    if len(reports) == len(nodes) and row.state is RunState.ENDED:
        bring_home(ctx, row, Agents(session, reports), progress)
    else:
        with progress.during(f"looking at what {row.name} made", whose=Whose.NODE):
            fetch_now(session, row, progress, final=len(reports) == len(nodes))


def pull_results(ctx: Context, name: str | None, progress: Progress) -> PulledResults:
    """Download what a run has made so far, or, when it has ended, all of it. Raises UsageError and NodeError."""
    row = pick_run(ctx, name, running=False)
    home = RunHome(row.home)
    cluster = ctx.ledger.cluster(row.cluster)
    if is_awaited(row):
        finish_late(ctx, row, progress)
    elif row.state is not RunState.HOME and not _pull_from_bucket(ctx, row, cluster, progress):
        if cluster.state is not ClusterState.UP:
            raise NodeError(
                f"{row.name} has results that are not home, and {cluster.name} is {cluster.state}",
                "`gpuops status --cloud` shows what is still there",
            )
        with closing(open_session(ctx, cluster, some=True)) as session:
            _pull_from_nodes(ctx, session, row, progress)
    files = list_outputs(home)
    if not files and not home.path.exists():
        where = "`gpuops runs` lists where each run's results are"
        if row.started is None:
            why = (row.verdict and row.verdict.say) or "never started"
            raise UsageError(f"{row.name} was {why}", where)
        raise UsageError(f"{row.name} left nothing at home", where)
    return PulledResults(row.name, home, files)
