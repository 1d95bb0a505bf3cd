"""An attempt of the guard for a cluster without a live command: undo, follow runs, fetch results, tear down."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from itertools import islice

from gpuops.clusters.teardown import tear_down
from gpuops.core import heartbeat
from gpuops.core.context import Context
from gpuops.core.errors import ConnectionLost, GpuopsError, MalformedAnswer, NodeError
from gpuops.core.parallel import on_each
from gpuops.core.polling import Poller
from gpuops.core.provider import has_capability, is_rented
from gpuops.core.reporting import Silent
from gpuops.guard.lease_check import has_expired
from gpuops.ledger.rows import ClusterState, RunState
from gpuops.ledger.store import ClusterRow, LedgerUnwritable, RowGone, RunRow
from gpuops.nodes.has_ended import all_machines_ended, watchdogs_ended
from gpuops.nodes.session import ClusterSession, machines_of, open_session
from gpuops.runs.finish import Policy, RunOutcome, finish
from gpuops.runs.follow import make_follower
from gpuops.runs.graceful_stop import stop_nodes
from gpuops.runs.kept_in_use import KeptInUse
from gpuops.runs.launch_spec import request_of
from gpuops.runs.monitor import LiveFetch
from gpuops.runs.outcome.node_report import NodeReport, ReasonKind, lost_report
from gpuops.runs.report.report import renew_reports
from gpuops.runs.results.collect import Agents, Disks
from gpuops.runs.results.url_renewal import UrlRenewal
from gpuops.sync.pull_edits import save_cluster_edits
from gpuops.sync.run_folder import RunHome

POLL_INTERVAL_S = 1.0
NONSENSE_ATTEMPTS_MAX = 3
"""Attempts to open a session with a cluster that answers nonsense, before its results are given up."""
STOP_REASON = "its lease ended"
RETRY_HINT = "the guard tries again"
RESULTS_TIMEOUT_S = 60.0
"""How long the results of a run on an expired cluster are waited for."""


def clean_up(ctx: Context, cluster: int, *, saving: bool = True) -> None:
    """Look after one cluster that has no living owner process, or has outlived its lease.

    Raises GpuopsError where a later attempt may succeed.

    `saving`: where its lease is over, what is on its nodes is brought home first; what is rented does not wait
    for that twice.
    """
    is_owned = _take_cluster(ctx, cluster)
    row = ctx.ledger.cluster(cluster)  # read after that: its former owner may have changed it
    expired = has_expired(ctx, row)
    at_once = expired and not saving and is_rented(ctx.provisioner(row.provider))
    if row.state is ClusterState.GONE or not (is_owned or expired):
        return
    if row.state is ClusterState.CREATING:
        why = "was not ready in time" if expired else "was half-made when its command died"
        _tear_down(ctx, row, f"{row.name} {why}: undone")
    elif row.state is ClusterState.ENDING:
        if row.ready is not None and machines_of(ctx, row) and not at_once:
            _save_edits(ctx, row)
        _tear_down(ctx, row, f"{row.name}: teardown finished")
    elif at_once:
        _tear_down(ctx, row, f"{row.name} reached the end of its lease and was ended, before all of it was home")
    else:
        _tend_live(ctx, row, expired)


def _tend_live(ctx: Context, row: ClusterRow, expired: bool) -> None:
    unfinished = [run for run in ctx.ledger.runs(cluster=row.id) if run.state is not RunState.HOME]
    runs = [run for run in unfinished if not run.has_live_owner(besides=ctx.me) and _take_run(ctx, run)]
    for run in runs[-1:]:
        _note_waiting(ctx, row, run)
    if expired:
        _stop_owned_runs(ctx, row, [run for run in unfinished if run not in runs])
    ends = expired or row.ephemeral
    deferred: list[Callable[[], None]] = []
    finished: list[RunRow] = []

    def finish_one(ctx: Context, run: RunRow, later: list[Callable[[], None]] | None) -> None:
        try:
            if _finish_run(ctx, row, run, RESULTS_TIMEOUT_S if expired else None, later):
                finished.append(run)
        except Exception as error:
            if not expired or _can_retry(ctx, row, error):
                raise
            _note_given_up(ctx, f"{run.name} is not all home", error)

    def finish_in_thread(run: RunRow) -> None:
        one = ctx.for_thread(ctx.out, ctx.progress)
        with closing(one.ledger):
            finish_one(one, run, None)

    if len(runs) > 1:  # of an array: the nodes of one that has ended need not wait until the others have
        on_each(finish_in_thread, runs)
    elif runs:
        finish_one(ctx, runs[0], deferred if ends else None)
    _end_or_leave(ctx, row, expired, unfinished, finished)
    for fetch in deferred:
        fetch()


def _note_waiting(ctx: Context, row: ClusterRow, run: RunRow) -> None:
    """Leave word, once, of the indices of the run's array that nobody starts, since its command died."""
    holder = run.facts.array_holder(ctx.ledger.beats)
    if holder is None or heartbeat.lives(holder):
        return
    with suppress(LedgerUnwritable):
        runs = ctx.ledger.runs(cluster=row.id)
        latest = [one for one in runs if one.facts.array_holder(ctx.ledger.beats) == holder][-1]
        if waiting := latest.facts.array_waiting:
            ctx.ledger.set_run(latest.id, facts={**latest.facts, "array_waiting": ""})
            ctx.ledger.add_notice(
                f"the other runs of an array on {row.name} are not started, since its command died or was stopped: "
                f"--array {waiting} starts them"
            )


