"""`gpuops logs`: a run's output from its files here, after newer bytes were downloaded from its nodes."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, closing

from gpuops.commands.stop import pick_run
from gpuops.core.context import Context
from gpuops.core.errors import GpuopsError, Interrupted, UsageError
from gpuops.core.format import ago
from gpuops.core.polling import Poller
from gpuops.core.signals import Signals
from gpuops.ledger.rows import ClusterState, RunState
from gpuops.ledger.store import RunRow
from gpuops.nodes.session import ClusterSession, open_session
from gpuops.runs.launch_spec import request_of, session_of
from gpuops.runs.logs.home_tail import Filter, HomeTail, LogTimes, last_output_time
from gpuops.runs.logs.lines import LineMerger
from gpuops.runs.monitor import close_at_first_line, follow_with_remarks, show_waiting
from gpuops.runs.outcome.verdict import NOT_STARTED
from gpuops.sync.log_mirror import mirror
from gpuops.sync.run_folder import RunHome

POLL_INTERVAL_S = 0.2
"""Seconds between two looks for new lines: short enough for a person who watches."""
TIME_NOTE_DELAY_S = 5.0
"""Seconds after which the times of downloaded lines are here as well: nodes send them after the bytes."""
VERDICT_TIMEOUT_S = 30.0
"""Seconds that `logs -f` waits at the end for the process that finishes the run to write the verdict."""


def show_logs(ctx: Context, name: str | None, log_filter: Filter, *, follow: bool) -> None:
    """Print a run's lines; with `follow`, until the run ends, or Ctrl-C or a closed stdout detaches."""
    row = pick_run(ctx, name, running=False)
    if follow and row.state is RunState.STARTING:
        waited = _wait_for_start(ctx, row)
        if waited is None:
            return
        row = waited
    if why := _why_not_started(row):
        ctx.out.say(why)
        return
    check_filter(row, log_filter)
    if row.state is RunState.RUNNING and ctx.ledger.cluster(row.cluster).state is ClusterState.UP:
        _show_live(ctx, row, log_filter, follow)
        return
    _print_all(ctx, row, log_filter)
    if follow:
        _say_verdict(ctx, row)


def _wait_for_start(ctx: Context, row: RunRow) -> RunRow | None:
    """The row once the run is started or given up; None where this command was detached before."""
    ctx.out.say(f"{row.name} is still being prepared")
    try:
        with Signals():
            for _ in Poller.every(ctx.clock, POLL_INTERVAL_S):
                row = ctx.ledger.run(row.id)
                if row.state is not RunState.STARTING:
                    break
                _detach_without_reader(ctx)
    except Interrupted:
        ctx.out.say(f"detached; {row.name} goes on")
        return None
    return row


def _why_not_started(row: RunRow) -> str:
    """Why the run has no lines yet, or never will; empty where it may have some."""
    if row.state is RunState.STARTING and row.has_live_owner():
        return f"{row.name} is still being prepared"
    say = row.verdict.say if row.verdict else ""
    was_given_up = say.startswith(NOT_STARTED) or (row.started is None and not row.home.is_dir())
    if row.state is RunState.STARTING or (row.state is RunState.HOME and was_given_up):
        return f"{row.name} was not started: {say.removeprefix(NOT_STARTED) or 'its command died first'}"
    return ""


def check_filter(row: RunRow, log_filter: Filter) -> None:
    """Raises UsageError for a node or rank that the run never had: an empty answer would look like silence."""
    if log_filter.rank is not None and request_of(row).kind == "command":
        raise UsageError(
            f"{row.name} is a plain command: it has no ranks", f"gpuops logs {row.name} shows all that it says"
        )
    nodes, ranks = request_of(row).nodes, row.facts.world
    for what, asked, count in (("node", log_filter.node, nodes), ("rank", log_filter.rank, ranks)):
        if asked is not None and not 0 <= asked < count:
            existing = f"{what}s 0 to {count - 1}" if count > 1 else f"{what} 0 alone" if count else f"no {what}s"
            raise UsageError(
                f"{row.name} has {existing}, not {what} {asked}", f"gpuops logs {row.name} shows all of them"
            )


def _make_tail(ctx: Context, row: RunRow, log_filter: Filter) -> HomeTail:
    """The run's lines so far and those that follow. Raises UsageError for `--since` where their times were not
    recorded."""
    home = RunHome(row.home)
    times = LogTimes(home, row.facts.skews)
    if (
        log_filter.since is not None
        and not times
        and (row.started or 0.0) < log_filter.since
        and _has_untimed_lines(ctx, row)
    ):
        raise UsageError(
            f"the times of {row.name}'s lines were not recorded: an older gpuops started it",
            "leave out --since; --tail 50 works",
        )
    return HomeTail(home, make_merger(ctx, row, log_filter), times=times, since=log_filter.since)


def _has_untimed_lines(ctx: Context, row: RunRow) -> bool:
    """Whether the run has lines whose times will not be recorded any more."""
    latest = last_output_time(row.home)
    return latest is not None and (row.state is not RunState.RUNNING or ctx.clock.now() - latest > TIME_NOTE_DELAY_S)


def make_merger(ctx: Context, row: RunRow, log_filter: Filter) -> LineMerger:
    """How this run's lines look: prefixed where there are several ranks, with the filters asked for."""
    request = request_of(row)
    return LineMerger(
        nodes=request.nodes,
        ranks=row.facts.world or 1,
        kind=request.kind,
        node=log_filter.node,
        rank=log_filter.rank,
        colour=ctx.out.colour,
        launcher=log_filter.launcher,
        grep=log_filter.grep,
    )


