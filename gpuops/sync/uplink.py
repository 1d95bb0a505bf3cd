"""This computer's line to the nodes: what it has carried, what it may carry, and what an upload will take."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path

from gpuops.core.errors import UsageError
from gpuops.core.files import write_atomic
from gpuops.core.format import amount, money, span

RATE_FILE = "uplink.json"
DEFAULT_RATE_BYTES_PER_S = 2.5e6
"""Assumed before the first upload: 20 Mbit/s, a common line from a home."""
MIN_MEASURED_BYTES = 5_000_000
"""A smaller upload says little about the line."""
LATEST_RATE_WEIGHT = 0.5
"""The latest upload's part in the average; all earlier ones share the rest."""
MIN_ESTIMATED_BYTES = 1_000_000
"""A smaller upload takes no time worth a sentence."""
MIN_LIMIT_BYTES_PER_S = 1000
UNITS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}


class Uplink:
    """The line during one command: counts what passes, and holds it to a limit, all nodes together."""

    def __init__(self, measured_bytes_per_s: float | None = None, limit_bytes_per_s: int | None = None) -> None:
        self.measured_bytes_per_s = measured_bytes_per_s
        """By earlier uploads; None before the first."""
        self.sent_bytes = 0
        self._limit = limit_bytes_per_s
        self._lock = threading.Lock()
        self._free_at = 0.0
        """When what was sent has had its time (monotonic)."""

    @property
    def expected_bytes_per_s(self) -> float:
        """What it will carry, as far as is known."""
        rate = self.measured_bytes_per_s or DEFAULT_RATE_BYTES_PER_S
        return min(rate, self._limit) if self._limit else rate

    def passed(self, count: int) -> None:
        """Count what was sent, and return once more may be sent."""
        with self._lock:
            self.sent_bytes += count
            if not self._limit:
                return
            self._free_at = max(self._free_at, time.monotonic()) + count / self._limit
            pause = self._free_at - time.monotonic()
        if pause > 0:
            time.sleep(pause)


def parse_rate(text: str) -> int:
    """`500k`, `2M`, `1.5M`: bytes per second. Raises UsageError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)(?:b?(?:/s)?)", text.strip().lower())
    rate = int(float(found[1]) * UNITS[found[2]]) if found else 0
    if rate < MIN_LIMIT_BYTES_PER_S:
        raise UsageError(f"--bwlimit {text} is no rate", "say how many bytes per second, such as 500k or 2M")
    return rate


def open_uplink(cache: Path, bwlimit: str | None = None) -> Uplink:
    """This computer's line: what earlier uploads measured, and the limit that was typed. Raises UsageError."""
    return Uplink(read_upload_rate(cache), parse_rate(bwlimit) if bwlimit else None)


def record_upload_rate(cache: Path, size: int, seconds: float) -> None:
    """Record the speed of an upload of `size` bytes. An error of the disk is ignored: it costs only the estimate."""
    if size < MIN_MEASURED_BYTES or seconds <= 0:
        return
    rate, average = size / seconds, read_upload_rate(cache)
    if average is not None:
        rate = LATEST_RATE_WEIGHT * rate + (1 - LATEST_RATE_WEIGHT) * average
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(cache / RATE_FILE, json.dumps({"bytes_per_s": rate}).encode())
    except OSError:
        pass


def read_upload_rate(cache: Path) -> float | None:
    """Average bytes per second of earlier uploads; None without any."""
    try:
        rate = float(json.loads((cache / RATE_FILE).read_text(encoding="utf-8"))["bytes_per_s"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return rate if rate > 0 else None


def describe_estimate(size: int, nodes: int, per_hour: float, rate: float | None) -> str:
    """`upload: about 2 min, $0.17: 1.2 GB at 10 MB/s, as before`; empty for a small upload.

    Of several nodes the first passes it on; how long it takes where they do not reach each other is told, too.
    `per_hour`: $/h of all machines, which wait for the upload.
    """
    if size * nodes < MIN_ESTIMATED_BYTES:
        return ""
    bytes_per_s = rate or DEFAULT_RATE_BYTES_PER_S

    def told(copies: int) -> str:
        seconds = size * copies / bytes_per_s
        return span(seconds) + (f", {money(per_hour * seconds / 3600)}" if per_hour else "")

    apart = f" ({told(nodes)} where the {nodes} nodes do not reach each other)" if nodes > 1 else ""
    origin = "as before" if rate else "a guess"
    return f"upload: about {told(1)}{apart}: {amount(size)} at {amount(bytes_per_s)}/s ({origin})"
