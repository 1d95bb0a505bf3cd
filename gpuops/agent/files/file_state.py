"""Whose is the file that lies here? Decided from stats and from what we remember having written.

Times on the node are set to the client's, so a file that nobody touched since we wrote it looks as it
did then. Everything else was edited, or made by a run, and is not ours to overwrite.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Sequence

WRITE = "write"
"""The client's bytes (or link) go here."""
TOUCH = "touch"
"""The right bytes lie here already; only mode and time are ours to set."""
SAME = "same"
"""Nothing to do."""
KEPT = "kept"
"""Edited on the node, unchanged at the client: left alone."""
ASK = "ask"
"""Not ours, of the same size: the client's SHA-256 decides."""
CONFLICT = "conflict"
"""Not ours, and the client wants something else there."""

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
        """Whether both can be the same writing of a file; a changed mode is no edit."""
        return self.link == other.link and self.size == other.size and self.mtime_ns == other.mtime_ns


class Written(NamedTuple):
    """What the client sent, and what a stat said here afterwards: a filesystem may round times."""

    sent: Entry
    here: Entry


class Found(NamedTuple):
    """What lies at a path: one of the kinds above, its stat for a file or link."""

    kind: str
    entry: Entry = Entry(0, 0, 0, None)
    blocker: str = ""
    """For `blocked`: the parent that is no folder."""


NOTHING = Found(ABSENT)


def ours(found: Found, *records: Written | None) -> Written | None:
    """The record that explains what was found, or None: then it is not ours."""
    if found.kind not in (FILE, LINK):
        return None
    for record in records:
        if record is not None and record.here.untouched(found.entry):
            return record
    return None


def decide(
    wanted: Entry,
    found: Found,
    last: Written | None,
    pending: Written | None,
    overwrite: bool,
    same: Callable[[], bool | None],
) -> str:
    """What a push does with one path.

    `last` is what an earlier push wrote there, `pending` what a push that was killed may have written.
    `same` tells whether the bytes here are the client's; None when the client has not said its sum.
    """
    if found.kind == ABSENT:
        return WRITE
    known = ours(found, last, pending)
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
