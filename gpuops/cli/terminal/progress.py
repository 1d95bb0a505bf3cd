"""One piece of work in words: what goes on, what it waits for, how far it is, and how long it may be silent."""

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

BEATS = ((60.0, 15.0), (600.0, 30.0), (float("inf"), 60.0))
"""(how long it has lasted, how often it is said that it goes on), in seconds."""
NAMED = 3
"""So many nodes that wait for the same are named."""
REASON = 100
"""The longest reason shown, in characters."""
SHORTEST = 8
"""To so many it is cut where a terminal is narrow: how long it takes is always seen."""


@dataclass
class Phase:
    """What goes on, since when (`began`, a monotonic clock's seconds), and what it waits for."""

    text: str
    began: float
    limit_s: float | None = None
    reasons: dict[str, str] = field(default_factory=dict)
    """By who waits; empty: all."""
    label: str = ""
    done: int = 0
    total: int = 0
    moved: float = 0.0
    """When the last byte was counted."""
    said_at: float | None = None
    said_why: str = ""
    beats: int = 0
    """How many lines said that it goes on."""
    aside: bool = False
    """It is no work of ours: somebody else's goes on."""

    @property
    def flows(self) -> bool:
        """Whether bytes are on their way."""
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
        """How it stands; in `room` characters where a shorter reason is enough for that."""
        if self.flows:
            return self.bytes(now)
        limit = self.limit_s if self.limit_s and now - self.began <= self.limit_s else None
        took = span(now - self.began) + (f" of at most {span(limit)}" if limit else "")
        why = self.why() or ("all is there, waiting for the other side" if self.total else "")
        if not why:
            return f"{self.text}: {took}"
        over = 0 if room is None else len(f"{self.text}: {why}, {took}") - room
        return f"{self.text}: {cut(why, max(SHORTEST, len(why) - max(over, 0)))}, {took}"

    def bytes(self, now: float) -> str:
        """`node0: 400.0 kB of 1.0 MB, 200.0 kB/s, 3 s left`."""
        stuck = now - self.moved
        rate = pace(self.done, self.total, now - self.began)
        if self.flows and stuck >= BEATS[0][1]:
            rate = f"nothing for {span(stuck)}"
        return f"{self.label}: {amount(self.done)} of {amount(self.total)}, {rate}"


def _names(who: list[str]) -> str:
    named = [one for one in who if one]
    return f"{first_few(named, NAMED)}: " if named else ""


def _short(text: str) -> str:
    one_line = " ".join(calm(text).split())
    return cut(one_line, REASON)


def pace(done: int, total: int, seconds: float) -> str:
    """Rate and time left, from what `seconds` have brought so far."""
    rate = done / seconds if seconds > 0 else 0.0
    if rate <= 0:
        return "waiting"
    left = f", {span((total - done) / rate)} left" if done < total else f" in {span(seconds)}"
    return f"{amount(rate)}/s{left}"


def beat_s(took: float) -> float:
    """How long what has lasted `took` seconds may be silent."""
    return next(every for until, every in BEATS if took < until)


QUIET_S = 1.0
"""Work that is done sooner is not worth a line."""
EVERY_S = 5.0
"""A plain line about bytes at most this often."""
NEWS_S = 10.0
"""A plain line for another reason to wait at most this often."""
ASIDE = (30.0, 60.0)
"""When a plain line first says what goes on aside, and how often from then on, in seconds."""
TICK_S = 0.2
LONG_S = 10.0
"""On a terminal, what took longer leaves a line behind."""
BAR = 20
FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class _Shown(ABC):
    """What both ways of showing have in common: the phase there is, and a thread that looks at it now and then."""

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
            if ended and phase.moved - phase.began >= QUIET_S:
                self._arrived(phase, phase.moved)

    def close(self) -> None:
        with self._lock:
            self._leave(done=False)
            self._phase = None
            self._on.clear()

    def tick(self) -> None:
        """One look at what goes on."""
        with self._lock:
            now = self._clock()
            if self._phase is not None and now - self._phase.began >= QUIET_S:
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
            time.sleep(TICK_S)
            self.tick()

    def _leave(self, done: bool) -> None:
        if self._phase is not None:
            took = f"{self._phase.text}: took {span(self._clock() - self._phase.began)}"
            worth = done and not (self._phase.total or self._phase.aside) and self._is_long(self._phase)
            self._left(took if worth else "")

    @abstractmethod
    def _look(self, phase: Phase, now: float) -> None:
        """Show how it stands, where that is worth it."""

    @abstractmethod
    def _arrived(self, phase: Phase, now: float) -> None:
        """The last byte has come."""

    @abstractmethod
    def _is_long(self, phase: Phase) -> bool:
        """Whether it is worth a line what it took."""

    @abstractmethod
    def _left(self, took: str) -> None:
        """It is over."""


class PlainProgress(_Shown):
    """What goes on, once it takes longer than a second; then how it stands, now and then; and what it took."""

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
            first, every = ASIDE
            if now - phase.began >= first if phase.said_at is None else now - phase.said_at >= every:
                self._tell(phase, now, phase.line(now))
            return
        if phase.said_at is None:
            self._tell(phase, now, phase.opening())
            if not phase.flows:
                return
            phase.said_at = now - EVERY_S
        took, quiet, news = now - phase.began, now - phase.said_at, phase.why() != phase.said_why
        flowing = phase.flows and phase.moved > phase.said_at
        if quiet >= min(beat_s(took), EVERY_S if flowing else NEWS_S if news else beat_s(took)):
            phase.beats += not phase.flows
            self._tell(phase, now, phase.line(now))

    def _tell(self, phase: Phase, now: float, text: str) -> None:
        phase.said_at, phase.said_why = now, phase.why()
        self.say(text)

    def _arrived(self, phase: Phase, now: float) -> None:
        if phase.said_at is None:
            self._tell(phase, now, phase.opening())
        self._tell(phase, now, phase.bytes(now))

    def _is_long(self, phase: Phase) -> bool:
        return phase.beats > 0

    def _left(self, took: str) -> None:
        if took:
            self.say(took)


class TerminalProgress(_Shown):
    """One live line under everything else; what took long leaves a line behind."""

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
        return self._clock() - phase.began >= LONG_S

    def _left(self, took: str) -> None:
        self._out.below("")
        if took:
            self._out.say(took)


def _bar(done: int, total: int) -> str:
    full = BAR * done // total
    return "█" * full + "░" * (BAR - full)


def progress_on(out: Output, env: Mapping[str, str]) -> Progress:
    """The progress that fits: live on a terminal that can move its cursor, plain lines elsewhere."""
    if out.err.isatty() and HERE.moves_cursor(env):
        return TerminalProgress(out)
    return PlainProgress(out.say)
