"""When which byte of a run's output was written, from what its nodes noted beside it (`times.jsonl`).

A note says how long the streams were at one moment. What lies between two notes was written between their moments;
the later one counts.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from gpuops.core.errors import UsageError
from gpuops.offers.lease import parse_span
from gpuops.sync import RunHome

FILE = "times.jsonl"
NOW = float("inf")
"""When what no note tells of yet was written: just now."""
LATEST, LONGEST = 1e11, 1 << 40
"""No honest node notes a moment (UTC seconds) or a size (bytes) beyond."""
MOST = 256 << 20
"""Bytes of notes that are read: those of a month."""
LINE = 1 << 16
"""So far back the beginning of a line is sought, and no longer is a note, in bytes."""


@dataclass
class Notes:
    """Of one stream: it had `sizes[i]` bytes at `moments[i]`; both only rise."""

    moments: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def add(self, moment: float, size: int) -> None:
        if not self.sizes or (size > self.sizes[-1] and moment >= self.moments[-1]):
            self.moments.append(moment)
            self.sizes.append(size)

    def start(self, since: float) -> int:
        """How many bytes were surely written before."""
        first = bisect_left(self.moments, since)
        return self.sizes[first - 1] if first else 0

    def slices(self, begin: int, end: int) -> Iterator[tuple[float, int, int]]:
        """The bytes from `begin` to `end` as (moment, from, to)."""
        at = begin
        for index in range(bisect_right(self.sizes, begin), len(self.sizes)):
            if self.sizes[index] >= end:
                break
            yield self.moments[index], at, self.sizes[index]
            at = self.sizes[index]
        if at < end:
            index = bisect_right(self.sizes, at)
            yield (self.moments[index] if index < len(self.sizes) else NOW), at, end


class LogTimes:
    """The notes that are home, by node and stream. `skews`: seconds to add to each node's clock to get ours."""

    def __init__(self, home: RunHome, skews: Sequence[float] = ()) -> None:
        self._notes: dict[tuple[int, str], Notes] = {}
        for path in sorted((home.path / "logs").glob(f"node*/{FILE}")):
            number = path.parent.name.removeprefix("node")
            if number.isdecimal():
                node = int(number)
                self._read(path, node, skews[node] if node < len(skews) else 0.0)

    def __bool__(self) -> bool:
        return bool(self._notes)

    def of(self, node: int, stream: str) -> Notes:
        """A stream's notes; none of one that nothing was noted of."""
        return self._notes.get((node, stream), Notes())

    def latest(self) -> float | None:
        """When anything was last written."""
        return max((notes.moments[-1] for notes in self._notes.values()), default=None)

    def _read(self, path: Path, node: int, skew: float) -> None:
        for line in _lines(path):
            try:
                note = json.loads(line)
                moment = float(note["at"]) + skew
                sizes = {str(stream): int(size) for stream, size in note["sizes"].items()}
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
                continue  # cut off by a full disk, or on its way
            if not (0 <= moment < LATEST and all(0 <= size < LONGEST for size in sizes.values())):
                continue
            for stream, size in sizes.items():
                self._notes.setdefault((node, stream), Notes()).add(moment, size)


def _lines(path: Path) -> Iterator[bytes]:
    """As far as a node's notes have a length that an agent's have."""
    left = MOST
    with path.open("rb") as file:
        while left > 0 and (line := file.readline(LINE)):
            left -= len(line)
            yield line


def line_start(path: Path, offset: int) -> int:
    """Where the line begins that holds the byte at `offset`."""
    begin = max(0, offset - LINE)
    with path.open("rb") as file:
        file.seek(begin)
        found = file.read(offset - begin).rfind(b"\n")
    return begin + found + 1 if found >= 0 else begin if begin == 0 else offset


def moment(text: str, now: float) -> float:
    """`10m` (ago) or `2026-11-21T12:00` (here, unless it says otherwise) as UTC seconds. Raises UsageError."""
    try:
        then = datetime.fromisoformat(text).timestamp() if text[4:5] == "-" else now - parse_span(text)
    except (UsageError, ValueError, OverflowError, OSError):
        raise UsageError(f"'{text}' is no time", "write it like 10m, 2h, 2026-11-21 or 2026-11-21T12:00") from None
    if then > now:
        raise UsageError(f"'{text}' is still to come", "write it like 10m, 2h or 2026-11-21T12:00")
    return then
