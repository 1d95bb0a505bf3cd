"""How a command talks: prose, questions and results (`Reporter`), and how far long work is (`Progress`)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TextIO

from gpuops.core.format import calm
from gpuops.core.timings import Timings, Whose


class Reporter(Protocol):
    """Where a command talks: prose on stderr, results on stdout. Safe to call from several threads."""

    as_json: bool
    """Whether stdout is kept for one JSON document."""
    out: TextIO
    err: TextIO

    @property
    def interactive(self) -> bool:
        """Whether somebody can be asked: a terminal on both sides."""

    @property
    def colour(self) -> bool:
        """Whether stdout shows colours."""

    @property
    def is_closed(self) -> bool:
        """Whether nobody reads stdout any more: what only shows something has nothing left to do."""

    def columns(self, stream: TextIO) -> int | None:
        """How many columns a stream has to write in; None where that is unknown (a file, a pipe)."""

    def confirm(self, question: str) -> bool:
        """Ask a person; anything but yes is no."""

    def ask(self, question: str) -> str:
        """Ask a person for a word; empty where none is typed."""

    def say(self, text: str) -> None:
        """One line of prose, for people."""

    def line(self, text: str) -> None:
        """One line of a run's own output."""

    def below(self, text: str) -> None:
        """The one line of a terminal that changes, under all that is written; empty: none."""

    def hold_up_nothing(self) -> None:
        """From here on a reader that does not read is not waited for: something that costs money may be."""

    def result(self, kind: str, document: Mapping[str, Any], lines: list[str]) -> None:
        """What was asked for: as one JSON document, or as lines."""


class LogReporter:
    """A Reporter for a process without a terminal: prose goes to a log, nobody can be asked."""

    as_json = False
    interactive = False
    colour = False
    is_closed = False

    def __init__(self, log: TextIO) -> None:
        self.out = self.err = log

    def columns(self, stream: TextIO) -> int | None:  # noqa: ARG002
        return None

    def confirm(self, question: str) -> bool:  # noqa: ARG002
        return False

    def ask(self, question: str) -> str:  # noqa: ARG002
        return ""

    def say(self, text: str) -> None:
        self.line(calm(text))

    def line(self, text: str) -> None:
        try:
            print(text, file=self.err, flush=True)
        except OSError:
            pass  # a full disk must not keep the process from its work

    def below(self, text: str) -> None:
        pass

    def hold_up_nothing(self) -> None:
        pass

    def result(self, kind: str, document: Mapping[str, Any], lines: list[str]) -> None:  # noqa: ARG002
        for text in lines:
            self.say(text)


class PrefixedReporter(LogReporter):
    """What one of several runs that go on at once says: each line with a prefix. Nobody is asked."""

    def __init__(self, whole: Reporter, prefix: str) -> None:
        super().__init__(whole.err)
        self._whole, self._prefix = whole, prefix
        self.colour = whole.colour

    def say(self, text: str) -> None:
        for line in text.splitlines():
            self._whole.say(self._prefix + line)

    def line(self, text: str) -> None:
        self._whole.line(self._prefix + text)


class Progress(Protocol):
    """Where work tells how far it is. Safe to call from several threads."""

    timings: Timings

    def during(
        self, text: str, limit_s: float | None = None, *, whose: Whose = Whose.GPUOPS, aside: bool = False
    ) -> AbstractContextManager[None]:
        """For as long as the block: this goes on, `limit_s` seconds at most where that is known; `whose` time it is.

        `aside`: it is no work of ours. It leaves no line behind, and a log hears of it rarely."""

    def phase(self, text: str, whose: Whose = Whose.GPUOPS) -> None:
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

    timings = Timings()

    def during(
        self,
        text: str,  # noqa: ARG002
        limit_s: float | None = None,  # noqa: ARG002
        *,
        whose: Whose = Whose.GPUOPS,  # noqa: ARG002
        aside: bool = False,  # noqa: ARG002
    ) -> AbstractContextManager[None]:
        return nullcontext()

    def phase(self, text: str, whose: Whose = Whose.GPUOPS) -> None:
        pass

    def waits(self, why: str, who: str = "") -> None:
        pass

    def advance(self, done_bytes: int, total_bytes: int, label: str) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass
