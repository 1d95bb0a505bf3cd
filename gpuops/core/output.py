"""What a person sees: prose and progress on stderr, results on stdout, JSON alone when asked for."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from gpuops.core.writer import WRITER, may_block

SCHEMA = 1
"""Version of every JSON document; within a number only fields are added."""
ERASE = "\r\x1b[2K"
"""The line that the cursor is in is empty again."""
COLOURS = re.compile(r"(\x1b\[[0-9;]*m)")
PLAIN = "\x1b[0m"
NARROW = 16
"""A column of a table is not cut to fewer characters."""


class Output:
    """Where a command talks. Safe to use from several threads; a closed pipe ends nothing, a full one holds up little
    (`gpuops.core.writer`)."""

    def __init__(self, *, as_json: bool = False, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.as_json = as_json
        self.out = out or sys.stdout
        self.err = err or sys.stderr
        self._lock = threading.RLock()
        self._below = ""
        self._unread = 0
        """How many lines were let go because nobody read."""

    @property
    def colour(self) -> bool:
        return self.out.isatty() and not os.environ.get("NO_COLOR") and not self.as_json

    @property
    def interactive(self) -> bool:
        """Whether somebody can be asked: a terminal on both sides."""
        return sys.stdin.isatty() and self.err.isatty()

    def confirm(self, question: str) -> bool:
        """Ask a person; anything but yes is no."""
        return self.ask(f"{question} [y/N]").lower() in ("y", "yes")

    def ask(self, question: str) -> str:
        """Ask a person for a word; empty where none is typed."""
        with self._lock:  # nobody talks into the answer
            self._write(self.err, calm(f"{question} "))
            return sys.stdin.readline().strip()

    def say(self, text: str) -> None:
        """One line of prose, for people. A host's words may be in it: nothing in them steers the terminal."""
        self._write(self.err, calm(text) + "\n")

    def line(self, text: str) -> None:
        """One line of a run's own output: stdout, or stderr when stdout is kept for JSON.

        A terminal gets its colours and nothing else that would steer it; a file or a pipe gets it as it is.
        """
        stream = self.err if self.as_json else self.out
        if _is_terminal(stream):
            text = calm(COLOURS.sub("", text)) if os.environ.get("NO_COLOR") else tame(text)
        self._write(stream, text + "\n", much=True)

    def hold_up_nothing(self) -> None:
        """From here on a reader that does not read is not waited for: something that costs money may be."""
        WRITER.patient = False

    def below(self, text: str) -> None:
        """The one line of a terminal that changes, under all that is written; empty: none."""
        with self._lock:
            if text and self._below and WRITER.behind:
                return  # nobody sees it move
            if text or self._below:
                send(self.err, ERASE + text)
            self._below = text

    def result(self, kind: str, document: Mapping[str, Any], lines: list[str]) -> None:
        """What was asked for: as one JSON document, or as lines."""
        text = json.dumps({"schema": SCHEMA, "kind": kind, **document}) if self.as_json else calm("\n".join(lines))
        if text:
            self._write(self.out, text + "\n")

    def _write(self, stream: TextIO, text: str, *, much: bool = False) -> None:
        with self._lock:
            below = self._below if _is_terminal(stream) else ""
            if below:
                send(self.err, ERASE)
            if self._unread and not WRITER.behind:
                unread, self._unread = self._unread, 0
                send(self.err, f"note: {unread} lines are not shown, nobody read: `gpuops logs` has them\n")
            self._unread += not send(stream, text, much=much)
            if below and text.endswith("\n"):
                send(self.err, below)
        if not much:
            WRITER.moment()


def send(stream: TextIO, text: str, *, much: bool = False) -> bool:
    """Have it written to a stream. False where it was let go: of what is `much` there is a limit."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    data = text.encode(encoding, "replace")
    number = may_block(stream)
    if number is not None:
        return WRITER.put(number, data, much=much)
    try:
        stream.write(data.decode(encoding))
        stream.flush()
    except (OSError, ValueError):
        pass  # nobody reads any more; the run and its teardown go on
    return True


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def calm(text: str) -> str:
    """Text without control characters, but for the ends of lines and tabs."""
    return "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)


def tame(text: str) -> str:
    """Text with the colours that its writer gave it, and calm otherwise. They end with the line."""
    parts = COLOURS.split(text)
    if len(parts) == 1:
        return calm(text)
    return "".join(part if index % 2 else calm(part) for index, part in enumerate(parts)) + PLAIN


def columns(stream: TextIO) -> int | None:
    """How many columns there are to write in; None where nobody says (a file, a pipe)."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def table(
    rows: list[list[str]], width: int | None = None, gives: int | None = None, spare: Sequence[str] = ()
) -> list[str]:
    """Rows as aligned lines; the first row is the heading. What is wider than `width` is cut in column `gives`; where
    that is not enough, the columns headed `spare` are left out, in this order."""
    lines = _aligned(rows, width, gives)
    if width is None or max(map(len, lines)) <= width or not spare:
        return lines
    less, *spare = spare
    kept = [column for column, heading in enumerate(rows[0]) if heading != less]
    fewer = [[row[column] for column in kept] for row in rows]
    return table(fewer, width, None if gives is None else kept.index(gives), spare)


def _aligned(rows: list[list[str]], width: int | None, gives: int | None) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    if width is not None and gives is not None:
        over = sum(widths) + 2 * (len(widths) - 1) - width
        widths[gives] = min(widths[gives], max(NARROW, widths[gives] - over))
    return ["  ".join(map(_fitted, row, widths)).rstrip() for row in rows]


def _fitted(cell: str, width: int) -> str:
    return cut(cell, width).ljust(width)


def cut(text: str, length: int) -> str:
    """The text, in so many characters."""
    return text if len(text) <= length else text[: length - 1] + "…"


def money(dollars: float) -> str:
    return f"${dollars:,.2f}"


def amount(size: float) -> str:
    """Bytes for people: `512 B`, `1.5 MB`."""
    if size < 1000:
        return f"{size:.0f} B"
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 1000:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


def span(seconds: float) -> str:
    """A length of time for people: `7 s`, `2:40 min`, `3 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{max(whole, 0)} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def clock_time(when: float, now: float) -> str:
    """A moment as this computer's clock shows it: `14:30`, of another day `Tue 24 Nov 14:30`."""
    there, here = time.localtime(when), time.localtime(now)
    today = there[:3] == here[:3]
    return time.strftime("%H:%M" if today else f"%a {there.tm_mday} %b %H:%M", there)


def ago(then: float, now: float | None = None) -> str:
    return f"{span((time.time() if now is None else now) - then)} ago"
