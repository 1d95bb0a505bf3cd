"""How long work is shown: a few plain lines for pipes and logs, a live line on a terminal. Always stderr."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, TextIO

from gpuops.output import span

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

EVERY_S = 5.0
"""A plain progress line at most this often."""
QUIET_S = 1.0
"""Work that is done sooner is not worth a line."""


class Progress(Protocol):
    """Where work tells how far it is. Safe to call from several threads."""

    def phase(self, text: str) -> None:
        """Something new begins; the clock of rate and time left starts again. Said once it takes a while."""

    def advance(self, done_bytes: int, total_bytes: int, label: str) -> None:
        """So much of so much, in all; `done_bytes == total_bytes` ends it."""

    def say(self, text: str) -> None:
        """One line of prose."""

    def close(self) -> None:
        """Free the terminal; may be called twice."""


def amount(size: float) -> str:
    """Bytes for people: `512 B`, `1.5 MB`."""
    if size < 1000:
        return f"{size:.0f} B"
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 1000:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


def pace(done: int, total: int, seconds: float) -> str:
    """Rate and time left, from what `seconds` have brought so far."""
    rate = done / seconds if seconds > 0 else 0.0
    if rate <= 0:
        return "waiting"
    left = f", {span((total - done) / rate)} left" if done < total else f" in {span(seconds)}"
    return f"{amount(rate)}/s{left}"


class Silent:
    """For work that nobody watches."""

    def phase(self, text: str) -> None:
        pass

    def advance(self, done_bytes: int, total_bytes: int, label: str) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


class PlainProgress:
    """What it is and a line once it takes longer than a second, one every 5 s at most, one at the end."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.say = say
        self._clock = clock
        self._lock = threading.Lock()
        self._began = clock()
        self._next = self._began + QUIET_S
        self._text = ""
        self._said = -1
        """How many bytes the last line told of."""

    def phase(self, text: str) -> None:
        with self._lock:
            self._began = self._clock()
            self._next = self._began + QUIET_S
            self._text = text

    def advance(self, done_bytes: int, total_bytes: int, label: str) -> None:
        with self._lock:
            now = self._clock()
            ended = done_bytes >= total_bytes and done_bytes != self._said
            if now - self._began < QUIET_S or (now < self._next and not ended):
                return
            self._next, self._said = now + EVERY_S, done_bytes
            text, self._text = self._text, ""
            lines = [text] if text else []
            lines.append(f"{label}: {amount(done_bytes)} of {amount(total_bytes)}, "
                         f"{pace(done_bytes, total_bytes, now - self._began)}")  # fmt: skip
            for line in lines:
                self.say(line)

    def close(self) -> None:
        pass


class TerminalProgress:
    """One live line with a bar; prose goes above it."""

    def __init__(self, stream: TextIO, env: Mapping[str, str], clock: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console

        self._console = Console(file=stream, no_color="NO_COLOR" in env, highlight=False)
        self._clock = clock
        self._lock = threading.Lock()
        self._began = clock()
        self._text = ""
        self._bars: Bars | None = None

    def phase(self, text: str) -> None:
        self.close()
        with self._lock:
            self._began = self._clock()
            self._text = text

    def advance(self, done_bytes: int, total_bytes: int, label: str) -> None:
        with self._lock:
            took = self._clock() - self._began
            if not self._bars and (took < QUIET_S or done_bytes >= total_bytes):
                return
            bars = self._bars or self._open(label)
            progress = f"{amount(done_bytes)} of {amount(total_bytes)}"
            rate = pace(done_bytes, total_bytes, took)
            bars.update(bars.task_ids[0], completed=done_bytes, total=total_bytes, amount=progress, pace=rate)
        if done_bytes >= total_bytes:
            self.close()

    def _open(self, label: str) -> Bars:
        from rich.progress import BarColumn, Progress, TextColumn

        if self._text:
            self.say(self._text)
        columns = [TextColumn("{task.fields[label]}", markup=False), BarColumn(),
                   TextColumn("{task.fields[amount]}, {task.fields[pace]}", markup=False)]  # fmt: skip
        self._bars = Progress(*columns, console=self._console)
        self._bars.add_task("", label=label, amount="", pace="")
        self._bars.start()
        return self._bars

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        with self._lock:
            if self._bars:
                self._bars.refresh()
                self._bars.stop()
                self._bars = None


def progress_on(stream: TextIO, env: Mapping[str, str], say: Callable[[str], None]) -> Progress:
    """The progress that fits: live on a terminal that can move its cursor, plain lines by `say` elsewhere."""
    if stream.isatty() and env.get("TERM", "") not in ("", "dumb"):
        return TerminalProgress(stream, env)
    return PlainProgress(say)
