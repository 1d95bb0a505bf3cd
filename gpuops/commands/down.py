"""`gpuops down`: end clusters. Results and edits are downloaded first; only `--force` gives them up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

from gpuops.clusters import selection
from gpuops.clusters.home_files import find_unrecorded_clusters
from gpuops.clusters.teardown import describe_shutdown, tear_down
from gpuops.core.context import Context
from gpuops.core.errors import (
    ConnectionLost,
    GpuopsError,
    Interrupted,
    MalformedAnswer,
    NodeError,
    StillBilling,
    UsageError,
    worst_exit_code,
)
from gpuops.core.format import money, span
from gpuops.core.parallel import on_each
from gpuops.core.reporting import Progress, Silent
from gpuops.ledger.rows import ClusterState, RunState
from gpuops.ledger.store import ClusterRow, LedgerUnwritable, RunRow
from gpuops.nodes.has_ended import all_machines_ended
from gpuops.nodes.session import ClusterSession, machines_of, open_session
from gpuops.runs.finish import Policy, RunOutcome, finish
from gpuops.runs.graceful_stop import stop_and_wait, stop_nodes
from gpuops.runs.launch_spec import session_of
from gpuops.runs.results.collect import Agents, Disks
from gpuops.runs.results.retention import cluster_price
from gpuops.runs.retries import final_cost
from gpuops.sync import archive
from gpuops.sync.pull_edits import save_cluster_edits

CENT = 0.01


@dataclass(frozen=True)
class DeferredFetch:
    """The download of what a run kept in a bucket; started once no machine bills any more."""

    start: Callable[[], RunOutcome]
    pending: str
    """The sentence on what is still in the bucket, and the command that fetches it."""


def pick_clusters(ctx: Context, names: Sequence[str], everything: bool) -> list[ClusterRow]:
    """The clusters that `down` means; a named one may be gone already, and the list may be empty. Raises UsageError."""
    history = ctx.ledger.clusters(live=False)
    live = [row for row in history if row.state is not ClusterState.GONE]
    if everything:
        return live
    if names:
        return [selection.find_to_end(history, name) for name in names]
    return [selection.find_only_cluster(live, ctx.folder, "gpuops down")] if live else []


def refuse_unsaved(ctx: Context, names: Sequence[str]) -> None:
    """Raise StillBilling where a run of these clusters, or of any, may have results that are not home, and the home is
    read-only."""
    for row in ctx.ledger.clusters():
        for run in ctx.ledger.runs(cluster=row.id):
            if run.state is not RunState.HOME and (not names or row.name in names):
                raise StillBilling(
                    f"results of {run.name} may not be home, and nothing can be noted in {ctx.home}; "
                    f"{row.name} is not ended",
                    f"make that folder writable, or give them up: gpuops down {row.name} --force",
                )


def leave_there(ctx: Context, rows: Sequence[ClusterRow], patterns: Sequence[str]) -> None:
    """Note in the runs of these clusters what of their results is left on the nodes (`!GLOB`). Raises UsageError."""
    for pattern in patterns:
        if not pattern.startswith("!"):
            raise UsageError(f"--out {pattern}: down only leaves files there", f"gpuops down --out '!{pattern}'")
    for row in rows if patterns else ():
        for run in ctx.ledger.runs(cluster=row.id):
            if run.state is not RunState.HOME:
                outs = [*(run.request.get("outs") or ()), *patterns]
                ctx.ledger.set_run(run.id, request={**run.request, "outs": outs})


def find_orphans(ctx: Context, names: Sequence[str]) -> list[str]:
    """Named clusters (or all) that this computer has files of and its ledger does not know."""
    orphans = find_unrecorded_clusters(ctx.home, lambda: [row.name for row in ctx.ledger.clusters()])
    return [name for name in orphans if name in names or not names]


def down(ctx: Context, rows: Sequence[ClusterRow], progress: Progress, *, force: bool) -> list[str]:
    """End clusters, their runs first. Returns a sentence for each.

    Every cluster is tried; then the worst error is raised (StillBilling, NodeError).
    """
    sentences: list[str] = []
    failed: list[GpuopsError] = []
    deferred: list[DeferredFetch] = []
    names = ", ".join(row.name for row in rows)
    ctx.signals.insist(lambda: ctx.out.say(f"\nstill ending {names}; once more leaves that to the guard"))
    for row in rows:
        try:
            if row.state is ClusterState.GONE:
                sentences.append(f"{row.name} is gone already" + (f" ({row.why})" if row.why else ""))
            else:
                per_hour = _read_price(ctx, row)
                deferred += _end_cluster(ctx, row, progress, force, failed)
                sentences.append(_describe_end(ctx, row, per_hour))
        except Interrupted:
            raise _hand_to_guard(ctx, rows) from None
        except GpuopsError as error:
            failed.append(error)
            continue
        except Exception as error:  # a bug of ours, or a node's odd answer: it keeps no other cluster alive
            say = f"{row.name} could not be ended: {type(error).__name__}: {error}"
            failed.append(
                StillBilling(say, f"please report this, and give its results up: gpuops down {row.name} --force")
            )
            continue
        ctx.out.say(sentences[-1])
    if _are_gone(ctx, rows, failed):
        _fetch_deferred(ctx, deferred, failed)
    else:  # what may still bill is said at once, not after hours
        for fetch in deferred:
            ctx.out.say(f"note: {fetch.pending}")
    if failed:
        raise _say_all_but_worst(ctx, failed)
    return sentences


def _read_price(ctx: Context, row: ClusterRow) -> float:
    """$/h of a cluster's machines; 0 where the ledger cannot be read."""
    with suppress(LedgerUnwritable):  # its teardown says so
        return cluster_price(ctx, row.id)
    return 0.0