def _end_or_leave(
    ctx: Context, row: ClusterRow, expired: bool, unfinished: Sequence[RunRow], finished: Sequence[RunRow]
) -> None:
    """Tear down a cluster whose runs have ended, or keep it. `unfinished`: the runs that had not ended before this
    attempt; `finished`: those of them that this attempt finished."""
    now = ctx.ledger.cluster(row.id)
    if now.state is not ClusterState.UP or not (expired or now.owner_process == ctx.me or _take_cluster(ctx, row.id)):
        return  # another process tears it down, and fetches its results first
    if expired:
        _save_edits(ctx, row)
        if _confirm_lease_over(ctx, row):
            _tear_down(ctx, row, f"{row.name} reached the end of its lease and was ended")
            return
        if ctx.ledger.cluster(row.id).owner_process != ctx.me:
            return
    if row.ephemeral and not _has_other_runs(ctx, row, finished):
        why = " after its run" if unfinished else ": its command died before a run was started"
        _tear_down(ctx, row, f"{row.name} was torn down{why}")
    elif all_machines_ended(ctx, row) and all(run.state is RunState.HOME for run in ctx.ledger.runs(cluster=row.id)):
        _save_edits(ctx, row)
        _tear_down(ctx, row, f"{row.name} had ended by itself and was cleared away")
    elif not unfinished and _bills_without_nodes(ctx, row):
        _save_edits(ctx, row)
        _tear_down(ctx, row, f"{row.name} was ended: its nodes had ended by themselves, and its machines went on")
    else:
        ctx.ledger.release_ownership(row.id, ctx.me)


def _confirm_lease_over(ctx: Context, row: ClusterRow) -> bool:
    """Check the lease and begin the teardown in one transaction: another command may just have extended it."""
    try:
        return ctx.ledger.begin_end(row.id, lease=row.lease)
    except LedgerUnwritable:
        return True  # a full disk keeps nothing alive


def _has_other_runs(ctx: Context, row: ClusterRow, finished: Sequence[RunRow]) -> bool:
    """Whether the cluster has unfinished runs beside `finished`, which a full disk may still list: of a live command,
    or of one that died in the meantime, which the next attempt finishes."""
    handled = {run.id for run in finished}
    unfinished = [run for run in ctx.ledger.runs(cluster=row.id) if run.state is not RunState.HOME]
    return any(run.id not in handled or run.has_live_owner(besides=ctx.me) for run in unfinished)


def _bills_without_nodes(ctx: Context, row: ClusterRow) -> bool:
    """Whether machines that cost money are still there after their nodes have ended. Machines that can end themselves
    are checked only once their idle time may have passed."""
    can_end_itself = has_capability(ctx.provisioner(row.provider), "self_destruct") and all(
        resource.data.get("ends_itself", True) for resource in ctx.ledger.resources(row.id)
    )
    idle_s = row.lease.idle_s if row.lease.idle_s is not None else math.inf
    is_early = can_end_itself and ctx.clock.now() < (row.ready or 0.0) + idle_s
    return is_rented(ctx.provisioner(row.provider)) and not is_early and watchdogs_ended(ctx, row)


def _stop_owned_runs(ctx: Context, row: ClusterRow, runs: list[RunRow]) -> None:
    """Stop runs whose own commands live, and wait `RESULTS_TIMEOUT_S` for these to fetch the results."""
    if not runs:
        return
    try:
        with closing(open_session(ctx, row, some=True)) as session:
            for run in runs:
                stop_nodes(session, run.name, "graceful", STOP_REASON, kind="lease")
    except NodeError:
        return  # it has ended already, or is out of reach for their commands too
    except Exception as error:
        _note_given_up(ctx, f"what runs on {row.name} could not be stopped in good order", error)
        return
    for _ in Poller.every(ctx.clock, POLL_INTERVAL_S, ctx.clock.monotonic() + RESULTS_TIMEOUT_S):
        if all(ctx.ledger.run(run.id).state is RunState.HOME for run in runs):
            return


