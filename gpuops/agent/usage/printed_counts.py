"""How far a program is by the lines that it prints: `step 120 loss 2.1`, `[GPU0] Epoch 3 | …`, `iter 40: …`."""

from __future__ import annotations

import os
import re
from typing import Iterator

from gpuops.agent.node import modified_at, size_of

COUNT = (
    rb"""\b(?:(epoch)|(?:global_)?(?:step|iter|iteration))\b["']?[ \t]{0,4}[:=#]?[ \t]{0,4}\[?"""
    rb"(\d{1,15}(?:\.\d{1,9})?)(?![.]?\d)"
)
"""In small letters. Group 1: it is an epoch's; group 2: the number. It is searched in linear time."""
MAX_READ_BYTES = 16384
"""So much of what a program printed since the last look is searched: its end."""


def find_counts(text: bytes) -> Iterator[tuple[str, float]]:
    """`epoch` or `step`, and its number, of each that the text tells."""
    for match in re.finditer(COUNT, text.lower()):
        yield "epoch" if match[1] else "step", float(match[2])


class PrintedCounts:
    """Of one rank: the latest that its streams tell. Each look reads on where the last one ended."""

    def __init__(self, folder: str, rank: int) -> None:
        base = os.path.join(folder, "ranks", str(rank))
        self._offsets = {f"{base}.{stream}": 0 for stream in ("out", "err")}
        self._latest: dict[str, float] = {}
        self._at = 0.0

    def look(self) -> tuple[dict[str, float], float]:
        """The latest epoch and step, and when the step was printed (UTC seconds)."""
        for path in self._offsets:
            found = dict(find_counts(self._read_on(path)))
            self._latest.update(found)
            if "step" in found:
                self._at = modified_at(path)
        return self._latest, self._at

    def _read_on(self, path: str) -> bytes:
        """Whole lines that have come since the last look; of a flood the last ones."""
        end = size_of(path)
        begin = max(self._offsets[path], end - MAX_READ_BYTES)
        if end <= begin:
            return b""
        try:
            with open(path, "rb") as file:
                file.seek(begin)
                text = file.read(end - begin)
        except OSError:
            return b""
        whole = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        if whole or len(text) == MAX_READ_BYTES:
            self._offsets[path] = begin + (whole or len(text))
        return text[:whole]