def _describe_end(ctx: Context, row: ClusterRow, per_hour: float) -> str:
    """What is left of a cluster that is gone, and what it has cost, at `per_hour` of its machines or its offer's price,
    from a cent on. Raises LedgerUnwritable."""
    leaves = describe_shutdown(ctx.ledger.list_leftovers(row.id))
    ended = ctx.ledger.cluster(row.id)
    cost = final_cost(ended, per_hour)
    total = f"; it cost about {money(cost)} in {span((ended.ended or row.created) - row.created)}"
    return f"{row.name} is gone{leaves and f': {leaves}'}{total if cost >= CENT else ''}"


def _are_gone(ctx: Context, rows: Sequence[ClusterRow], failed: list[GpuopsError]) -> bool:
    """Whether the ledger knows the end of all; where it cannot be read, that is added to `failed`."""
    try:
        return all(ctx.ledger.cluster(row.id).state is ClusterState.GONE for row in rows)
    except LedgerUnwritable as error:
        failed.append(error)
        return False


def _fetch_deferred(ctx: Context, deferred: Sequence[DeferredFetch], failed: list[GpuopsError]) -> None:
    """Download what is in buckets. Every download is tried; errors are added to `failed`. Raises Interrupted."""
    if deferred:
        ctx.signals.insist(lambda: ctx.out.say("\nstill fetching what is in a bucket; once more leaves it there"))
    for fetch in deferred:
        try:
            missing = fetch.start().missing
        except GpuopsError as error:
            ctx.out.say(f"note: {fetch.pending}")
            failed.append(error)
            continue
        if missing:
            ctx.out.say(f"note: {missing}")


def _say_all_but_worst(ctx: Context, errors: Sequence[GpuopsError]) -> GpuopsError:
    """Print all errors but the one whose exit code counts, which is returned."""
    code = worst_exit_code(*(error.exit_code for error in errors))
    worst = next(error for error in reversed(errors) if error.exit_code == code)
    for error in errors:
        if error is not worst:
            ctx.out.say(f"error: {error.message}\nhint: {error.hint}")
    return worst


def _hand_to_guard(ctx: Context, rows: Sequence[ClusterRow]) -> Interrupted:
    """Hand clusters that are not ended yet to the guard, which downloads results before it ends them. What cannot be
    handed over is named, with the command that ends it."""
    handed, failed, says = [], [], []
    for row in rows:
        try:
            if _hand_cluster_to_guard(ctx, row.id):
                handed.append(row.name)
        except GpuopsError as error:
            failed.append(row.name)
            says.append(f"{row.name} may still be there, and is not handed to the guard: {error.message}")
    if handed or not failed:
        says.insert(0, f"the guard goes on ending {', '.join(handed)}" if handed else "what was named has ended")
    hint = f"gpuops down {' '.join(failed)}" if failed else "gpuops status shows what is left"
    return Interrupted(f"interrupted: {'; '.join(says)}", hint)


def _hand_cluster_to_guard(ctx: Context, cluster: int) -> bool:
    """False where it has ended already. Raises LedgerUnwritable, RowGone, LocalDisk."""
    row = ctx.ledger.cluster(cluster)
    if row.state is ClusterState.GONE:
        return False
    if row.state is ClusterState.CREATING:
        ctx.ledger.begin_end(row.id)
    for run in ctx.ledger.runs(cluster=row.id):
        if run.owner_process == ctx.me:
            ctx.ledger.set_run(run.id, owner_process=None)
    ctx.ledger.set_cluster(row.id, ephemeral=1, owner_process=None)
    ctx.ensure_guard(row)
    return True


def _end_cluster(
    ctx: Context, row: ClusterRow, progress: Progress, force: bool, failed: list[GpuopsError]
) -> list[DeferredFetch]:
    """End one cluster. Returns the downloads of its runs that need no machine.

    Nodes with invalid answers are ended like others, since a retry would not help; what they did not give is added to
    `failed`.
    """
    try:
        ctx.ledger.set_cluster(row.id, owner_process=ctx.me)
    except LedgerUnwritable:
        pass  # a full disk must not keep machines alive; tear_down reports it
    deferred: list[DeferredFetch] = []
    if row.state is ClusterState.UP and force:
        _save_reachable(ctx, row, progress)
    elif row.state is ClusterState.UP:
        deferred = _save_runs(ctx, row, progress, failed)
        _save_edits(ctx, row, progress, failed)
    tear_down(ctx, row.id, "gpuops down", force=force)
    return deferred


