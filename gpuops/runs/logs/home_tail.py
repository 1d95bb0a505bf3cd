"""Lines of a run's logs as they are home, in the order in which they were written.

`LogTimes` knows when a byte was written, from the notes of its node (`times.jsonl`): a note has the streams' sizes at
one moment, and bytes between two notes count as written at the later one. `HomeTail` reads on in every stream, and
`TracebackFilter` holds back tracebacks until it is known whose they are.
"""

from __future__ import annotations

import heapq
import json
import re
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from gpuops.core.errors import UsageError
from gpuops.core.polling import Clock
from gpuops.offers.lease_limits import parse_span
from gpuops.runs.logs.lines import STREAM, LineMerger
from gpuops.sync.log_mirror import MAX_STREAMS
from gpuops.sync.run_folder import RunHome, read_lines

TIMES_FILE = "times.jsonl"
NOT_NOTED_YET = float("inf")
"""The moment of bytes that no note covers yet."""
LATEST, LONGEST = 1e11, 1 << 40
"""The largest moment (UTC seconds) and size (bytes) that are believed in a note."""
MAX_NOTES_BYTES = 256 << 20
"""How many bytes of notes are read: a month has fewer."""
MAX_LINE_BYTES = 1 << 16
"""How far back the beginning of a line is searched."""
CHUNK_BYTES = 1 << 20
NODE_FOLDER = re.compile(r"node(\d+)")
EVENTS_FILE = "events.jsonl"
FAILURE_NOTES = {"torchrun": b'"event": "failed"', "command": b'"outcome": "failed"'}
"""What an agent notes in its events when one of its ranks, or the command, has failed (docs/protocol.md)."""
ERROR_STREAMS = {"torchrun": re.compile(r"rank\d+\.err"), "command": re.compile(r"launcher\.err")}
"""Where a run of each kind prints the tracebacks that are shown with its verdict."""


@dataclass
class Notes:
    """The notes of one stream: it had `sizes[i]` bytes at `moments[i]`; both only rise."""

    moments: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def add(self, moment: float, size: int) -> None:
        if not self.sizes or (size > self.sizes[-1] and moment >= self.moments[-1]):
            self.moments.append(moment)
            self.sizes.append(size)

    def start(self, since: float) -> int:
        """How many bytes were certainly written before `since`."""
        first = bisect_left(self.moments, since)
        return self.sizes[first - 1] if first else 0

    def slices(self, begin: int, end: int) -> Iterator[tuple[float, int, int]]:
        """The bytes from `begin` to `end` as (moment, from, to)."""
        offset = begin
        for index in range(bisect_right(self.sizes, begin), len(self.sizes)):
            if self.sizes[index] >= end:
                break
            yield self.moments[index], offset, self.sizes[index]
            offset = self.sizes[index]
        if offset < end:
            index = bisect_right(self.sizes, offset)
            yield (self.moments[index] if index < len(self.sizes) else NOT_NOTED_YET), offset, end


class LogTimes:
    """The notes that are home, by node and stream, as far as they are read before `until()` holds. `skews`: seconds to
    add to each node's clock to get ours."""

    def __init__(self, home: RunHome, skews: Sequence[float] = (), until: Callable[[], bool] = lambda: False) -> None:
        self._until = until
        self._notes: dict[tuple[int, str], Notes] = {}
        for path in sorted((home.path / "logs").glob(f"node*/{TIMES_FILE}")):
            if match := NODE_FOLDER.fullmatch(path.parent.name):
                node = int(match[1])
                self._read(path, node, skews[node] if node < len(skews) else 0.0)

    def __bool__(self) -> bool:
        return bool(self._notes)

    def of(self, node: int, stream: str) -> Notes:
        """A stream's notes; empty where there are none."""
        return self._notes.get((node, stream), Notes())

    def latest(self) -> float | None:
        """When anything was last written."""
        return max((notes.moments[-1] for notes in self._notes.values()), default=None)

    def earliest(self) -> float | None:
        """When anything was first written."""
        return min((notes.moments[0] for notes in self._notes.values()), default=None)

    def _read(self, path: Path, node: int, skew: float) -> None:
        notes: dict[str, Notes] = {}
        for line in read_lines(path, MAX_NOTES_BYTES):
            if self._until():
                break
            try:
                note = json.loads(line)
                moment = float(note["at"]) + skew
                sizes = {str(stream): int(size) for stream, size in note["sizes"].items()}
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
                continue  # cut off by a full disk, or not complete yet
            if not (0 <= moment < LATEST and all(0 <= size < LONGEST for size in sizes.values())):
                continue
            for stream, size in sizes.items():
                if stream in notes or (len(notes) < MAX_STREAMS and STREAM.fullmatch(stream)):
                    notes.setdefault(stream, Notes()).add(moment, size)
        self._notes.update({(node, stream): one for stream, one in notes.items()})


