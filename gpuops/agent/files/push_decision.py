"""The state of one path in a pushed tree, and what a push does with it, decided from stats and from our records.

A file we write gets the client's time, so a file that was not touched since has the size and time of its record. Every
other file was edited here, or made by a run, and is not overwritten.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Sequence

WRITE = "write"
"""The client's bytes (or link) are written here."""
TOUCH = "touch"
"""The right bytes are here already; only mode and time are set."""
SAME = "same"
"""Nothing to do."""
KEPT = "kept"
"""Edited on the node, unchanged at the client: left as it is."""
ASK = "ask"
"""Not ours, of the same size: the client's SHA-256 is needed to decide."""
CONFLICT = "conflict"
"""Not ours, and the client's file is another one."""

FILE, LINK, FOLDER, OTHER, ABSENT, BLOCKED = "file", "link", "folder", "other", "absent", "blocked"


class Entry(NamedTuple):
    """A file as a stat shows it; for a link only `link` counts, the rest is zero."""

    size: int
    mtime_ns: int
    mode: int
    link: str | None

    @classmethod
    def parse(cls, fields: Sequence[Any]) -> Entry:
        """From `[size, mtime_ns, mode, link or null]`; raises ValueError."""
        size, mtime_ns, mode, link = fields
        if link is not None:
            return cls(0, 0, 0, str(link))
        return cls(int(size), int(mtime_ns), int(mode) & 0o777, None)

    def untouched(self, other: Entry) -> bool:
        """Whether size, time and link are equal; a changed mode is no edit."""
        return self.link == other.link and self.size == other.size and self.mtime_ns == other.mtime_ns


class Written(NamedTuple):
    """The client's entry, and its stat here after writing: a file system may round times."""

    sent: Entry
    here: Entry


class Found(NamedTuple):
    """What is at a path: one of the kinds above, with the stat of a file or link."""

    kind: str
    entry: Entry = Entry(0, 0, 0, None)
    blocker: str = ""
    """For `blocked`: the parent that is not a folder."""


NOTHING = Found(ABSENT)


def matching_record(found: Found, *records: Written | None) -> Written | None:
    """The record that matches the file; None where none does: then the file is not ours."""
    if found.kind not in (FILE, LINK):
        return None
    for record in records:
        if record is not None and record.here.untouched(found.entry):
            return record
    return None


def decide_verdict(
    wanted: Entry,
    found: Found,
    last: Written | None,
    pending: Written | None,
    overwrite: bool,
    same: Callable[[], bool | None],
) -> str:
    """What a push does with one path.

    `last` is what an earlier push wrote there, `pending` what a killed push may have written. `same` returns whether
    the bytes here are the client's; None where the client has not sent its checksum.
    """
    if found.kind == ABSENT:
        return WRITE
    known = matching_record(found, last, pending)
    if known:
        return _over_ours(wanted, found, known)
    if overwrite:
        return WRITE
    if wanted.link is not None and found.entry.link == wanted.link:
        return TOUCH
    if last and not pending and last.sent == wanted:
        return KEPT
    if wanted.link is None and found.kind == FILE and found.entry.size == wanted.size:
        return {None: ASK, True: TOUCH, False: CONFLICT}[same()]
    return CONFLICT


def _over_ours(wanted: Entry, found: Found, known: Written) -> str:
    if not known.sent.untouched(wanted):
        return WRITE
    return SAME if (known.sent.mode, known.here.mode) == (wanted.mode, found.entry.mode) else TOUCH
