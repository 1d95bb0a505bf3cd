"""Names that a user types, matched with known ones: by spelling for what is misspelt, or by their words."""

from __future__ import annotations

import re
from collections.abc import Iterable

CHEAPEST = "cheapest"
"""In a provider's place: whoever rents it for the least."""


def close_names(typed: str, known: Iterable[str], most: int, alike: float) -> list[str]:
    """The known names that are spelled like `typed`, the likest first, whatever their case.

    `alike`: the least likeness, as `difflib` counts it: 1 is equal.
    """
    import difflib  # only once something is misspelt

    by_spelling = {name.lower(): name for name in known}
    return [by_spelling[one] for one in difflib.get_close_matches(typed.lower(), by_spelling, most, alike)]


def did_you_mean(typed: str, known: Iterable[str], most: int = 1, alike: float = 0.6, form: str = "{}") -> str:
    """`did you mean nodes?`, by `close_names`; empty where nothing is spelled like it. `form`: how a name is shown."""
    near = close_names(typed, known, most, alike)
    return f"did you mean {' or '.join(form.format(one) for one in near)}?" if near else ""


def words(text: str) -> list[str]:
    """`NVIDIA RTX-4090` is `nvidia`, `rtx`, `4090`."""
    return re.findall(r"[a-z0-9]+", text.lower())


def spellings(text: str) -> set[str]:
    """All words of a name, and neighbours written as one: `rtx4090`, `a100sxm4`."""
    parts = words(text)
    return {"".join(parts[start:end]) for start in range(len(parts)) for end in range(start + 1, len(parts) + 1)}
