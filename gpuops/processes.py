"""Is that process still the one we started? A pid alone may have been given to another."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

STARTTIME = 19
"""Where /proc/<pid>/stat has the start time (clock ticks since boot), counted from behind the command's name."""
SLACK_S = 0.1


@dataclass(frozen=True)
class Identity:
    """A process on this computer: its pid and when it started, as `started` tells it."""

    pid: int
    start: float

    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        import psutil

        try:
            if abs(started(self.pid) - self.start) > SLACK_S:
                return False
            return bool(psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False
        except psutil.AccessDenied:
            return True  # it exists and belongs to somebody else: not ours to call dead


def myself() -> Identity:
    """This process."""
    return Identity(os.getpid(), started(os.getpid()))


def started(pid: int) -> float:
    """When a process started, in seconds: since boot on Linux, since the epoch elsewhere. Raises psutil.Error.

    On Linux the time since the epoch is computed with the wall clock: when that is set, a living
    process would look like another one, and its cluster would be taken for abandoned.
    """
    import psutil

    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[STARTTIME]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return float(psutil.Process(pid).create_time())