def find_line_start(path: Path, offset: int) -> int:
    """Where the line begins that holds the byte at `offset`."""
    begin = max(0, offset - MAX_LINE_BYTES)
    with path.open("rb") as file:
        file.seek(begin)
        newline = file.read(offset - begin).rfind(b"\n")
    return begin + newline + 1 if newline >= 0 else begin if begin == 0 else offset


def parse_moment(text: str, now: float) -> float:
    """`10m` (ago) or `2026-11-21T12:00` (local time unless it names a zone) as UTC seconds. Raises UsageError."""
    try:
        moment = datetime.fromisoformat(text).timestamp() if text[4:5] == "-" else now - parse_span(text)
    except (UsageError, ValueError, OverflowError, OSError):
        raise UsageError(f"'{text}' is no time", "write it like 10m, 2h, 2026-11-21 or 2026-11-21T12:00") from None
    if moment > now:
        raise UsageError(f"'{text}' is still to come", "write it like 10m, 2h or 2026-11-21T12:00")
    return moment


class HomeTail:
    """Reads every stream of a run from where the last call stopped; yields complete lines.

    With `times`, what is home at the first call comes in the order in which it was written, nodes and ranks mixed;
    what was certainly written before `since` (UTC seconds) is left out.
    """

    def __init__(
        self,
        home: RunHome,
        merger: LineMerger,
        tracebacks: TracebackFilter | None = None,
        times: LogTimes | None = None,
        since: float | None = None,
    ) -> None:
        self._logs = home.path / "logs"
        self._merger = merger
        self._tracebacks = tracebacks
        self._times = times
        self._since = since
        self._read: dict[Path, int] = {}

    def new(self, until: Callable[[], bool] = lambda: False) -> Iterator[str]:
        """Lines that have come home since the last call; no more of a stream's bytes are read once `until()` holds."""
        if self._times is not None:
            times, self._times = self._times, None
            yield from self._in_order(times)
        if self._tracebacks and not self._tracebacks.failed:
            note = FAILURE_NOTES[self._merger.kind]
            self._tracebacks.failed = any(note in chunk for path in self._events() for chunk in self._chunks(path))
        for node, path in self._streams():
            chunks = self._chunks(path, until=until)
            lines = (line for data in chunks for line in self._merger.feed(node, path.name, data))
            if self._tracebacks and ERROR_STREAMS[self._merger.kind].fullmatch(path.name):
                yield from self._tracebacks.pass_on(path, lines)
            else:
                yield from lines
        yield from self._merger.idle()
        if self._tracebacks:
            yield from self._tracebacks.due()

    def rest(self) -> Iterator[str]:
        """The lines that are left when the run is over, unfinished ones included."""
        yield from self.new()
        yield from self._merger.flush()
        if self._tracebacks:
            yield from self._tracebacks.rest()

    def skip(self, limit: int) -> int:
        """Pass over what is too much to be shown: about `limit` bytes are left, the last ones of each stream.

        Returns how many lines that were; a line without an end counts.
        """
        shown = [(node, path) for node, path in self._streams() if self._merger.shows(node, path.name)]
        unread = {path: path.stat().st_size - self._read.get(path, 0) for _, path in shown}
        keep = choose_shares(unread, limit)
        lines = 0
        for node, path in shown:
            start = find_line_start(path, path.stat().st_size - keep[path])
            if start > self._read.get(path, 0):
                lines += max(1, sum(data.count(b"\n") for data in self._chunks(path, start)))
                self._merger.drop_unfinished(node, path.name)
        return lines

    def _events(self) -> list[Path]:
        return sorted(self._logs.glob(f"node*/{EVENTS_FILE}"))

    def _streams(self) -> list[tuple[int, Path]]:
        streams = []
        for folder in self._logs.glob("node*"):
            if match := NODE_FOLDER.fullmatch(folder.name):
                streams += [(int(match[1]), path) for path in folder.iterdir() if STREAM.fullmatch(path.name)]
        return sorted(streams, key=_stream_order)

    def _in_order(self, times: LogTimes) -> Iterator[str]:
        """What is home, slice by slice."""
        written = []
        for place, (node, path) in enumerate(self._streams()):
            notes = times.of(node, path.name)
            begin = 0 if self._since is None else find_line_start(path, notes.start(self._since))
            self._read[path] = begin
            slices = notes.slices(begin, path.stat().st_size)
            written.append([(moment, place, node, path, end) for moment, _, end in slices])
        for _, _, node, path, end in heapq.merge(*written):
            for data in self._chunks(path, end):
                yield from self._merger.feed(node, path.name, data)

    def _chunks(self, path: Path, end: int | None = None, until: Callable[[], bool] = lambda: False) -> Iterator[bytes]:
        """What was added to a file since the last call, up to `end`, or until `until()` holds."""
        offset = self._read.get(path, 0)
        end = path.stat().st_size if end is None else end
        if end <= offset:
            return
        with path.open("rb") as file:
            file.seek(offset)
            while not until() and (data := file.read(min(CHUNK_BYTES, end - offset))):
                offset += len(data)
                self._read[path] = offset
                yield data


