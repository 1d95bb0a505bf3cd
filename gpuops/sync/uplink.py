"""How long an upload will take and what it will cost, from what earlier ones took."""

from __future__ import annotations

import json
from pathlib import Path

from gpuops.core.output import amount, money, span

FILE = "uplink.json"
GUESS = 2.5e6
"""Bytes per second where nothing was ever sent: 20 Mbit/s, a common line from a home."""
TELLING = 5_000_000
"""Uploads of fewer bytes say little about the line."""
WEIGHT = 0.5
"""How much the latest upload counts against all before."""
WORTH_SAYING = 1_000_000


def remember(cache: Path, size: int, seconds: float) -> None:
    """Note what an upload of `size` bytes took; a failure to do so is no failure."""
    if size < TELLING or seconds <= 0:
        return
    before = recall(cache)
    rate = size / seconds if before is None else WEIGHT * size / seconds + (1 - WEIGHT) * before
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        (cache / FILE).write_text(json.dumps({"bytes_per_s": rate}), encoding="utf-8")
    except OSError:
        pass


def recall(cache: Path) -> float | None:
    """Bytes per second of earlier uploads."""
    try:
        rate = float(json.loads((cache / FILE).read_text(encoding="utf-8"))["bytes_per_s"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return rate if rate > 0 else None


def estimate(size: int, nodes: int, per_hour: float, rate: float | None) -> str:
    """`upload: about 4 min, $0.35: 1.2 GB to each of 2 nodes at 10 MB/s, as last time`; empty for little.

    `per_hour`: what all machines cost while they wait for it.
    """
    if size * nodes < WORTH_SAYING:
        return ""
    seconds = size * nodes / (rate or GUESS)
    whom = f" to each of {nodes} nodes" if nodes > 1 else ""
    how = "as before" if rate else "a guess"
    cost = f", {money(per_hour * seconds / 3600)}" if per_hour else ""
    return f"upload: about {span(seconds)}{cost}: {amount(size)}{whom} at {amount(rate or GUESS)}/s ({how})"
