"""Progress of long work: a live line on a terminal, plain lines now and then elsewhere."""

from __future__ import annotations

import atexit
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from gpuops.cli.terminal.output import Output
from gpuops.core.format import amount, calm, cut, first_few, span
from gpuops.core.platform import HERE
from gpuops.core.reporting import Progress

LINE_INTERVALS_S = ((60.0, 15.0), (600.0, 30.0), (float("inf"), 60.0))
"""(how long a phase has lasted, seconds between its plain lines): the longer it lasts, the rarer the lines."""
NODES_NAMED_MAX = 3
"""Nodes that are named where several wait for the same reason."""
REASON_CHARS_MAX = 100
"""Characters of the longest reason shown."""
REASON_CHARS_MIN = 8
"""Characters to which a narrow terminal cuts a reason, so that the elapsed time stays visible."""


@dataclass
class Phase:
    """One piece of work: its text, its start (`began`, monotonic seconds), and what it waits for."""

    text: str
    began: float
    limit_s: float | None = None
    reasons: dict[str, str] = field(default_factory=dict)
    """Reasons to wait, by the node that waits; the empty key is the whole phase."""
    label: str = ""
    done: int = 0
    total: int = 0
    moved: float = 0.0
    """When the last byte was counted."""
    said_at: float | None = None
    said_why: str = ""
    beats: int = 0
    """Plain lines printed after the first."""
    aside: bool = False
    """Whether the work is another process's, on which this one only reports."""

    @property
    def flows(self) -> bool:
        """Whether bytes are being transferred."""
        return self.done < self.total

    def why(self) -> str:
        """`node1: no SSH banner yet; node0, node2: no address yet`."""
        groups: dict[str, list[str]] = {}
        for who, reason in self.reasons.items():
            groups.setdefault(reason, []).append(who)
        return "; ".join(f"{_names(who)}{_short(reason)}" for reason, who in groups.items())

    def opening(self) -> str:
        """The first line about it."""
        limit = f" (at most {span(self.limit_s)})" if self.limit_s else ""
        return "".join([self.text, limit, *(f": {why}" for why in [self.why()] if why)])

    def line(self, now: float, room: int | None = None) -> str:
        """The phase now, its reason shortened to fit into `room` characters where possible."""
        if self.flows:
            return self.bytes(now)
        limit = self.limit_s if self.limit_s and now - self.began <= self.limit_s else None
        took = span(now - self.began) + (f" of at most {span(limit)}" if limit else "")
        why = self.why() or ("all is there, waiting for the other side" if self.total else "")
        if not why:
            return f"{self.text}: {took}"
        over = 0 if room is None else len(f"{self.text}: {why}, {took}") - room
        return f"{self.text}: {cut(why, max(REASON_CHARS_MIN, len(why) - max(over, 0)))}, {took}"

    def bytes(self, now: float) -> str:
        """`node0: 400.0 kB of 1.0 MB, 200.0 kB/s, 3 s left`."""
        stuck = now - self.moved
        rate = describe_rate(self.done, self.total, now - self.began)
        if self.flows and stuck >= LINE_INTERVALS_S[0][1]:
            rate = f"nothing for {span(stuck)}"
        return f"{self.label}: {amount(self.done)} of {amount(self.total)}, {rate}"


def _names(who: list[str]) -> str:
    named = [one for one in who if one]
    return f"{first_few(named, NODES_NAMED_MAX)}: " if named else ""


def _short(text: str) -> str:
    one_line = " ".join(calm(text).split())
    return cut(one_line, REASON_CHARS_MAX)


def describe_rate(done: int, total: int, seconds: float) -> str:
    """Rate and remaining time, from the bytes of the `seconds` so far."""
    rate = done / seconds if seconds > 0 else 0.0
    if rate <= 0:
        return "waiting"
    left = f", {span((total - done) / rate)} left" if done < total else f" in {span(seconds)}"
    return f"{amount(rate)}/s{left}"


def line_interval_s(took: float) -> float:
    """Seconds between plain lines of a phase that has lasted `took` seconds."""
    return next(every for until, every in LINE_INTERVALS_S if took < until)


