"""Processes on this computer: start them, end them, and recognise one later by pid and start time, since the system
gives a pid to another process after its end."""

from __future__ import annotations

import enum
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gpuops.core.platform import HERE, System

if TYPE_CHECKING:
    import subprocess

START_TIME_FIELD = 19
"""Index of the start time (clock ticks since boot) in /proc/<pid>/stat, counted after the command's name."""
LINUX_ENDED, LINUX_STOPPED = ("Z", "X", "x"), "T"
"""States of a process (first field behind the name): a zombie or dead one; one that a signal has stopped."""
START_TOLERANCE_S = 0.1
"""Two readings of one process's start time may differ by rounding."""


class Activity(enum.Enum):
    """What the system says of a process."""

    RUNS = "runs"
    STOPPED = "stopped"
    """By a signal, most often Ctrl-Z: it does nothing until it is continued."""
    ENDED = "ended"


@dataclass(frozen=True)
class Identity:
    """A process on this computer: its pid and its start time as `started` returns it."""

    pid: int
    start: float
    beats: Path | None = field(default=None, compare=False, repr=False)
    """The folder of the heartbeat that it writes (`core.heartbeat`); None where it owns nothing."""

    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        return self.activity() is not Activity.ENDED

    def activity(self) -> Activity:
        """What this very process does here; of another one that has its pid by now it is ENDED, as of a zombie."""
        if fields := _linux_status(self.pid):
            if abs(_start_s(fields) - self.start) > START_TOLERANCE_S or fields[0] in LINUX_ENDED:
                return Activity.ENDED
            return Activity.STOPPED if fields[0] == LINUX_STOPPED else Activity.RUNS
        import psutil

        try:
            if abs(started(self.pid) - self.start) > START_TOLERANCE_S:
                return Activity.ENDED
            status = psutil.Process(self.pid).status()
        except psutil.NoSuchProcess:
            return Activity.ENDED
        except psutil.AccessDenied:
            return Activity.RUNS  # it exists, and belongs to another user
        if status == psutil.STATUS_ZOMBIE:
            return Activity.ENDED
        return Activity.STOPPED if status == psutil.STATUS_STOPPED else Activity.RUNS


def myself() -> Identity:
    """This process."""
    return Identity(os.getpid(), started(os.getpid()))


def started(pid: int, system: System = HERE) -> float:
    """When a process started, in seconds: since boot on Linux, since the epoch elsewhere. Raises psutil.Error.

    Not since the epoch on Linux: that is computed with the wall clock, and after the clock was set a living process
    would look like another one, and its cluster abandoned.
    """
    if fields := _linux_status(pid, system):
        return _start_s(fields)
    import psutil  # slow to import, and most commands on Linux do without

    return float(psutil.Process(pid).create_time())


def _linux_status(pid: int, system: System = HERE) -> list[str]:
    """What Linux says of a process (proc(5), /proc/<pid>/stat) behind its name; empty where it says nothing."""
    if system.kind != "linux":
        return []
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    fields = text.rpartition(")")[2].split()
    return fields if len(fields) > START_TIME_FIELD and fields[START_TIME_FIELD].isdecimal() else []


def linux_age_s(pid: int) -> float | None:
    """How long ago a process started, in seconds, to a hundredth; None on other systems."""
    fields = _linux_status(pid)
    return time.clock_gettime(time.CLOCK_BOOTTIME) - _start_s(fields) if fields else None


def _start_s(fields: Sequence[str]) -> float:
    return int(fields[START_TIME_FIELD]) / os.sysconf("SC_CLK_TCK")


def start_background(
    argv: Sequence[str], *, system: System = HERE, popen: Callable[..., Any] | None = None, **options: Any
) -> Any:
    """Start a process that outlives this one and its terminal; what `popen` returns. Raises OSError."""
    import subprocess

    *preferred, last = system.background
    start = popen or subprocess.Popen
    for flags in preferred:
        try:
            return start(list(argv), **options, **flags)
        except PermissionError:
            continue  # a Windows job that this process belongs to forbids it
    return start(list(argv), **options, **last)


def start_apart(argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a child that does not get the terminal's Ctrl-C. Raises OSError."""
    import subprocess

    process: Any = subprocess.Popen(list(argv), **options, **HERE.apart)
    return cast("subprocess.Popen[bytes]", process)


def end_apart(process: subprocess.Popen[bytes]) -> None:
    """Kill a child that was started apart, on Unix with all of its session's group."""
    if HERE.windows:
        process.kill()
        return
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        process.kill()