def _take_cluster(ctx: Context, cluster: int) -> bool:
    """Become the owner of a cluster that has none; where that cannot be recorded it counts all the same, since a full
    disk keeps nothing alive. Raises RowGone."""
    try:
        return ctx.ledger.take_ownership(cluster, ctx.me)
    except LedgerUnwritable:
        return not ctx.ledger.cluster(cluster).has_live_owner(besides=ctx.me)


def _take_run(ctx: Context, run: RunRow) -> bool:
    """As `_take_cluster`, for a run that is not home; False for one that is gone."""
    try:
        return ctx.ledger.take_run_ownership(run.id, ctx.me)
    except RowGone:
        return False
    except LedgerUnwritable:
        now = ctx.ledger.run(run.id)
        return now.state is not RunState.HOME and not now.has_live_owner(besides=ctx.me)


def _owns_run(ctx: Context, run: RunRow) -> bool:
    return ctx.ledger.run(run.id).owner_process == ctx.me or _take_run(ctx, run)


def _finish_run(
    ctx: Context, row: ClusterRow, run: RunRow, stop_s: float | None, deferred: list[Callable[[], None]] | None
) -> bool:
    """Follow a run to its end, fetch its results, write its verdict. Returns False where a command took it over.

    `stop_s`: the run is stopped, with so many seconds to end gracefully, and as many again to end at once; None: it
    goes on to its own end. `deferred`: fetches to be done after the machines have ended are added; None: they are kept.
    """
    if not _take_run(ctx, run):
        return False  # a command took it while another run was finished
    run = ctx.ledger.run(run.id)  # its owner may have launched it just before it died
    if _take_over_verdict(ctx, run):
        return True
    try:
        session = _open_session(ctx, row)
    except NodeError as error:
        is_given_up = stop_s is not None or isinstance(error, MalformedAnswer)
        _finish(ctx, row, run, _unreachable_source(ctx, row, error, is_given_up=is_given_up), Policy(Silent()))
        return True
    with closing(session):
        reports = _follow(ctx, session, run, stop_s)
        if reports is not None:
            policy = Policy(Silent(), deferred is not None, retry_hint=RETRY_HINT if stop_s is None else None)
            _finish(ctx, row, run, _results_source(ctx, session, run, reports), policy, deferred)
    return reports is not None


def _take_over_verdict(ctx: Context, run: RunRow) -> bool:
    """Whether a run's command brought everything home and told its verdict, but could not write it into the ledger.
    Its nodes may have ended since, and say nothing any more."""
    record = RunHome(run.home).read_record()
    if record is None or record.verdict is None or record.missing != "":
        return False
    with suppress(LedgerUnwritable):  # it has nothing left on its nodes
        ctx.ledger.set_run(run.id, state=RunState.HOME, owner_process=None, ended=record.ended, verdict=record.verdict)
    return True


def _open_session(ctx: Context, row: ClusterRow) -> ClusterSession:
    """Raises NodeError; MalformedAnswer where retries did not help."""
    for _ in islice(Poller.every(ctx.clock, POLL_INTERVAL_S), NONSENSE_ATTEMPTS_MAX - 1):
        try:
            return open_session(ctx, row, some=True)
        except MalformedAnswer:
            continue
    return open_session(ctx, row, some=True)


def _follow(ctx: Context, session: ClusterSession, run: RunRow, stop_s: float | None) -> dict[int, NodeReport] | None:
    """The reports of the nodes that ended in time; None where a command took the run over."""
    if stop_s is not None:
        stop_nodes(session, run.name, "graceful", STOP_REASON, kind="lease")
    follower = make_follower(ctx, session, run, lambda *_: None, Silent().say)
    follower.start()
    fetching, renewal = LiveFetch(session, run, ctx.clock), UrlRenewal(ctx, session, run)
    kept_in_use = KeptInUse(ctx, session, run)
    deadline = math.inf if stop_s is None else ctx.clock.monotonic() + stop_s
    is_stopping_now = False
    for attempt in Poller.every(ctx.clock, POLL_INTERVAL_S, wait=follower.wait):
        if follower.has_ended:
            break
        if ctx.ledger.cluster(session.row.id).state is not ClusterState.UP or not _owns_run(ctx, run):
            follower.quit()
            return None
        if stop_s is not None and attempt.started > deadline:
            if is_stopping_now:
                follower.quit()
                break
            stop_nodes(session, run.name, "now", STOP_REASON, kind="lease")
            is_stopping_now, deadline = True, ctx.clock.monotonic() + stop_s
        fetching.poll()
        renewal.poll()
        kept_in_use.poll()
    return dict(follower.reports)  # a copy: a thread may still add one


