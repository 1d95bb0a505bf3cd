"""Whole numbers in what a batch system prints. Pure."""

from __future__ import annotations

from gpuops.core.errors import Unknown

MAX_DIGITS = 18
"""Nothing that is counted here has more, and Python itself refuses some thousand."""


def parse_count(text: str, default: int = 0) -> int:
    """`default` where the text is no number. Raises Unknown for one that cannot be."""
    text = text.strip()
    if not (text.isascii() and text.isdigit()):
        return default
    if len(text) > MAX_DIGITS:
        raise Unknown(
            f"the batch system tells a number of {len(text)} digits: {text[:MAX_DIGITS]}…",
            "see what its commands print there, and ask who runs the cluster",
        )
    return int(text)