FIRST_LINE_AFTER_S = 1.0
"""Seconds before the first line: shorter work prints none."""
BYTES_INTERVAL_S = 5.0
"""Seconds between plain lines about bytes."""
NEW_REASON_INTERVAL_S = 10.0
"""Seconds between plain lines where the reason to wait has changed."""
ASIDE_INTERVALS_S = (30.0, 60.0)
"""Seconds before the first plain line about another process's work, and between the next ones."""
TICK_INTERVAL_S = 0.2
"""Seconds between two frames of the live line."""
LASTING_LINE_AFTER_S = 10.0
"""Seconds from which a finished phase leaves a line on a terminal."""
BAR_CHARS = 20
FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class _Shown(ABC):
    """Common part of both: the current phase, and a thread that shows it every TICK_INTERVAL_S."""

    def __init__(self, clock: Callable[[], float], *, ticking: bool) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._phase: Phase | None = None
        self._on = threading.Event()
        self._thread: threading.Thread | None = None
        self._ticking = ticking

    @contextmanager
    def during(self, text: str, limit_s: float | None = None, *, aside: bool = False) -> Iterator[None]:
        with self._lock:
            outer = self._phase
            self._begin(Phase(text, self._clock(), limit_s, aside=aside))
        done = False
        try:
            yield
            done = True
        finally:
            with self._lock:
                self._leave(done)
                self._phase = outer
                if outer is None:
                    self._on.clear()

    def phase(self, text: str) -> None:
        with self._lock:
            self._leave(done=True)
            self._begin(Phase(text, self._clock()))

    def waits(self, why: str, who: str = "") -> None:
        with self._lock:
            if self._phase is None:
                return
            if why:
                self._phase.reasons[who] = why
            else:
                self._phase.reasons.pop(who, None)

    def advance(self, done_bytes: int, total_bytes: int, label: str) -> None:
        with self._lock:
            phase = self._phase
            if phase is None:
                return
            ended = done_bytes >= total_bytes and (phase.flows or phase.total != total_bytes)
            phase.done, phase.total, phase.label, phase.moved = done_bytes, total_bytes, label, self._clock()
            if ended and phase.moved - phase.began >= FIRST_LINE_AFTER_S:
                self._arrived(phase, phase.moved)

    def close(self) -> None:
        with self._lock:
            self._leave(done=False)
            self._phase = None
            self._on.clear()

    def tick(self) -> None:
        """Show the current phase once."""
        with self._lock:
            now = self._clock()
            if self._phase is not None and now - self._phase.began >= FIRST_LINE_AFTER_S:
                self._look(self._phase, now)

    def _begin(self, phase: Phase) -> None:
        phase.moved = phase.began
        self._phase = phase
        self._on.set()
        if self._ticking and self._thread is None:
            self._thread = threading.Thread(target=self._tick_on, daemon=True, name="progress")
            self._thread.start()
            atexit.register(self.close)  # a thread that writes while Python ends may bring it down

    def _tick_on(self) -> None:
        while self._on.wait():
            time.sleep(TICK_INTERVAL_S)
            self.tick()

    def _leave(self, done: bool) -> None:
        if self._phase is not None:
            took = f"{self._phase.text}: took {span(self._clock() - self._phase.began)}"
            worth = done and not (self._phase.total or self._phase.aside) and self._is_long(self._phase)
            self._left(took if worth else "")

    @abstractmethod
    def _look(self, phase: Phase, now: float) -> None:
        """Show the phase, where a line is due."""

    @abstractmethod
    def _arrived(self, phase: Phase, now: float) -> None:
        """The last byte was transferred."""

    @abstractmethod
    def _is_long(self, phase: Phase) -> bool:
        """Whether the end of the phase prints how long it took."""

    @abstractmethod
    def _left(self, took: str) -> None:
        """The phase is over; `took` is its closing line, or empty."""


class PlainProgress(_Shown):
    """Plain lines: the work once it takes longer than a second, its state now and then, and how long it took."""

    def __init__(
        self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic, *, ticking: bool = True
    ) -> None:
        super().__init__(clock, ticking=ticking)
        self.say = say

    def advance(self, done_bytes: int, total_bytes: int, label: str) -> None:
        with self._lock:
            super().advance(done_bytes, total_bytes, label)
            self.tick()

    def _look(self, phase: Phase, now: float) -> None:
        if phase.aside:
            first, every = ASIDE_INTERVALS_S
            if now - phase.began >= first if phase.said_at is None else now - phase.said_at >= every:
                self._print(phase, now, phase.line(now))
            return
        if phase.said_at is None:
            self._print(phase, now, phase.opening())
            if not phase.flows:
                return
            phase.said_at = now - BYTES_INTERVAL_S
        if now - phase.said_at >= self._interval_s(phase, now):
            phase.beats += not phase.flows
            self._print(phase, now, phase.line(now))

    @staticmethod
    def _interval_s(phase: Phase, now: float) -> float:
        """Seconds between two lines: shorter while bytes move and where the reason to wait has changed."""
        usual_s = line_interval_s(now - phase.began)
        if phase.flows and phase.said_at is not None and phase.moved > phase.said_at:
            return min(usual_s, BYTES_INTERVAL_S)
        if phase.why() != phase.said_why:
            return min(usual_s, NEW_REASON_INTERVAL_S)
        return usual_s

    def _print(self, phase: Phase, now: float, text: str) -> None:
        phase.said_at, phase.said_why = now, phase.why()
        self.say(text)

    def _arrived(self, phase: Phase, now: float) -> None:
        if phase.said_at is None:
            self._print(phase, now, phase.opening())
        self._print(phase, now, phase.bytes(now))

    def _is_long(self, phase: Phase) -> bool:
        return phase.beats > 0

    def _left(self, took: str) -> None:
        if took:
            self.say(took)


class TerminalProgress(_Shown):
    """One live line below everything else; long phases leave a line."""

    def __init__(self, out: Output, clock: Callable[[], float] = time.monotonic, *, ticking: bool = True) -> None:
        super().__init__(clock, ticking=ticking)
        self._out = out
        self._frame = 0

    def say(self, text: str) -> None:
        self._out.say(text)

    def _look(self, phase: Phase, now: float) -> None:
        self._frame += 1
        bar = f"{_bar(phase.done, phase.total)} " if phase.flows else ""
        room = (self._out.columns(self._out.err) or 80) - 1
        text = calm(f"{FRAMES[self._frame % len(FRAMES)]} {bar}{phase.line(now, room - 2)}")
        self._out.below(cut(text, room))

    def _arrived(self, phase: Phase, now: float) -> None:
        self._out.say(phase.bytes(now))

    def _is_long(self, phase: Phase) -> bool:
        return self._clock() - phase.began >= LASTING_LINE_AFTER_S

    def _left(self, took: str) -> None:
        self._out.below("")
        if took:
            self._out.say(took)


def _bar(done: int, total: int) -> str:
    full = BAR_CHARS * done // total
    return "█" * full + "░" * (BAR_CHARS - full)


def progress_on(out: Output, env: Mapping[str, str]) -> Progress:
    """A live line where the terminal can move its cursor, plain lines elsewhere."""
    if out.err.isatty() and HERE.moves_cursor(env):
        return TerminalProgress(out)
    return PlainProgress(out.say)
