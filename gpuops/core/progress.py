"""How long work and waits are shown: a few plain lines for pipes and logs, one live line on a terminal. Always stderr.

A story says what it is at (`during`, `phase`), what that waits for (`waits`) and how far it is (`advance`). What is
done within a second is not worth a word; what drags is never silent for a minute.
"""

from __future__ import annotations

import atexit
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from gpuops.core.output import Output, calm, columns, cut, span
from gpuops.core.phase import Phase, beat_s
from gpuops.core.platform import HERE

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


class Progress(Protocol):
    """Where work tells how far it is. Safe to call from several threads."""

    def during(self, text: str, limit_s: float | None = None, *, aside: bool = False) -> AbstractContextManager[None]:
        """For as long as the block: this goes on, `limit_s` seconds at most where that is known.

        `aside`: it is no work of ours. It leaves no line behind, and a log hears of it rarely."""

    def phase(self, text: str) -> None:
        """From here on this goes on, until the next phase or the end of the block around it."""

    def waits(self, why: str, who: str = "") -> None:
        """What it waits for, of one among several (`node1`) or of all; empty: no more."""

    def advance(self, done_bytes: int, total_bytes: int, label: str) -> None:
        """So much of so much, in all; `done_bytes == total_bytes` ends it."""

    def say(self, text: str) -> None:
        """One line of prose."""

    def close(self) -> None:
        """Free the terminal; may be called twice."""


class Silent:
    """For work that nobody watches."""

    def during(
        self,
        text: str,  # noqa: ARG002
        limit_s: float | None = None,  # noqa: ARG002
        *,
        aside: bool = False,  # noqa: ARG002
    ) -> AbstractContextManager[None]:
        return nullcontext()

    def phase(self, text: str) -> None:
        pass

    def waits(self, why: str, who: str = "") -> None:
        pass

    def advance(self, done_bytes: int, total_bytes: int, label: str) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


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
        room = (columns(self._out.err) or 80) - 1
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
