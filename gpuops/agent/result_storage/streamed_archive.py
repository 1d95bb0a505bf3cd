"""A tar archive that is never written: any range of it is composed of headers in memory and of files read in place.

Each member has the size that it was listed with, whatever happens to its file: missing bytes are replaced by zeros, and
additional ones are cut. So the archive's size is known before its first byte is read, and it can be sent in parts.
"""

from __future__ import annotations

import bisect
import os
import stat
import tarfile
from typing import Iterator, NamedTuple, Sequence

BLOCK_BYTES = 512
READ_BYTES = 1 << 20
END_OF_ARCHIVE = bytes(2 * BLOCK_BYTES)
"""Closes an archive."""


class Item(NamedTuple):
    """One file: its path here, its name in the archive, and how it was listed: bytes and mtime (ns)."""

    source: bytes
    name: str
    size: int
    mtime_ns: int


def member_header(name: str, size: int, mtime_ns: int) -> bytes:
    """A member's header."""
    member = tarfile.TarInfo(name)
    member.size, member.mtime, member.mode = size, max(0, mtime_ns // 1_000_000_000), 0o644
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def member_bytes(name: str, content: bytes, mtime_ns: int) -> bytes:
    """A member with all its bytes."""
    return member_header(name, len(content), mtime_ns) + content + bytes(-len(content) % BLOCK_BYTES)


class Archive:
    """The members one after another, without END."""

    def __init__(self, items: Sequence[Item]) -> None:
        self.items = list(items)
        self.short: set[int] = set()
        """Indexes of members whose files had fewer bytes than listed, as far as they were read."""
        self._headers = [member_header(item.name, item.size, item.mtime_ns) for item in self.items]
        self.ends = []
        """Where each member ends, including its padding: an archive may be cut between members."""
        end = 0
        for item, head in zip(self.items, self._headers):
            end += len(head) + item.size + -item.size % BLOCK_BYTES
            self.ends.append(end)
        self.size = end

    def read(self, start: int, stop: int) -> Iterator[tuple[int, bool, bytes]]:
        """The bytes of a range, in order: (index of the member, whether they are of its file, bytes)."""
        index = bisect.bisect_right(self.ends, start)
        while start < stop:
            begins = self.ends[index - 1] if index else 0
            for is_content, block in self._member(index, start - begins, min(stop, self.ends[index]) - begins):
                yield index, is_content, block
            start = self.ends[index]
            index += 1

    def _member(self, index: int, start: int, stop: int) -> Iterator[tuple[bool, bytes]]:
        """A range of one member, counted from the start of its header: (whether they are of its file, bytes)."""
        head, size = self._headers[index], self.items[index].size
        if start < len(head):
            yield False, head[start:stop]
        first, last = max(start - len(head), 0), min(stop - len(head), size)
        if first < last:
            for block in _read(self.items[index].source, first, last):
                first += len(block)
                yield True, block
            while first < last:  # the file is shorter now, cannot be read, or is no file any more
                self.short.add(index)
                yield True, bytes(min(READ_BYTES, last - first))
                first += min(READ_BYTES, last - first)
        padding = stop - max(start, len(head) + size)
        if padding > 0:
            yield False, bytes(padding)


def _read(source: bytes, start: int, stop: int) -> Iterator[bytes]:
    """A range of a file, as far as it can be read."""
    try:
        fd = os.open(source, os.O_RDONLY | os.O_NONBLOCK)  # without waiting for the writer of a pipe
    except OSError:
        return
    with open(fd, "rb", buffering=0) as file:
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return
            file.seek(start)
            while start < stop:
                block = file.read(min(READ_BYTES, stop - start))
                if not block:
                    return
                start += len(block)
                yield block
        except OSError:
            return  # the disk fails


def is_unchanged(item: Item) -> bool:
    """Whether a file still has the size and time that it was listed with."""
    try:
        seen = os.stat(item.source)
    except OSError:
        return False
    return stat.S_ISREG(seen.st_mode) and (seen.st_size, seen.st_mtime_ns) == (item.size, item.mtime_ns)


def part_boundaries(ends: Sequence[int], parts: int, least: int) -> list[int]:
    """Where to cut an archive into at most `parts` parts, each of at least `least` bytes.

    A part ends between members, or within a member that is longer than a part. The rest after the last cut is shorter
    than `least`.
    """
    total = ends[-1] if ends else 0
    target = max(least, -(-total // max(1, parts - 1)))
    positions: list[int] = []
    begin = 0
    for end in ends:
        pieces = (end - begin) // target
        if pieces:
            step = (end - begin) // pieces
            positions += [begin + step * number for number in range(1, pieces)] + [end]
            begin = end
    return [*positions, total] if total - begin >= least else positions
