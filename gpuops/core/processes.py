"""Starting and ending processes on this computer; and is one still the one we started? A pid alone may have been
given to another."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gpuops.core.platform import HERE, System

if TYPE_CHECKING:
    import subprocess

START_TIME_FIELD = 19
"""Where /proc/<pid>/stat has the start time (clock ticks since boot), counted from behind the command's name."""
START_TOLERANCE_S = 0.1


@dataclass(frozen=True)
class Identity:
    """A process on this computer: its pid and when it started, as `started` tells it."""

    pid: int
    start: float

    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        import psutil

        try:
            if abs(started(self.pid) - self.start) > START_TOLERANCE_S:
                return False
            return bool(psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False
        except psutil.AccessDenied:
            return True  # it exists and belongs to somebody else: not ours to call dead


def myself() -> Identity:
    """This process."""
    return Identity(os.getpid(), started(os.getpid()))


def started(pid: int, system: System = HERE) -> float:
    """When a process started, in seconds: since boot on Linux, since the epoch elsewhere. Raises psutil.Error.

    On Linux the time since the epoch is computed with the wall clock: when that is set, a living
    process would look like another one, and its cluster would be taken for abandoned.
    """
    import psutil

    try:
        if system.kind != "linux":
            return float(psutil.Process(pid).create_time())
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return int(fields[START_TIME_FIELD]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return float(psutil.Process(pid).create_time())


def start_background(
    argv: Sequence[str], *, system: System = HERE, popen: Callable[..., Any] | None = None, **options: Any
) -> None:
    """Start what stays when we and our terminal go. Raises OSError."""
    import subprocess

    *preferred, last = system.background
    start = popen or subprocess.Popen
    for way in preferred:
        try:
            start(list(argv), **options, **way)
            return
        except PermissionError:
            continue  # the job that we run in keeps its own
    start(list(argv), **options, **last)


def start_apart(argv: Sequence[str], system: System = HERE, **options: Any) -> subprocess.Popen[bytes]:
    """Start a child that does not get the terminal's Ctrl-C. Raises OSError."""
    import subprocess

    process: Any = subprocess.Popen(list(argv), **options, **system.apart)
    return cast("subprocess.Popen[bytes]", process)


def end_apart(process: subprocess.Popen[bytes], system: System = HERE) -> None:
    """Kill a child that was started apart, on Unix with all of its session's group."""
    if system.windows:
        process.kill()
        return
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        process.kill()
