"""Showing a run from its files at home, wherever the bytes came from (us, the guard, another terminal).

Only what lies in `runs/<run>/logs/` is shown, each byte once: several commands may mirror the
same run at the same time without any line being lost or doubled.
"""

from __future__ import annotations

import heapq
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuops.runs.log_lines import STREAM, LineMerger
from gpuops.runs.logtimes import LogTimes, line_start
from gpuops.sync import RunHome

CHUNK = 1 << 20
NODE = re.compile(r"node(\d+)")
EVENTS = "events.jsonl"
FAILED = b'"event": "failed"'
"""What an agent notes when a rank of its own has failed (docs/protocol.md)."""


class HomeTail:
    """Reads on in every stream of a run from where it stopped; gives complete lines.

    With `times`, what is home at the first look comes in the order in which it was written, nodes and ranks mixed;
    what was surely written before `since` (UTC seconds) is left out.
    """

    def __init__(
        self,
        home: RunHome,
        merger: LineMerger,
        veil: Veil | None = None,
        times: LogTimes | None = None,
        since: float | None = None,
    ) -> None:
        self._logs = home.path / "logs"
        self._merger = merger
        self._veil = veil
        self._times = times
        self._since = since
        self._read: dict[Path, int] = {}

    def new(self) -> Iterator[str]:
        """Lines that have come home since the last call."""
        if self._times is not None:
            times, self._times = self._times, None
            yield from self._in_order(times)
        if self._veil and not self._veil.failed:
            self._veil.failed = any(FAILED in chunk for path in self._events() for chunk in self._chunks(path))
        for node, path in self._streams():
            lines = (line for data in self._chunks(path) for line in self._merger.feed(node, path.name, data))
            yield from self._veil.over(path, lines) if self._veil else lines
        yield from self._merger.idle()
        if self._veil:
            yield from self._veil.due()

    def rest(self) -> Iterator[str]:
        """What is left once nothing more will come, the unfinished lines included."""
        yield from self.new()
        yield from self._merger.flush()
        if self._veil:
            yield from self._veil.lifted()

    def _events(self) -> list[Path]:
        return sorted(self._logs.glob(f"node*/{EVENTS}"))

    def _streams(self) -> list[tuple[int, Path]]:
        found = []
        for folder in self._logs.glob("node*"):
            if match := NODE.fullmatch(folder.name):
                found += [(int(match[1]), path) for path in folder.iterdir() if STREAM.fullmatch(path.name)]
        return sorted(found, key=_place)

    def _in_order(self, times: LogTimes) -> Iterator[str]:
        """What is home, slice by slice."""
        written = []
        for place, (node, path) in enumerate(self._streams()):
            notes = times.of(node, path.name)
            begin = 0 if self._since is None else line_start(path, notes.start(self._since))
            self._read[path] = begin
            slices = notes.slices(begin, path.stat().st_size)
            written.append([(moment, place, node, path, end) for moment, _, end in slices])
        for _, _, node, path, end in heapq.merge(*written):
            for data in self._chunks(path, end):
                yield from self._merger.feed(node, path.name, data)

    def _chunks(self, path: Path, end: int | None = None) -> Iterator[bytes]:
        """What a file has more than at the last look, up to `end`."""
        offset = self._read.get(path, 0)
        end = path.stat().st_size if end is None else end
        if end <= offset:
            return
        with path.open("rb") as file:
            file.seek(offset)
            while data := file.read(min(CHUNK, end - offset)):
                offset += len(data)
                self._read[path] = offset
                yield data


class Veil:
    """Holds tracebacks back for a moment: when a rank fails, its peers' complaints about it are noise.

    One rank's exception breaks the collectives of all others, and each prints a traceback of its own. They
    stay in the logs; what is shown is the culprit's, by the verdict. A traceback in a run that goes on
    is shown `hold_s` seconds late.
    """

    TRACEBACK = "Traceback (most recent call last)"

    def __init__(self, hold_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.failed = False
        self._hold_s = hold_s
        self._clock = clock
        self._suspects: set[Path] = set()
        self._held: deque[tuple[float, str]] = deque()

    def over(self, path: Path, lines: Iterator[str]) -> Iterator[str]:
        """The lines of one stream that may be shown now."""
        if not (path.name.startswith("rank") and path.suffix == ".err"):
            yield from lines
            return
        for line in lines:
            if path in self._suspects or self.TRACEBACK in line:
                self._suspects.add(path)
                self._held.append((self._clock() + self._hold_s, line))
            elif not self.failed:
                yield line

    def due(self) -> Iterator[str]:
        """What was held long enough, in a run that goes on."""
        if self.failed:
            self._held.clear()
        while self._held and self._held[0][0] <= self._clock():
            yield self._held.popleft()[1]

    def lifted(self) -> Iterator[str]:
        """All that is held, when a run ended without a failed rank."""
        while self._held and not self.failed:
            yield self._held.popleft()[1]


def last_heard(home: Path) -> float | None:
    """When the last byte of a run's output came home (UTC seconds); None where none has."""
    written = [path.stat().st_mtime for path in home.glob("logs/node*/*") if STREAM.fullmatch(path.name)]
    return max(written, default=None)


def _place(stream: tuple[int, Path]) -> tuple[int, int, bool]:
    """Nodes and ranks in the order of their numbers, a node's launcher first; what went wrong comes last."""
    node, path = stream
    match = STREAM.fullmatch(path.name)
    return node, int(match[1]) if match and match[1] else -1, path.suffix == ".err"


@dataclass(frozen=True)
class Filter:
    """Which lines: of one node, of one rank, only the last so many, torchrun's own as well, those in which `grep` is
    found, those written after `since` (UTC seconds)."""

    node: int | None = None
    rank: int | None = None
    tail: int | None = None
    launcher: bool = False
    grep: re.Pattern[str] | None = None
    since: float | None = None
