"""Which names of files that a node tells may be used on this computer. Pure."""

from __future__ import annotations

import os

MAX_PATH_CHARS, MAX_NAME_BYTES, MAX_PATH_DEPTH = 2048, 255, 100
"""Limits of a node's path: characters, bytes of one name, folders. A longer path is hard to read or remove here."""
INVISIBLE = frozenset(
    "\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u206a\u206b\u206c\u206d\u206e\u206f\ufeff"
)
"""The list in git's `utf8.c`, `is_hfs_dotgit`."""


def is_inside(path: str) -> bool:
    """Whether a node's path stays below its folder and is not `.git`, on any disk. A backslash is part of a name; on
    Windows `System.stored` gives the file another name."""
    try:
        os.fsencode(path)
    except ValueError:
        return False  # no disk here can write that name
    return "\0" not in path and not any(part in ("", ".", "..") or is_gits(part) for part in path.split("/"))


def may_come(path: str) -> bool:
    """Whether a node's file can lie here under that path, and be read and removed again."""
    if not is_inside(path) or len(path) > MAX_PATH_CHARS:
        return False
    parts = os.fsencode(path).split(b"/")
    return len(parts) <= MAX_PATH_DEPTH and max(map(len, parts)) <= MAX_NAME_BYTES


def is_gits(part: str) -> bool:
    """Whether some disk takes this name for `.git`; refused on every system, as by git.

    Windows and macOS ignore case, trailing dots and blanks, what follows a colon, and (HFS+) invisible characters.
    """
    seen = part.lower()
    if not part.isascii():
        import unicodedata

        seen = unicodedata.normalize("NFC", "".join(char for char in part if char not in INVISIBLE)).casefold()
    return seen.partition(":")[0].rstrip(" .") in (".git", "git~1")