class TracebackFilter:
    """Holds back tracebacks for `hold_s` seconds, and drops them once a rank, or the command, has failed.

    One rank's exception breaks the collectives of all others, and each prints a traceback of its own. All of them stay
    in the logs; the culprit's is shown with the verdict.
    """

    TRACEBACK = "Traceback (most recent call last)"

    def __init__(self, hold_s: float, clock: Clock) -> None:
        self.failed = False
        self._hold_s = hold_s
        self._clock = clock
        self._suspects: set[Path] = set()
        self._held: deque[tuple[float, str]] = deque()

    def pass_on(self, path: Path, lines: Iterator[str]) -> Iterator[str]:
        """The lines of one of `ERROR_STREAMS` that may be shown now."""
        for line in lines:
            if path in self._suspects or self.TRACEBACK in line:
                self._suspects.add(path)
                self._held.append((self._clock.monotonic() + self._hold_s, line))
            elif not self.failed:
                yield line

    def due(self) -> Iterator[str]:
        """Lines that were held for `hold_s` in a run that goes on."""
        if self.failed:
            self._held.clear()
        while self._held and self._held[0][0] <= self._clock.monotonic():
            yield self._held.popleft()[1]

    def rest(self) -> Iterator[str]:
        """All held lines of a run that did not fail."""
        while self._held and not self.failed:
            yield self._held.popleft()[1]


def choose_shares(sizes: Mapping[Path, int], limit: int) -> dict[Path, int]:
    """How much of each is kept where all may have `limit` together: the small ones whole, of the others equal parts."""
    shares: dict[Path, int] = {}
    for count, path in enumerate(sorted(sizes, key=lambda path: sizes[path])):
        shares[path] = min(sizes[path], (limit - sum(shares.values())) // (len(sizes) - count))
    return shares


def last_output_time(home: Path) -> float | None:
    """When the last byte of a run's output came home (UTC seconds); None before the first."""
    written = [path.stat().st_mtime for path in home.glob("logs/node*/*") if STREAM.fullmatch(path.name)]
    return max(written, default=None)


def _stream_order(stream: tuple[int, Path]) -> tuple[int, int, bool]:
    """Sort key: nodes and ranks by number, a node's launcher first; of each, stderr after stdout."""
    node, path = stream
    match = STREAM.fullmatch(path.name)
    return node, int(match[1]) if match and match[1] else -1, path.suffix == ".err"


@dataclass(frozen=True)
class Filter:
    """Which lines are shown: of one node or rank, the last `tail`, torchrun's own as well (`launcher`), those that
    match `grep`, those written after `since` (UTC seconds)."""

    node: int | None = None
    rank: int | None = None
    tail: int | None = None
    launcher: bool = False
    grep: re.Pattern[str] | None = None
    since: float | None = None
