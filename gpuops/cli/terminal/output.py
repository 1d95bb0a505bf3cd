"""Output of a command: prose and progress on stderr, results on stdout, with `--json` one document on stdout."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any, TextIO

from gpuops.cli.terminal.writer import WRITER, may_block
from gpuops.core.format import COLOURS, SCHEMA, calm, tame

ERASE = "\r\x1b[2K"
"""Clears the line of the cursor."""
ERASE_AND_GO_UP = ERASE + "\x1b[1A"


class Output:
    """The streams of a command, safe to use from several threads. A closed pipe ends nothing; a full one holds up
    little (`gpuops.cli.terminal.writer`)."""

    def __init__(self, *, as_json: bool = False, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.as_json = as_json
        self.out = out or sys.stdout
        self.err = err or sys.stderr
        self._lock = threading.RLock()
        self._below = ""
        self._unread = 0
        """Lines that were dropped because the reader stopped."""

    @property
    def colour(self) -> bool:
        return self.out.isatty() and not os.environ.get("NO_COLOR") and not self.as_json

    @property
    def interactive(self) -> bool:
        """Whether a question can be asked: stdin and stderr are terminals."""
        return sys.stdin.isatty() and self.err.isatty()

    @property
    def is_closed(self) -> bool:
        """Whether nobody reads stdout any more."""
        number = may_block(self.out)
        return number is not None and WRITER.is_closed(number)

    @staticmethod
    def columns(stream: TextIO) -> int | None:
        """Columns of the terminal; None for a file or a pipe without COLUMNS."""
        given = os.environ.get("COLUMNS", "")
        if given.isdecimal() and int(given) > 0:
            return int(given)
        try:
            return os.get_terminal_size(stream.fileno()).columns or None
        except (OSError, ValueError):
            return None

    def confirm(self, question: str) -> bool:
        """Ask a person; anything but yes is no."""
        return self.ask(f"{question} [y/N]").lower() in ("y", "yes")

    def ask(self, question: str) -> str:
        """Ask a person for a word; empty where none is typed."""
        with self._lock:  # no other thread writes into the answer
            self._write(self.err, calm(f"{question} "))
            return sys.stdin.readline().strip()

    def say(self, text: str) -> None:
        """One line of prose. It may quote a host, so control sequences are removed."""
        self._write(self.err, calm(text) + "\n")

    def line(self, text: str) -> None:
        """One line of a run's own output: stdout, or stderr when stdout is kept for JSON.

        A terminal gets its colours and no other control sequence; a file or a pipe gets the line unchanged.
        """
        stream = self.err if self.as_json else self.out
        if _is_terminal(stream):
            text = calm(COLOURS.sub("", text)) if os.environ.get("NO_COLOR") else tame(text)
        self._write(stream, text + "\n", much=True)

    def hold_up_nothing(self) -> None:
        """From now on do not wait for a reader that stopped: machines may be billed meanwhile."""
        WRITER.patient = False

    def below(self, text: str) -> None:
        """Set the live line below everything else on a terminal; empty removes it."""
        with self._lock:
            if text and self._below and WRITER.behind:
                return  # the reader has stopped
            if text or self._below:
                send(self.err, self._erase() + text)
            self._below = text

    def _erase(self) -> str:
        """What clears the live line: all rows of it, where a terminal that has become narrower has wrapped it."""
        rows = math.ceil(len(self._below) / (self.columns(self.err) or math.inf))
        return ERASE_AND_GO_UP * (rows - 1) + ERASE

    def result(self, kind: str, document: Mapping[str, Any], lines: list[str]) -> None:
        """Print the result of a command: one JSON document with --json, otherwise lines."""
        text = json.dumps({"schema": SCHEMA, "kind": kind, **document}) if self.as_json else calm("\n".join(lines))
        if text:
            self._write(self.out, text + "\n")

    def _write(self, stream: TextIO, text: str, *, much: bool = False) -> None:
        with self._lock:
            below = self._below if _is_terminal(stream) else ""
            if below:
                send(self.err, self._erase())
            if self._unread and not WRITER.behind:
                unread, self._unread = self._unread, 0
                send(
                    self.err, f"note: {unread} lines are not shown, since they were not read: `gpuops logs` has them\n"
                )
            self._unread += not send(stream, text, much=much)
            if below and text.endswith("\n"):
                send(self.err, below)
        if not much:
            WRITER.moment()


def send(stream: TextIO, text: str, *, much: bool = False) -> bool:
    """Write to a stream. Returns False where the text was dropped: `much` output has a limit."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    data = text.encode(encoding, "replace")
    number = may_block(stream)
    if number is not None:
        return WRITER.put(number, data, much=much)
    try:
        stream.write(data.decode(encoding))
        stream.flush()
    except (OSError, ValueError):
        pass  # the reader is gone; the run and its teardown go on
    return True


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False
