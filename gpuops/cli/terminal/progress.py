"""Progress of long work: a live line on a terminal, plain lines now and then elsewhere."""

from __future__ import annotations

import atexit
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from gpuops.cli.terminal.output import Output
from gpuops.cli.terminal.phase import Phase, line_interval_s
from gpuops.core.format import calm, cut, span
from gpuops.core.platform import HERE
from gpuops.core.reporting import Progress
from gpuops.core.timings import Timings, Whose, process_began

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


class _PhaseDisplay(ABC):
    """The current phase, and a thread that shows it every TICK_INTERVAL_S; a subclass decides how."""

    def __init__(self, clock: Callable[[], float], *, ticking: bool) -> None:
        self.timings = Timings(clock)
        self._clock = clock
        self._lock = threading.RLock()
        self._phase: Phase | None = None
        self._is_active = threading.Event()
        self._thread: threading.Thread | None = None
        self._ticking = ticking

    @contextmanager
    def during(
        self, text: str, limit_s: float | None = None, *, whose: Whose = Whose.GPUOPS, aside: bool = False
    ) -> Iterator[None]:
        with self._lock:
            outer = self._phase
            self._begin_phase(Phase(text, self._clock(), limit_s, aside=aside))
        done = False
        try:
            with self.timings.during(text, whose):
                yield
            done = True
        finally:
            with self._lock:
                self._end_phase(done)
                self._phase = outer
                if outer is None:
                    self._is_active.clear()

    def phase(self, text: str, whose: Whose = Whose.GPUOPS) -> None:
        self.timings.turn_to(text, whose)
        with self._lock:
            self._end_phase(done=True)
            self._begin_phase(Phase(text, self._clock()))

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
                self._show_last_byte(phase, phase.moved)

    def close(self) -> None:
        with self._lock:
            self._end_phase(done=False)
            self._phase = None
            self._is_active.clear()

    def tick(self) -> None:
        """Show the current phase once."""
        with self._lock:
            now = self._clock()
            if self._phase is not None and now - self._phase.began >= FIRST_LINE_AFTER_S:
                self._show(self._phase, now)

    def _begin_phase(self, phase: Phase) -> None:
        phase.moved = phase.began
        self._phase = phase
        self._is_active.set()
        if self._ticking and self._thread is None:
            self._thread = threading.Thread(target=self._tick_on, daemon=True, name="progress")
            self._thread.start()
            atexit.register(self.close)  # a thread that writes while Python ends may bring it down

    def _tick_on(self) -> None:
        while self._is_active.wait():
            time.sleep(TICK_INTERVAL_S)
            self.tick()

    def _end_phase(self, done: bool) -> None:
        if self._phase is not None:
            closing = f"{self._phase.text}: took {span(self._clock() - self._phase.began)}"
            is_shown = done and not (self._phase.total or self._phase.aside) and self._is_long(self._phase)
            self._show_end(closing if is_shown else "")

    @abstractmethod
    def _show(self, phase: Phase, now: float) -> None:
        """Show the phase, where a line is due."""

    @abstractmethod
    def _show_last_byte(self, phase: Phase, now: float) -> None:
        """The last byte was transferred."""

    @abstractmethod
    def _is_long(self, phase: Phase) -> bool:
        """Whether the end of the phase prints how long it took."""

    @abstractmethod
    def _show_end(self, closing: str) -> None:
        """The phase is over; `closing` is its last line, or empty."""


class PlainProgress(_PhaseDisplay):
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

    def _show(self, phase: Phase, now: float) -> None:
        if phase.aside:
            first_s, interval_s = ASIDE_INTERVALS_S
            if now - phase.began >= first_s if phase.printed_at is None else now - phase.printed_at >= interval_s:
                self._print(phase, now, phase.line(now))
            return
        if phase.printed_at is None:
            self._print(phase, now, phase.first_line())
            if not phase.flows:
                return
            phase.printed_at = now - BYTES_INTERVAL_S
        if now - phase.printed_at >= self._interval_s(phase, now):
            phase.repeats += not phase.flows
            self._print(phase, now, phase.line(now))

    @staticmethod
    def _interval_s(phase: Phase, now: float) -> float:
        """Seconds between two lines: shorter while bytes move and where the reason to wait has changed."""
        usual_s = line_interval_s(now - phase.began)
        if phase.flows and phase.printed_at is not None and phase.moved > phase.printed_at:
            return min(usual_s, BYTES_INTERVAL_S)
        if phase.reason() != phase.printed_reason:
            return min(usual_s, NEW_REASON_INTERVAL_S)
        return usual_s

    def _print(self, phase: Phase, now: float, text: str) -> None:
        phase.printed_at, phase.printed_reason = now, phase.reason()
        self.say(text)

    def _show_last_byte(self, phase: Phase, now: float) -> None:
        if phase.printed_at is None:
            self._print(phase, now, phase.first_line())
        self._print(phase, now, phase.bytes_line(now))

    def _is_long(self, phase: Phase) -> bool:
        return phase.repeats > 0

    def _show_end(self, closing: str) -> None:
        if closing:
            self.say(closing)


class TerminalProgress(_PhaseDisplay):
    """One live line below everything else; long phases leave a line."""

    def __init__(self, out: Output, clock: Callable[[], float] = time.monotonic, *, ticking: bool = True) -> None:
        super().__init__(clock, ticking=ticking)
        self._out = out
        self._frame = 0

    def say(self, text: str) -> None:
        self._out.say(text)

    def _show(self, phase: Phase, now: float) -> None:
        self._frame += 1
        bar = f"{_bar(phase.done, phase.total)} " if phase.flows else ""
        room = (self._out.columns(self._out.err) or 80) - 1
        text = calm(f"{FRAMES[self._frame % len(FRAMES)]} {bar}{phase.line(now, room - 2)}")
        self._out.below(cut(text, room))

    def _show_last_byte(self, phase: Phase, now: float) -> None:
        self._out.say(phase.bytes_line(now))

    def _is_long(self, phase: Phase) -> bool:
        return self._clock() - phase.began >= LASTING_LINE_AFTER_S

    def _show_end(self, closing: str) -> None:
        self._out.below("")
        if closing:
            self._out.say(closing)


def _bar(done: int, total: int) -> str:
    full = BAR_CHARS * done // total
    return "█" * full + "░" * (BAR_CHARS - full)


def progress_on(out: Output, env: Mapping[str, str]) -> Progress:
    """A live line where the terminal can move its cursor, plain lines elsewhere."""
    is_live = out.err.isatty() and HERE.moves_cursor(env)
    progress = TerminalProgress(out) if is_live else PlainProgress(out.say)
    progress.timings = Timings(began=process_began())
    return progress
