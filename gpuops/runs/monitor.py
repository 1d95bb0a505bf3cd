"""Monitors a live run: shows its output, downloads its files and remarks on what a user should know.

`LiveFetch` downloads files in the background. `Remarks` notices silence, machines about to be preempted and files for
TensorBoard. `show_run` shows a run to its end and turns signals into a stop.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from gpuops.core.context import Context
from gpuops.core.errors import Interrupted
from gpuops.core.format import plural, span
from gpuops.core.polling import Clock, Poller
from gpuops.core.reporting import Silent
from gpuops.core.run_models import RunRequest
from gpuops.core.signals import HandOver
from gpuops.core.timings import Whose
from gpuops.ledger.store import RunRow
from gpuops.nodes.session import ClusterSession
from gpuops.runs import taken_over
from gpuops.runs.follow import Follower, make_follower
from gpuops.runs.graceful_stop import show_stopping, stop_followed
from gpuops.runs.kept_in_use import KeptInUse
from gpuops.runs.launch_spec import line_to_start_once, request_of, session_of
from gpuops.runs.logs.home_tail import EVENTS_FILE, Filter, HomeTail
from gpuops.runs.logs.lines import STREAM
from gpuops.runs.outcome.node_report import ReasonKind
from gpuops.runs.results.collect import fetch_now
from gpuops.runs.results.url_renewal import UrlRenewal
from gpuops.runs.taken_over import TakenOver
from gpuops.sync.run_folder import RunHome

if TYPE_CHECKING:
    from gpuops.transport.program_schemas import JournalEvent

LIVE_FETCH_INTERVAL_S = 10.0
"""Time between two downloads of the files of a live run."""
SILENCE_REMARK_S = 120.0
"""How long no rank has printed a byte when that is remarked on."""
SILENCE_REPEAT_S = 600.0
"""Time between two remarks on the same silence."""
BOARD_POLL_INTERVAL_S = 5.0
"""Time between two searches of the results for TensorBoard's files."""
TENSORBOARD_FILES = "events.out.tfevents*"
"""What TensorBoard calls its files."""
NOTICE_EFFECTS = {
    ReasonKind.PREEMPTED: "the run stops, with a snapshot where its script makes one",
    "rebalance": "the run goes on; a snapshot was asked for",
}
"""What a provider's notice does to the run, by the notice's kind."""
SAME_END_WINDOW_S = 60.0
"""Announcements of the end by several nodes within this time are one: the nodes' clocks differ."""
MAX_EVENT_BYTES = 1 << 20
"""So much of an event's line is kept until its end comes."""
REST_MAX_BYTES = 8 << 20
"""How much of a run's output is shown after its end: machines bill meanwhile, and a terminal takes few MB a second."""
POLL_INTERVAL_S = 0.2
HURRIED_STOP_TIMEOUT_S = 30.0
"""How long after a second signal unreachable nodes are still waited for."""


class LiveFetch:
    """Downloads a run's files in a thread, at most every `LIVE_FETCH_INTERVAL_S` and never twice at once."""

    def __init__(self, session: ClusterSession, row: RunRow, clock: Clock) -> None:
        self._session = session
        self._row = row
        self._clock = clock
        self._last_fetch_start = clock.monotonic()
        self._thread: threading.Thread | None = None

    def poll(self) -> None:
        """Start a fetch where one is due and none is running; returns at once."""
        now = self._clock.monotonic()
        is_running = self._thread is not None and self._thread.is_alive()
        if is_running or now - self._last_fetch_start < LIVE_FETCH_INTERVAL_S:
            return
        self._last_fetch_start = now
        self._thread = threading.Thread(target=self._fetch, daemon=True, name=f"fetch {self._row.name}")
        self._thread.start()

    def _fetch(self) -> None:
        try:
            fetch_now(self._session, self._row, Silent(), final=False)
        except Exception:
            pass  # the final fetch counts, and reports what is wrong


