"""Decides what to do about a run whose ranks do not join each other: a remark, later its end. Pure.

A script that starts its own processes, started by torchrun, waits for ever and bills. One that imports from a slow
disk, downloads or prepares its data joins late. They are told apart by patience: only a run that for the whole limit
printed nothing, used no processor to speak of and neither read nor wrote much is ended.
"""

from __future__ import annotations

from enum import Enum

REMARK_AFTER_S = 20.0
"""How long ranks live without joining before it is remarked on."""
CHECK_INTERVAL_S = 5.0
BUSY_CORES = 0.2
"""Processor time for each second from which a run is at work; torchrun itself, waiting, takes a tenth of that."""
BUSY_BYTES = 100_000
"""Bytes of files for each second from which a run is at work: a download takes little processor time. What waits
reads and writes none."""


class JoinAction(Enum):
    REMARK = "remark"
    END = "end"


class JoinWatch:
    """Watches ranks that are known not to have joined. Times are monotonic seconds; `limit_s` None: never end them."""

    def __init__(self, limit_s: float | None) -> None:
        self._limit_s = limit_s
        self._next_check = 0.0
        self._began: float | None = None
        self._quiet_since = 0.0
        self._last = (0.0, 0, 0.0, 0)
        """Time, bytes of output, processor seconds and bytes of files at the last check."""
        self._has_remarked = False

    def is_due(self, now: float) -> bool:
        """Whether a check is due; at most one each CHECK_INTERVAL_S."""
        if now < self._next_check:
            return False
        self._next_check = now + CHECK_INTERVAL_S
        return True

    def check(self, now: float, output_bytes: int, cpu_s: float, file_bytes: int) -> JoinAction | None:
        """What is due, by all that the run has printed, and by the processor time and the bytes read and written of its
        living processes."""
        before_at, before_bytes, before_cpu_s, before_file_bytes = self._last
        self._last = (now, output_bytes, cpu_s, file_bytes)
        is_first = self._began is None
        if self._began is None:
            self._began = now
        passed_s = now - before_at
        is_busy = cpu_s - before_cpu_s > BUSY_CORES * passed_s or file_bytes - before_file_bytes > BUSY_BYTES * passed_s
        if is_first or is_busy or output_bytes != before_bytes:
            self._quiet_since = now
        if self._limit_s is not None and now - self._quiet_since >= self._limit_s:
            return JoinAction.END
        if not self._has_remarked and now - self._began >= REMARK_AFTER_S:
            self._has_remarked = True
            return JoinAction.REMARK
        return None
