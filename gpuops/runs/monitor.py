"""A run while it goes on: its output is shown, its files come home, and what a user should know of it is remarked.

`LiveFetch` fetches files in the background; `Remarks` notices silence, machines about to be preempted and TensorBoard's
files; `show_run` shows a run to its end and turns signals into a stop.
"""

from __future__ import annotations

import math
import os
import shlex
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from gpuops.core.context import Context
from gpuops.core.errors import Interrupted
from gpuops.core.format import plural, span
from gpuops.core.polling import Clock, Poller
from gpuops.core.reporting import Silent
from gpuops.core.signals import HandOver
from gpuops.ledger.store import RunRow
from gpuops.nodes.session import ClusterSession
from gpuops.runs.follow import Follower, make_follower
from gpuops.runs.graceful_stop import show_stopping, stop_nodes
from gpuops.runs.logs.lines import STREAM
from gpuops.runs.logs.view import Filter, HomeTail
from gpuops.runs.results.collect import fetch_now
from gpuops.runs.results.url_renewal import UrlRenewal
from gpuops.runs.spec import request_of
from gpuops.sync.run_folder import RunHome

LIVE_FETCH_INTERVAL_S = 10.0
"""How often files of a run that goes on are fetched."""
SILENCE_REMARK_S = 120.0
"""After how long without a byte from any rank this is remarked."""
SILENCE_REPEAT_S = 600.0
"""After how long of further silence it is remarked again."""
BOARD_POLL_INTERVAL_S = 5.0
"""How often the results are searched for TensorBoard's files."""
TENSORBOARD_FILES = "events.out.tfevents*"
"""What TensorBoard calls its files."""
NODE_EVENTS = "events.jsonl"
NOTICE_EFFECTS = {
    "reclaim": "the run stops, with a snapshot where its script makes one",
    "rebalance": "the run goes on; a snapshot was asked for",
}
"""What a provider's notice does to the run, by the notice's kind."""
SAME_END_WINDOW_S = 60.0
"""Within how many seconds the nodes' announcements of their end are one announcement: their clocks differ."""
POLL_INTERVAL_S = 0.2
HURRIED_STOP_TIMEOUT_S = 30.0
"""How long after a second signal unreachable nodes are still waited for."""


class LiveFetch:
    """A fetch in a thread of its own, every `every_s` seconds at most, never two at once."""

    def __init__(
        self,
        live: ClusterSession,
        row: RunRow,
        clock: Clock,
        every_s: float = LIVE_FETCH_INTERVAL_S,
    ) -> None:
        self._live = live
        self._row = row
        self._every_s = every_s
        self._clock = clock
        self._began = clock.monotonic()
        self._thread: threading.Thread | None = None

    def poll(self) -> None:
        """Start a fetch where one is due and none is running; returns at once."""
        now = self._clock.monotonic()
        if now - self._began < self._every_s or (self._thread is not None and self._thread.is_alive()):
            return
        self._began = now
        self._thread = threading.Thread(target=self._fetch, daemon=True, name=f"fetch {self._row.name}")
        self._thread.start()

    def _fetch(self) -> None:
        try:
            fetch_now(self._live, self._row, Silent(), final=False)
        except Exception:
            pass  # the final fetch is the one that counts, and says what is wrong


class Remarks:
    """Remarks about one run that is followed. `heard` may be called from any thread, `poll` from one."""

    def __init__(
        self,
        say: Callable[[str], None],
        home: RunHome,
        folder: Path,
        how_to_look: str,
        clock: Clock,
    ) -> None:
        self._say = say
        self._home = home
        self._folder = folder
        self._how = how_to_look
        self._clock = clock
        self._lock = threading.Lock()
        self._heard = clock.monotonic()
        self._said: float | None = None
        """When silence was last remarked."""
        self._looked = self._heard
        self._board_said = False
        self._events: dict[int, bytes] = {}
        """By node, the beginning of a line that is not complete yet."""
        self._notices: list[str] = []
        self._ends: list[float] = []
        """When the nodes asked for a snapshot before their end (UTC seconds)."""

    def heard(self, node: int, stream: str, _offset: int, data: bytes) -> None:
        """Bytes of a stream have come (`follow.OnBytes`)."""
        if stream == NODE_EVENTS:
            *lines, self._events[node] = (self._events.get(node, b"") + data).split(b"\n")
            self._notices += filter(None, map(self._notice, lines))
        if STREAM.fullmatch(stream):
            with self._lock:
                self._heard = self._clock.monotonic()

    def _notice(self, line: bytes) -> str:
        say, at = describe_notice(line)
        with self._lock:
            if at is not None and any(abs(at - before) < SAME_END_WINDOW_S for before in self._ends):
                return ""
            self._ends += [at] if at is not None else []
        return say

    def poll(self) -> None:
        self.news()
        now = self._clock.monotonic()
        with self._lock:
            silent = now - self._heard
        if silent >= SILENCE_REMARK_S if self._said is None else min(silent, now - self._said) >= SILENCE_REPEAT_S:
            self._said = now
            self._say(f"nothing was printed by any rank for {span(silent)}; what node0 does: {self._how}")
        if now - self._looked >= BOARD_POLL_INTERVAL_S and not self._board_said:
            self._looked = now
            if line := tensorboard_command(self._home, self._folder, live=True):
                self._board_said = True
                self._say(line)

    def news(self) -> None:
        """Say what the nodes announced, also once the run is over."""
        while self._notices:
            self._say(self._notices.pop(0))


