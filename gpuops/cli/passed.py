"""What stands behind the first `--` belongs to the user's program and is never parsed by us."""

from __future__ import annotations

from collections.abc import Sequence

_PASSED: list[str] | None = None


def split(arguments: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Ours and theirs; None when there is no `--`."""
    words = list(arguments)
    if "--" not in words:
        return words, None
    at = words.index("--")
    return words[:at], words[at + 1 :]


def set_passed(words: list[str] | None) -> None:
    global _PASSED
    _PASSED = words


def passed() -> list[str] | None:
    """The words behind `--` of this command; None when there was no `--`."""
    return _PASSED