def _save_runs(ctx: Context, row: ClusterRow, progress: Progress, failed: list[GpuopsError]) -> list[DeferredFetch]:
    """Stop the runs and download their results, except for the returned downloads. Raises NodeError, which stops the
    teardown."""
    runs = [run for run in ctx.ledger.runs(cluster=row.id) if run.state in (RunState.RUNNING, RunState.ENDED)]
    if not runs:
        return []
    try:
        session = open_session(ctx, row, some=True)
    except NodeError as error:
        if isinstance(error, MalformedAnswer) or _have_ended(ctx, row):
            for run in runs:
                disks = Disks(row, error, ended=not isinstance(error, MalformedAnswer))
                try:
                    outcome = finish(ctx, run, disks, Policy(Silent()))
                except ConnectionLost as lost:
                    raise _unsaved_error(row, f"results of {run.name}", lost) from lost
                ctx.out.say(f"{run.name}: {outcome.verdict.say}; what came home is in {run.home}")
                if outcome.nonsense:
                    failed.append(_given_up_error(row, run.name, outcome.nonsense))
            return []
        raise _unsaved_error(row, f"results of {runs[-1].name}", error) from error
    with closing(session):
        if len(runs) > 1:
            _stop_all(ctx, session, runs)
        return [fetch for run in runs if (fetch := _save_run(ctx, session, run, progress, failed))]


def _stop_all(ctx: Context, session: ClusterSession, runs: Sequence[RunRow]) -> None:
    """Ask the runs of an array to stop at the same time, and its command to begin no other: one after the other they
    would bill for the grace periods of all."""
    for run in runs:
        with suppress(LedgerUnwritable):  # as in _end_cluster
            ctx.ledger.set_run(run.id, owner_process=ctx.me)
    on_each(lambda run: stop_nodes(session_of(session, run), run.name, "graceful", "gpuops down"), runs)


def _save_edits(ctx: Context, row: ClusterRow, progress: Progress, failed: list[GpuopsError]) -> None:
    """Download what was edited or made outside of runs. Raises NodeError, which stops the teardown."""
    try:
        for sentence in save_cluster_edits(ctx, row, progress):
            ctx.out.say(sentence)
    except MalformedAnswer as error:
        failed.append(_given_up_error(row, "what was edited or made there", error.message))
    except NodeError as error:
        if not _have_ended(ctx, row):
            raise _unsaved_error(row, "files that were edited there", error) from error


def _save_reachable(ctx: Context, row: ClusterRow, progress: Progress) -> None:
    """`--force`: download what nodes still give, and give up the rest."""
    try:
        for sentence in save_cluster_edits(ctx, row, progress):
            ctx.out.say(sentence)
    except Exception as error:  # a node may answer anything
        why = error.message if isinstance(error, GpuopsError) else f"{type(error).__name__}: {error}"
        ctx.out.say(f"note: {why}; what is there is given up")


def _have_ended(ctx: Context, row: ClusterRow) -> bool:
    """Whether the provider says that every machine has ended, and their disks with them, or there never was one; False
    where it is unreachable."""
    try:
        return not machines_of(ctx, row) or all_machines_ended(ctx, row)
    except GpuopsError:
        return False


def _unsaved_error(row: ClusterRow, what: str, error: NodeError) -> NodeError:
    return NodeError(
        f"{what} may not be home: {error.message}",
        f"try again, or give them up: gpuops down {row.name} --force",
    )


def _given_up_error(row: ClusterRow, what: str, why: str) -> NodeError:
    return NodeError(
        f"{what} is not all home: {why}", f"{row.name} was ended all the same: `gpuops status` looks again"
    )


def _save_run(
    ctx: Context, session: ClusterSession, run: RunRow, progress: Progress, failed: list[GpuopsError]
) -> DeferredFetch | None:
    with suppress(LedgerUnwritable):  # as in _end_cluster
        ctx.ledger.set_run(run.id, owner_process=ctx.me)
    ctx.out.say(f"stopping {run.name} and bringing its results home")
    reports = stop_and_wait(ctx, session, run, "gpuops down")
    hint = f"try again, or give them up: gpuops down {session.row.name} --force"
    policy = Policy(progress, ends_nodes=True, retry_hint=hint, known_cluster=session.row)
    outcome = finish(ctx, run, Agents(session, reports), policy)
    if outcome.nonsense:
        failed.append(_given_up_error(session.row, run.name, outcome.nonsense))
    if not outcome.deferred_fetch:
        return None
    ctx.out.say(archive.describe_deferred_fetch(run, session.row.name))
    pending = f"{run.name} is not all home: gpuops pull {run.name} fetches what is in {run.facts.bucket_place}"
    return DeferredFetch(outcome.deferred_fetch, pending)