def describe_notice(line: bytes) -> tuple[str, float | None]:
    """The sentence for an event of a node that announces a preemption, or the node's end; empty for any other event.
    With the end its time (UTC seconds), since every node announces it."""
    from gpuops.transport import validation

    event = validation.parse_event(line)
    reason = event.reason if event else None
    if not event or not reason:
        return "", None  # cut off, or not an event of ours
    if event.event == "notice" and reason.kind in NOTICE_EFFECTS:
        return f"{reason.say}; {NOTICE_EFFECTS[reason.kind]}", None
    if event.event == "snapshot" and reason.kind == "lease" and reason.origin is None:
        return f"{reason.say}: a snapshot was asked for", event.at
    return "", None


def busy_command(cluster: str, *, gpus: bool) -> str:
    """The command that shows what a node is busy with."""
    return f"gpuops ssh {cluster} -- {'nvidia-smi' if gpus else 'top -b -n 1'}"


def tensorboard_command(home: RunHome, folder: Path, *, live: bool = False) -> str:
    """The command that shows what a run wrote for TensorBoard, typed in `folder`; empty where it wrote nothing for it.

    `live`: the run goes on. Each version of a file that comes home replaces the one before; TensorBoard's fast loader
    keeps the first one open and shows nothing new (measured with 2.21), its other loader follows.
    """
    folders = [path.parent for path in home.out.rglob(TENSORBOARD_FILES)]
    if not folders:
        return ""
    logdir = Path(os.path.commonpath(folders))
    shown = logdir.relative_to(folder) if logdir.is_relative_to(folder) else logdir
    return f"curves: tensorboard {'--load_fast=false ' * live}--logdir {shlex.quote(str(shown))}"


def show_run(ctx: Context, live: ClusterSession, row: RunRow, tail: HomeTail) -> Follower:
    """Show a run until it has ended everywhere. A first signal stops it gracefully, a second at once."""

    def show(lines: Iterator[str]) -> None:
        for line in lines:
            ctx.out.line(line)

    following, remarks = follow_with_remarks(ctx, live, row)
    try:
        fetching, renewal = LiveFetch(live, row, ctx.clock), UrlRenewal(ctx, live, row)
        with show_waiting(ctx, row) as until_first_line:
            while not following.watch(POLL_INTERVAL_S):
                show(close_at_first_line(until_first_line, tail.new()))
                fetching.poll()
                renewal.poll()
                remarks.poll()
    except HandOver:
        following.quit()
        raise
    except Interrupted:
        with show_stopping(ctx.progress, row):
            _stop_run(ctx, live, row, following, lambda: show(tail.new()))
    show(tail.rest())
    remarks.news()
    return following


def _stop_run(ctx: Context, live: ClusterSession, row: RunRow, following: Follower, show: Callable[[], None]) -> None:
    """Stop a run and wait until every node has ended it; after a second signal, only `HURRIED_STOP_TIMEOUT_S` for nodes
    that are unreachable."""
    _halt_in_background(live, row, "graceful", "interrupted")
    deadline = math.inf
    for attempt in Poller.every(ctx.clock, POLL_INTERVAL_S, wait=following.wait):
        if following.has_ended:
            return
        show()
        if ctx.signals.hurry and deadline == math.inf:
            deadline = attempt.started + HURRIED_STOP_TIMEOUT_S
            _halt_in_background(live, row, "now", "interrupted twice")
        if attempt.started > deadline:
            following.abandon()


def _halt_in_background(live: ClusterSession, row: RunRow, how: Literal["graceful", "now"], why: str) -> None:
    """Stop without waiting for the answers: a node that gives none must not delay a second signal."""
    threading.Thread(target=stop_nodes, args=(live, row.name, how, why), daemon=True, name=f"stop {row.name}").start()


def show_waiting(ctx: Context, row: RunRow, line_filter: Filter | None = None) -> ExitStack:
    """Say that the run goes on without a line yet, until the returned stack is closed."""
    ranks = row.facts.world if request_of(row).kind == "torchrun" else 0
    on = f" on {plural(ranks, 'rank')}" if ranks else ""
    every = line_filter is None or line_filter == Filter(tail=line_filter.tail, launcher=line_filter.launcher)
    until_first_line = ExitStack()
    until_first_line.enter_context(ctx.progress.during(f"{row.name} runs{on}", aside=True))
    ctx.progress.waits("no line yet" if every else "no line that fits yet")
    return until_first_line


def close_at_first_line(until_first_line: ExitStack, lines: Iterator[str]) -> Iterator[str]:
    """The lines; `until_first_line` is closed before the first of them."""
    for line in lines:
        until_first_line.close()
        yield line


def follow_with_remarks(ctx: Context, live: ClusterSession, row: RunRow) -> tuple[Follower, Remarks]:
    """Start to follow a run to its end, with remarks about it."""
    command = busy_command(live.row.name, gpus=any(live.gpus()))
    remarks = Remarks(ctx.out.say, RunHome(row.home), ctx.folder, command, ctx.clock)
    following = make_follower(ctx, live, row, remarks.heard, ctx.out.say)
    following.start()
    return following, remarks
