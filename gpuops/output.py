"""What a person sees: prose and progress on stderr, results on stdout, JSON alone when asked for."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, TextIO

SCHEMA = 1
"""Version of every JSON document; within a number only fields are added."""


class Output:
    """Where a command talks. Safe to use from several threads; a closed pipe ends nothing."""

    def __init__(self, *, as_json: bool = False, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.as_json = as_json
        self.out = out or sys.stdout
        self.err = err or sys.stderr
        self._lock = threading.RLock()

    @property
    def colour(self) -> bool:
        return self.out.isatty() and "NO_COLOR" not in os.environ and not self.as_json

    @property
    def interactive(self) -> bool:
        """Whether somebody can be asked: a terminal on both sides."""
        return sys.stdin.isatty() and self.err.isatty()

    def confirm(self, question: str) -> bool:
        """Ask a person; anything but yes is no."""
        self._write(self.err, f"{question} [y/N] ")
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    def say(self, text: str) -> None:
        """One line of prose, for people. A host's words may be in it: nothing in them steers the terminal."""
        self._write(self.err, calm(text) + "\n")

    def line(self, text: str) -> None:
        """One line of a run's own output: stdout, or stderr when stdout is kept for JSON."""
        self._write(self.err if self.as_json else self.out, text + "\n")

    def result(self, kind: str, document: Mapping[str, Any], lines: list[str]) -> None:
        """What was asked for: as one JSON document, or as lines."""
        text = json.dumps({"schema": SCHEMA, "kind": kind, **document}) if self.as_json else calm("\n".join(lines))
        if text:
            self._write(self.out, text + "\n")

    def _write(self, stream: TextIO, text: str) -> None:
        with self._lock:
            try:
                encoding = stream.encoding or "utf-8"
                stream.write(text.encode(encoding, "replace").decode(encoding))
                stream.flush()
            except (OSError, ValueError):
                pass  # nobody reads any more; the run and its teardown go on


def calm(text: str) -> str:
    """Text without control characters, but for the ends of lines and tabs."""
    return "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)


def table(rows: list[list[str]]) -> list[str]:
    """Rows as aligned lines; the first row is the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def money(dollars: float) -> str:
    return f"${dollars:,.2f}"


def span(seconds: float) -> str:
    """A length of time for people: `7 s`, `2:40 min`, `3 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{max(whole, 0)} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def ago(then: float, now: float | None = None) -> str:
    return f"{span((time.time() if now is None else now) - then)} ago"