def _print(ctx: Context, lines: Iterator[str], last: int | None = None) -> int:
    """Print lines, or the last of them. Returns how many."""
    count = 0
    for line in lines if last is None else deque(lines, last):
        count += 1
        if ctx.out.as_json:
            ctx.out.result("log", {"line": line}, [])
        else:
            ctx.out.line(line)
    return count


def _print_new(ctx: Context, tail: HomeTail, first: ExitStack, last: int | None = None) -> None:
    """Print what has come since the last call. Raises Interrupted once nobody reads it any more."""
    _print(ctx, close_at_first_line(first, tail.new()), last)
    _detach_without_reader(ctx)


def _detach_without_reader(ctx: Context) -> None:
    """Raise Interrupted where stdout is closed, as by `| head`: a run may print nothing for hours."""
    if ctx.out.is_closed:
        raise Interrupted("nobody reads stdout any more")


def _print_all(ctx: Context, row: RunRow, log_filter: Filter) -> None:
    """Print the lines that are here, or one sentence where there are none."""
    if not _print(ctx, _make_tail(ctx, row, log_filter).rest(), log_filter.tail):
        ctx.out.say(_explain_no_lines(ctx, row, log_filter))


def _explain_no_lines(ctx: Context, row: RunRow, log_filter: Filter) -> str:
    """Why no line was printed: the ranks asked for printed nothing, or nothing that fits the filters."""
    merger = make_merger(ctx, row, dataclasses.replace(log_filter, grep=None, since=None))
    if any(True for _ in HomeTail(RunHome(row.home), merger).rest()):
        latest = LogTimes(RunHome(row.home), row.facts.skews).latest()
        last = f"; its last line is from {ago(latest)}" if latest is not None else ""
        return f"no line of {row.name} fits{last}"
    rank = f"rank {log_filter.rank} of " if log_filter.rank is not None else ""
    node = f" on node{log_filter.node}" if log_filter.node is not None else ""
    return f"{rank}{row.name}{node} " + (
        "has printed no line yet" if row.state is RunState.RUNNING else "printed nothing"
    )


def _show_live(ctx: Context, row: RunRow, log_filter: Filter, follow: bool) -> None:
    """Print the lines of a live run. Ctrl-C and a closed stdout only detach, hence signals of its own."""
    try:
        with Signals():
            _print_live(ctx, row, log_filter, follow)
    except Interrupted:
        ctx.out.say(f"detached; {row.name} goes on")


def _print_live(ctx: Context, row: RunRow, log_filter: Filter, follow: bool) -> None:
    try:
        session = open_session(ctx, ctx.ledger.cluster(row.cluster), some=True)
    except GpuopsError as error:
        _print_unreachable(ctx, row, log_filter, follow, error)
        return
    with closing(session):
        fetch_lines(ctx, session, row)
        if not follow:
            _print_all(ctx, row, log_filter)
            return
        tail = _make_tail(ctx, row, log_filter)
        with show_waiting(ctx, row, log_filter) as first:
            _print_new(ctx, tail, first, log_filter.tail)
            _follow_lines(ctx, session, row, tail, first)
        _print(ctx, tail.rest())
        _say_verdict(ctx, row)


def fetch_lines(ctx: Context, session: ClusterSession, row: RunRow) -> None:
    """Download what the run's nodes have written by now; one that does not answer is only told."""
    part = session_of(session, row)
    for index in range(request_of(row).nodes):
        try:
            mirror(part.clients[index], row.name, index, RunHome(row.home), False, lambda *_: None)
        except GpuopsError as error:
            ctx.out.say(f"note: {error.message}; its lines so far are those at home")


def _print_unreachable(ctx: Context, row: RunRow, log_filter: Filter, follow: bool, error: GpuopsError) -> None:
    """Print the lines where no node is reachable: those here, and those that the run's owner process downloads."""
    ctx.out.say(f"note: {error.message}; its lines so far are those at home")
    if not follow:
        _print_all(ctx, row, log_filter)
        return
    tail = _make_tail(ctx, row, log_filter)
    with show_waiting(ctx, row, log_filter) as first:
        _print_new(ctx, tail, first, log_filter.tail)
        for _ in Poller.every(ctx.clock, POLL_INTERVAL_S):
            is_running = ctx.ledger.run(row.id).state is RunState.RUNNING
            _print_new(ctx, tail, first)
            if not is_running:
                break
    _print(ctx, tail.rest())
    _say_verdict(ctx, row)


def _follow_lines(ctx: Context, session: ClusterSession, row: RunRow, tail: HomeTail, first: ExitStack) -> None:
    following, remarks = follow_with_remarks(ctx, session, row)
    while not following.watch(POLL_INTERVAL_S):
        _print_new(ctx, tail, first)
        remarks.poll(cut_off=following.is_cut_off)
        if ctx.ledger.run(row.id).state is RunState.HOME:  # another process has finished it
            following.quit()
            break
    remarks.say_notices()


def _say_verdict(ctx: Context, row: RunRow) -> None:
    """Print the verdict once the process that finishes the run (its command, or the guard) has written it."""
    for _ in Poller.every(ctx.clock, POLL_INTERVAL_S, ctx.clock.monotonic() + VERDICT_TIMEOUT_S):
        verdict = ctx.ledger.run(row.id).verdict
        if verdict:
            ctx.out.say(verdict.say)
            if (record := RunHome(row.home).read_record()) and record.report:
                ctx.out.say(f"report: {record.report}")
            return
    ctx.out.say(f"{row.name} has ended on its nodes; `gpuops runs` shows what came of it")
