"""How a name that a user types is compared with those of a provider: by its words, whatever stands between them."""

from __future__ import annotations

import re


def words(text: str) -> list[str]:
    """`NVIDIA RTX-4090` is `nvidia`, `rtx`, `4090`."""
    return re.findall(r"[a-z0-9]+", text.lower())


def spellings(text: str) -> set[str]:
    """All words of a name, and neighbours written as one: `rtx4090`, `a100sxm4`."""
    parts = words(text)
    return {"".join(parts[start:end]) for start in range(len(parts)) for end in range(start + 1, len(parts) + 1)}
