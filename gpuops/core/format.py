"""Text for people: sizes, times, prices, lists and tables, and foreign text made harmless to a terminal. Pure."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

COLOURS = re.compile(r"(\x1b\[[0-9;]*m)")


COLOUR_RESET = "\x1b[0m"


MIN_COLUMN_CHARS = 16
"""A column of a table is never cut below this width."""


SCHEMA = 1
"""Version of every JSON document; within a number only fields are added."""


def calm(text: str) -> str:
    """The text with control characters replaced by `?`, except newlines and tabs."""
    return "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)


def tame(text: str) -> str:
    """As `calm`, but colour sequences stay; a reset ends them."""
    parts = COLOURS.split(text)
    if len(parts) == 1:
        return calm(text)
    return "".join(part if index % 2 else calm(part) for index, part in enumerate(parts)) + COLOUR_RESET


def cut(text: str, length: int) -> str:
    """The text in at most `length` characters."""
    return text if len(text) <= length else text[: length - 1] + "…"


def one_line(text: str, length: int | None = None) -> str:
    """Foreign text as one line, of at most `length` characters, with control characters replaced by `?`."""
    line = calm(" ".join(text.split()))
    return line if length is None else cut(line, length)


def table(
    rows: list[list[str]], width: int | None = None, gives: int | None = None, spare: Sequence[str] = ()
) -> list[str]:
    """Rows as aligned lines; the first row is the heading. Lines wider than `width` are cut in column `gives`; where
    that is not enough, the columns headed `spare` are left out, in this order."""
    lines = _aligned(rows, width, gives)
    if width is None or max(map(len, lines)) <= width or not spare:
        return lines
    less, *spare = spare
    kept = [column for column, heading in enumerate(rows[0]) if heading != less]
    fewer = [[row[column] for column in kept] for row in rows]
    return table(fewer, width, None if gives is None else kept.index(gives), spare)


def _aligned(rows: list[list[str]], width: int | None, gives: int | None) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    if width is not None and gives is not None:
        over = sum(widths) + 2 * (len(widths) - 1) - width
        widths[gives] = min(widths[gives], max(MIN_COLUMN_CHARS, widths[gives] - over))
    return ["  ".join(map(_fitted, row, widths)).rstrip() for row in rows]


def _fitted(cell: str, width: int) -> str:
    return cut(cell, width).ljust(width)


def money(dollars: float) -> str:
    return f"${dollars:,.2f}"


def amount(size: float) -> str:
    """Bytes for people: `512 B`, `1.5 MB`."""
    if size < 1000:
        return f"{size:.0f} B"
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 1000:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


def span(seconds: float) -> str:
    """A length of time for people: `7 s`, `2:40 min`, `30 min`, `3 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{max(whole, 0)} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min".replace(":00", "")
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def clock_time(when: float, now: float) -> str:
    """A UTC time in this computer's time zone: `14:30`, on another day `Tue 24 Nov 14:30`."""
    there, here = time.localtime(when), time.localtime(now)
    today = there[:3] == here[:3]
    return time.strftime("%H:%M" if today else f"%a {there.tm_mday} %b %H:%M", there)


def ago(then: float, now: float | None = None) -> str:
    return f"{span((time.time() if now is None else now) - then)} ago"


def plural(count: int, noun: str) -> str:
    """`1 file`, `2 files`: a count and its noun, for nouns whose plural adds an s."""
    return f"{count} {noun}{'s' * (count != 1)}"


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def first_few(words: Sequence[str], most: int) -> str:
    """`a, b and 4 more`: the first `most` words, and how many follow."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more