class Remarks:
    """Remarks about one run that is followed.

    Any thread may call `handle_log_bytes`, only one the other methods. `inspect_command` shows what node0 does;
    `unjoined` is what is said once where no rank joins the others.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        home: RunHome,
        inspect_command: str,
        clock: Clock,
        unjoined: str = "",
    ) -> None:
        self._say = say
        self._unjoined = unjoined
        self._joining: set[str] = set()
        """`unjoined`, `joined`: which of these events any node has had. Both may come at once, hours later."""
        self._home = home
        self._inspect_command = inspect_command
        self._clock = clock
        self._lock = threading.Lock()
        self._last_output_at = clock.monotonic()
        self._last_silence_remark: float | None = None
        """When silence was last remarked on (monotonic seconds)."""
        self._last_board_search = self._last_output_at
        self._has_announced_board = False
        self._partial_lines: dict[int, bytes] = {}
        """For each node, the start of an event line whose end has not come yet."""
        self._notices: list[str] = []
        self._announced_ends: list[float] = []
        """When the nodes asked for a snapshot before their end (UTC seconds)."""

    def handle_log_bytes(self, node: int, stream: str, _offset: int, data: bytes) -> None:
        """Take bytes of a stream from the Follower (a `log_mirror.OnBytes`)."""
        if stream == EVENTS_FILE:
            from gpuops.transport import validation

            *lines, last = (self._partial_lines.get(node, b"") + data).split(b"\n")
            self._partial_lines[node] = last[:MAX_EVENT_BYTES]  # a cut one cannot be read, and is passed over
            events = [event for event in map(validation.parse_event, lines) if event]
            self._joining |= {"unjoined", "joined"} & {event.event for event in events}
            self._notices += filter(None, map(self._describe_new_notice, events))
        if STREAM.fullmatch(stream):
            with self._lock:
                self._last_output_at = self._clock.monotonic()

    def _describe_new_notice(self, event: JournalEvent) -> str:
        say, at = describe_notice(event)
        with self._lock:
            if at is not None and any(abs(at - before) < SAME_END_WINDOW_S for before in self._announced_ends):
                return ""
            self._announced_ends += [at] if at is not None else []
        return say

    def poll(self, *, cut_off: bool = False) -> None:
        """Make the remarks that are due. `cut_off`: a node cannot be heard now, which is another thing than silence."""
        self.say_notices()
        if self._joining == {"unjoined"} and self._unjoined:
            say, self._unjoined = self._unjoined, ""
            self._say(say)
        now = self._clock.monotonic()
        if cut_off:
            with self._lock:
                self._last_output_at = now
        self._remark_on_silence(now)
        if now - self._last_board_search >= BOARD_POLL_INTERVAL_S and not self._has_announced_board:
            self._last_board_search = now
            if line := tensorboard_command(self._home):
                self._has_announced_board = True
                self._say(line)

    def _remark_on_silence(self, now: float) -> None:
        with self._lock:
            silent_s = now - self._last_output_at
        if self._last_silence_remark is None:
            is_due = silent_s >= SILENCE_REMARK_S
        else:
            is_due = min(silent_s, now - self._last_silence_remark) >= SILENCE_REPEAT_S
        if is_due:
            self._last_silence_remark = now
            self._say(f"nothing was printed by any rank for {span(silent_s)}; what node0 does: {self._inspect_command}")

    def say_notices(self) -> None:
        """Say what the nodes have announced since the last call. Also called after the end of the run."""
        while self._notices:
            self._say(self._notices.pop(0))


def describe_unjoined(request: RunRequest) -> str:
    """What is said where no rank joins the others; empty for our own programs, which do."""
    if request.kind != "torchrun" or request.workload:
        return ""
    ends = ""
    if request.join_timeout_s is not None:
        ends = (
            f"; after {request.join_timeout_s / 60:g} min without a line and without work the run ends (--join-timeout)"
        )
    return (
        "no rank has joined the others yet: the program still imports or prepares (one that starts its own processes "
        f"is for `{line_to_start_once(request)}`){ends}"
    )


def describe_notice(event: JournalEvent) -> tuple[str, float | None]:
    """The sentence for an event that announces a preemption or the node's end; empty for any other.

    For an end also its time (UTC seconds): every node announces it, and the times show that it is the same one.
    """
    reason = event.reason
    if reason is None:
        return "", None
    if event.event == "notice" and reason.kind in NOTICE_EFFECTS:
        return f"{reason.say}; {NOTICE_EFFECTS[reason.kind]}", None
    if event.event == "snapshot" and reason.kind == ReasonKind.LEASE and reason.origin is None:
        return f"{reason.say}: a snapshot was asked for", event.at
    return "", None


def busy_command(cluster: str, *, gpus: bool, node: int = 0) -> str:
    """The command that shows what a node is busy with."""
    which = f" --node {node}" if node else ""
    return f"gpuops ssh {cluster}{which} -- {'nvidia-smi' if gpus else 'top -b -n 1'}"


def board_folder(home: RunHome) -> Path | None:
    """The folder of all that a run wrote for TensorBoard and that is home; None where it wrote nothing for it."""
    folders = [path.parent for path in home.out.rglob(TENSORBOARD_FILES)]
    return Path(os.path.commonpath(folders)) if folders else None


def tensorboard_command(home: RunHome) -> str:
    """A line with the command that shows what a run wrote for TensorBoard; empty where it wrote nothing for it."""
    return f"curves: gpuops tensorboard {home.path.name}" if board_folder(home) else ""


def show_run(ctx: Context, session: ClusterSession, row: RunRow, tail: HomeTail) -> Follower:
    """Show a run until it has ended everywhere. A first signal stops it gracefully, a second at once. Raises HandOver,
    TakenOver."""
    with ctx.progress.timings.during("from its first line on", Whose.SCRIPT):
        return _show_to_end(ctx, session, row, tail)


def _show_to_end(ctx: Context, session: ClusterSession, row: RunRow, tail: HomeTail) -> Follower:
    def show(lines: Iterator[str]) -> None:
        for line in lines:
            ctx.out.line(line)

    follower, remarks = follow_with_remarks(ctx, session, row)

    def has_ended() -> bool:
        return follower.has_ended

    try:
        live_fetch, renewal = LiveFetch(session, row, ctx.clock), UrlRenewal(ctx, session, row)
        kept_in_use = KeptInUse(ctx, session, row)
        with show_waiting(ctx, row) as until_first_line:
            while not follower.watch(POLL_INTERVAL_S):
                show(close_at_first_line(until_first_line, tail.new(until=has_ended)))
                live_fetch.poll()
                renewal.poll()
                kept_in_use.poll()
                remarks.poll(cut_off=follower.is_cut_off)
                taken_over.check_run(ctx, row)
                ctx.signals.check()
    except (HandOver, TakenOver):
        follower.quit()
        raise
    except Interrupted:
        with show_stopping(ctx.progress, row):
            _stop_run(ctx, follower, lambda: show(tail.new(until=has_ended)))
    if count := tail.skip(REST_MAX_BYTES):
        is_, them = ("is", "it") if count == 1 else ("are", "them")
        ctx.out.say(f"note: {plural(count, 'line')} {is_} not shown: `gpuops logs {row.name}` has {them}")
    show(tail.rest())
    remarks.say_notices()
    return follower


def _stop_run(ctx: Context, follower: Follower, show: Callable[[], None]) -> None:
    """Stop a run and wait until every node has ended it; after a second signal, only `HURRIED_STOP_TIMEOUT_S` for nodes
    that are unreachable."""
    stop_followed(follower, "graceful", "interrupted")
    deadline = math.inf
    for attempt in Poller.every(ctx.clock, POLL_INTERVAL_S, wait=follower.wait):
        if follower.has_ended:
            return
        show()
        if ctx.signals.hurry and deadline == math.inf:
            deadline = attempt.started + HURRIED_STOP_TIMEOUT_S
            stop_followed(follower, "now", "interrupted twice")
        if attempt.started > deadline:
            follower.abandon()


def show_waiting(ctx: Context, row: RunRow, line_filter: Filter | None = None) -> ExitStack:
    """Say that the run goes on without a line yet, until the returned stack is closed."""
    ranks = row.facts.world if request_of(row).kind == "torchrun" else 0
    on = f" on {plural(ranks, 'rank')}" if ranks else ""
    every = line_filter is None or line_filter == Filter(tail=line_filter.tail, launcher=line_filter.launcher)
    until_first_line = ExitStack()
    until_first_line.enter_context(ctx.progress.during(f"{row.name} runs{on}", aside=True, whose=Whose.SCRIPT))
    ctx.progress.waits("no line yet" if every else "no line that fits yet")
    return until_first_line


def close_at_first_line(until_first_line: ExitStack, lines: Iterator[str]) -> Iterator[str]:
    """The lines; `until_first_line` is closed before the first of them."""
    for line in lines:
        until_first_line.close()
        yield line


def follow_with_remarks(ctx: Context, session: ClusterSession, row: RunRow) -> tuple[Follower, Remarks]:
    """Start to follow a run to its end, with remarks about it."""
    session = session_of(session, row)
    command = busy_command(session.row.name, gpus=any(session.gpus()), node=session.number(0))
    remarks = Remarks(ctx.out.say, RunHome(row.home), command, ctx.clock, describe_unjoined(request_of(row)))
    follower = make_follower(ctx, session, row, remarks.handle_log_bytes, ctx.out.say)
    follower.start()
    return follower, remarks
