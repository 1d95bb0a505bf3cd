"""A run's output for people: bytes of many streams in, complete lines out, each saying whose it is.

The files keep every byte as written; what is shown is readable: a progress bar that redraws itself with `\\r` becomes
its latest state, bytes that are not UTF-8 become `�`, and a line without an end is shown in pieces. No clock is read:
time passes by calls of `idle`, five a second.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, field

IDLE_POLLS = 10
"""After how many calls of `idle` without a byte an unfinished line is shown: 2 s."""

REDRAW_POLLS = 50
"""How many calls of `idle` lie between two shown states of a progress bar that keeps moving: 10 s."""

MAX_PIECE_CHARS = 8192
"""The longest text shown as one line, in characters."""

STREAM = re.compile(r"(?:launcher|rank(\d+))\.(?:out|err)")
"""A run's output; group 1 is the rank's number."""
_COLOURS = (36, 33, 35, 32, 94, 96, 95, 92)
"""A rank's, by its number: those of a terminal's sixteen that can be read on dark and on light, without red: no rank
is an error."""
_FAINT = 2
_COLOUR_CODES = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class _Unfinished:
    """One stream's text since its last newline."""

    prefix: str
    decoder: codecs.IncrementalDecoder
    text: str = ""
    shown: bool = False
    """Part of this line was shown already, so an empty rest is not a line of its own."""
    quiet: int = 0
    """Calls of `idle` since the last byte."""
    waited: int = 0
    """Calls of `idle` since something of this line was last shown."""


@dataclass
class LineMerger:
    """Turns the streams of one run into lines for a terminal or a pipe.

    `nodes`, `ranks`: of the whole run; `kind`: of its request. Lines carry `[n1 r3] ` (a rank's)
    or `[n1] ` (the launcher's, a command's) unless there is one only who can have said it.
    `node` and `rank` filter: of one node, or the streams of one rank alone; `grep`: lines in which it is found.
    torchrun's own lines are shown with `launcher` only: when a run ends well or badly, most of them are noise about it.
    """

    nodes: int
    ranks: int
    kind: str = "torchrun"
    node: int | None = None
    rank: int | None = None
    colour: bool = False
    launcher: bool = False
    grep: re.Pattern[str] | None = None
    _streams: dict[tuple[int, str], _Unfinished | None] = field(init=False, default_factory=dict)

    def feed(self, node: int, stream: str, data: bytes) -> list[str]:
        """The lines that `data`, the next bytes of a stream (`rank3.err`), completes."""
        state = self._stream(node, stream)
        if state is None:
            return []
        state.quiet = 0
        *ends, state.text = (state.text + state.decoder.decode(data)).split("\n")
        texts = [piece for text in ends for piece in _finish_line(state, text)]
        state.text = _drop_redrawn(state.text) if len(state.text) <= MAX_PIECE_CHARS else _latest_state(state.text)
        while len(state.text) > MAX_PIECE_CHARS:
            texts.append(_mark_shown(state, state.text[:MAX_PIECE_CHARS]))
            state.text = state.text[MAX_PIECE_CHARS:]
        return self._lines(state, texts)

    def idle(self) -> list[str]:
        """Unfinished lines that have waited long enough; to be called five times a second, bytes or not."""
        return [line for state in self._live() for line in self._lines(state, _poll_unfinished(state))]

    def flush(self) -> list[str]:
        """The unfinished lines, at the end of the run."""
        lines = []
        for state in self._live():
            text, state.text = state.text + state.decoder.decode(b"", final=True), ""
            lines += self._lines(state, _finish_line(state, text)) if text else []
        return lines

    def shows(self, node: int, stream: str) -> bool:
        """Whether lines of this stream are shown at all."""
        return self._stream(node, stream) is not None

    def drop_unfinished(self, node: int, stream: str) -> None:
        """The stream goes on at the beginning of a later line."""
        self._streams.pop((node, stream), None)

    def _lines(self, state: _Unfinished, texts: list[str]) -> list[str]:
        """The texts that pass the filter, each with its prefix."""
        grep = self.grep
        return [state.prefix + text for text in texts if grep is None or grep.search(_COLOUR_CODES.sub("", text))]

    def _live(self) -> list[_Unfinished]:
        return [state for state in self._streams.values() if state is not None]

    def _stream(self, node: int, stream: str) -> _Unfinished | None:
        """The stream's state; None for a stream that is not shown."""
        key = (node, stream)
        if key not in self._streams:
            self._streams[key] = self._open(node, stream)
        return self._streams[key]

    def _open(self, node: int, stream: str) -> _Unfinished | None:
        match = STREAM.fullmatch(stream)
        if match is None or self.node not in (None, node):
            return None
        rank = int(match[1]) if match[1] else None
        if self.rank not in (None, rank):
            return None
        if rank is None and self.kind == "torchrun" and not self.launcher:
            return None
        return _Unfinished(self._prefix(node, rank), codecs.getincrementaldecoder("utf-8")("replace"))

    def _prefix(self, node: int, rank: int | None) -> str:
        alone = self.nodes == 1 and (self.kind == "command" or self.ranks <= 1)
        if alone:
            return ""
        who = f"[n{node}]" if rank is None else f"[n{node} r{rank}]"
        if self.colour:
            who = f"\x1b[{_FAINT if rank is None else _COLOURS[rank % len(_COLOURS)]}m{who}\x1b[0m"
        return f"{who} "


def _finish_line(state: _Unfinished, text: str) -> list[str]:
    """The line that a newline after `text` ends, or the pieces of a long one."""
    final = _latest_state(text)
    hidden = state.shown and not final
    state.shown, state.waited = False, 0
    if hidden:
        return []
    return [final[start : start + MAX_PIECE_CHARS] for start in range(0, len(final), MAX_PIECE_CHARS)] or [""]


def _poll_unfinished(state: _Unfinished) -> list[str]:
    state.quiet += 1
    state.waited += 1
    if not state.text:
        return []
    if state.quiet >= IDLE_POLLS:
        text, state.text = _latest_state(state.text), ""
        return [_mark_shown(state, text)] if text else []
    # A bar's last piece may be half drawn: the one before it is whole.
    drawn, redraw, rest = state.text.rpartition("\r")
    if redraw and drawn and state.waited >= REDRAW_POLLS:
        state.text = redraw + rest
        return [_mark_shown(state, drawn)]
    return []


def _mark_shown(state: _Unfinished, text: str) -> str:
    state.shown, state.waited = True, 0
    return text


def _drop_redrawn(text: str) -> str:
    """An unfinished line without the states of a progress bar that were drawn over."""
    drawn, redraw, rest = text.rpartition("\r")
    return _latest_state(drawn) + redraw + rest if redraw else text


def _latest_state(text: str) -> str:
    """What a terminal would show of it: the last thing written after a carriage return."""
    return next((part for part in reversed(text.split("\r")) if part), "")
