"""Starting the guard of a cluster: detached, with the environment that the cluster was rented with."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from gpuops.core.errors import LocalDisk
from gpuops.core.file_lock import LockTimeout, file_lock
from gpuops.core.polling import Clock, Poller
from gpuops.guard import guard_heartbeat
from gpuops.ledger.rows import ClusterRow

BEAT_POLL_S = 0.05
LOG = "guard.log"
LAST_WORDS_BYTES = 4000


class Process(Protocol):
    """A guard that was started."""

    def poll(self) -> int | None: ...


_started: dict[tuple[Path, int], tuple[Process, float]] = {}
"""By home and cluster: the last guard that this process has started, and when (monotonic)."""


def ensure(home: Path, row: ClusterRow, *, waits: bool) -> None:
    """Start the guard of a cluster unless one works. `waits`: until its first heartbeat. Raises OSError; LocalDisk
    where that does not come.

    The process is detached (no terminal, own session) and keeps this command's environment: the keys that a cluster
    is rented with are those of its guard.
    """
    process, log_bytes = None, _log_size(home)
    if _is_free(home, row.id):
        process = _beginning(home, row.id) or _start(home, row.id)
    elif guard_heartbeat.must_be_replaced(home, row, os.environ, time.monotonic()):
        guard_heartbeat.kill_guard(home, row.id)
        process = _start(home, row.id)
    if waits:
        await_first_beat(home, row, process, log_bytes)


def _is_free(home: Path, cluster: int) -> bool:
    """Whether no process holds the lock of a cluster's guard. Raises OSError."""
    try:
        with file_lock(guard_heartbeat.lock_path(home, cluster), 0):
            return True
    except LockTimeout:
        return False


def _beginning(home: Path, cluster: int) -> Process | None:
    """The guard that this process has just started, where it has not taken the lock yet; once it has, it looks at the
    ledger, and finds there what this command has written by now."""
    process, started_at = _started.get((home, cluster), (None, 0.0))
    if process is None or process.poll() is not None or time.monotonic() - started_at > guard_heartbeat.FIRST_BEAT_S:
        return None
    last = guard_heartbeat.read(home, cluster)
    return None if last and last.at >= started_at else process


def _start(home: Path, cluster: int) -> Process:
    from gpuops.core.processes import start_background

    started_at = time.monotonic()
    with open(home / LOG, "ab") as log:
        process: Process = start_background(
            command(home, cluster),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=home,
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )
    _started[home, cluster] = process, started_at
    return process


def await_first_beat(
    home: Path, row: ClusterRow, process: Process | None, log_bytes: int, clock: Clock | None = None
) -> None:
    """Wait until the guard of a cluster has completed a round. `process`: the one that was started, if one was;
    `log_bytes`: how long the log was before. Raises LocalDisk."""
    clock = clock or Clock()
    deadline = clock.monotonic() + guard_heartbeat.FIRST_BEAT_S
    for _ in Poller.every(clock, BEAT_POLL_S, deadline):
        status = process.poll() if process else None  # before the look: its last word counts
        if guard_heartbeat.works(home, row, time.monotonic()):
            return
        if status:
            raise _failure(home, row, "ended at once", log_bytes)
        if status == 0 and _is_free(home, row.id):
            return  # it had nothing to do, or no more
    raise _failure(home, row, f"has not begun to work within {guard_heartbeat.FIRST_BEAT_S:.0f} s", log_bytes)


def _failure(home: Path, row: ClusterRow, what: str, log_bytes: int) -> LocalDisk:
    words = last_words(home, log_bytes)
    return LocalDisk(
        f"the guard of {row.name} {what}{': ' if words else ''}{words}",
        f"check this computer's disk and memory, and whether gpuops is installed whole; {home / LOG} has more",
    )


def _log_size(home: Path) -> int:
    with suppress(OSError):
        return (home / LOG).stat().st_size
    return 0


def last_words(home: Path, log_bytes: int = 0) -> str:
    """The last line that a guard has written behind `log_bytes`; empty for none."""
    try:
        with open(home / LOG, "rb") as log:
            log.seek(max(log_bytes, log.seek(0, os.SEEK_END) - LAST_WORDS_BYTES))
            lines = log.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def command(home: Path, cluster: int, *more: str) -> list[str]:
    """The command line of a guard; with a job and its number of failed attempts, that of its child."""
    return [sys.executable, "-m", "gpuops.guard.daemon", str(home), str(cluster), *more]