def _finish(
    ctx: Context,
    row: ClusterRow,
    run: RunRow,
    source: Agents | Disks | None,
    policy: Policy,
    deferred: list[Callable[[], None]] | None = None,
) -> None:
    """End a run by `runs.finish`, and leave a notice. `source`: None where no node knows the run."""
    if source is None or (isinstance(source, Disks) and run.started is None):
        with suppress(LedgerUnwritable):  # it has no results: its cluster ends all the same, and says so of its runs
            ctx.ledger.set_run(run.id, state=RunState.HOME, owner_process=None, ended=ctx.clock.now())
            ctx.ledger.add_notice(f"{run.name} was never started: its command died first")
        return
    outcome = finish(ctx, run, source, policy)
    _notify(ctx, row, run, outcome)
    if deferred is not None and (fetch := outcome.deferred_fetch):
        deferred.append(lambda: _notify(ctx, row, run, fetch()))


def _results_source(
    ctx: Context, session: ClusterSession, run: RunRow, reports: Mapping[int, NodeReport]
) -> Agents | Disks | None:
    """The agents; where all nodes ended while they were followed, the disks of hosts of the user's own, which stay.
    None: no node knows the run."""
    if reports and all(report.kind == ReasonKind.NEVER_STARTED for report in reports.values()):
        return None
    nodes = range(request_of(run).nodes)
    ended = len(reports) == len(nodes) and all(report.kind == ReasonKind.ENDED for report in reports.values())
    if ended and not is_rented(ctx.provisioner(session.row.provider)):
        error = NodeError("its node has ended", "gpuops runs shows what came of it")
        return Disks(session.row, error, reports=reports)
    running = {index: lost_report(index, f"node{index} did not stop in time", ReasonKind.UNREACHABLE)
               for index in nodes}  # fmt: skip
    return Agents(session, {**running, **reports})


def _unreachable_source(ctx: Context, row: ClusterRow, error: NodeError, *, is_given_up: bool) -> Disks:
    """The disks of nodes of which none answers. Raises `error` while a later attempt may reach them: their machines
    have not ended, and are not given up either."""
    has_ended = not is_given_up and all_machines_ended(ctx, row)
    if not (is_given_up or has_ended):
        raise error
    return Disks(row, error, ended=has_ended)


def _notify(ctx: Context, row: ClusterRow, run: RunRow, outcome: RunOutcome) -> None:
    results = f"{outcome.missing}; what came home is" if outcome.missing else "results"
    remainder = f"; still on {row.name}: {outcome.left_behind}" if outcome.left_behind else ""
    if outcome.kept:
        remainder += f"; {outcome.kept}"
    ctx.ledger.add_notice(f"{run.name}: {outcome.verdict.say}; {results} in {run.home}{remainder}")


def _save_edits(ctx: Context, row: ClusterRow) -> None:
    """Download edits before the teardown. A failure delays the end of a lease only where it can be retried.

    Raises ConnectionLost where that can wait.
    """
    try:
        for sentence in save_cluster_edits(ctx, row, Silent()):
            ctx.ledger.add_notice(sentence)
    except Exception as error:
        if _can_retry(ctx, row, error):
            raise
        _note_given_up(ctx, f"what was edited or made on {row.name} outside of runs is not all home", error)


def _can_retry(ctx: Context, row: ClusterRow, error: Exception) -> bool:
    """Whether a host of the user's own is unreachable. It costs nothing meanwhile, and what it has would be lost if it
    came back just as its cluster is torn down."""
    return isinstance(error, ConnectionLost) and not is_rented(ctx.provisioner(row.provider))


def _note_given_up(ctx: Context, what: str, error: Exception) -> None:
    """Leave a notice of what is given up: no node's answer and no full disk may keep a lease from ending."""
    why = error.message if isinstance(error, GpuopsError) else f"{type(error).__name__}: {error}"
    with suppress(GpuopsError):
        ctx.ledger.add_notice(f"{what}: {why}")


def _tear_down(ctx: Context, row: ClusterRow, say: str) -> None:
    tear_down(ctx, row.id, say, notice=True)
    renew_reports(ctx, row.id)
