"""Starting the guard of a cluster: detached, with the environment that the cluster was rented with."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gpuops.guard import guard_heartbeat

if TYPE_CHECKING:
    from gpuops.ledger.store import ClusterRow


def ensure(home: Path, row: ClusterRow) -> None:
    """Start the guard of a cluster unless one works; returns at once. Raises OSError.

    The process is detached (no terminal, own session) and keeps this command's environment: the keys that a cluster
    is rented with are those of its guard.
    """
    from filelock import FileLock, Timeout

    from gpuops.core.processes import start_background

    try:
        with FileLock(guard_heartbeat.lock_path(home, row.id), timeout=0):
            pass
    except Timeout:
        if not guard_heartbeat.must_be_replaced(home, row, os.environ, time.monotonic()):
            return
        guard_heartbeat.kill_guard(home, row.id)
    with open(home / "guard.log", "ab") as log:
        start_background(
            command(home, row.id),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=home,
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )


def command(home: Path, cluster: int, *more: str) -> list[str]:
    """The command line of a guard; with a job and its number of failed attempts, that of its child."""
    return [sys.executable, "-m", "gpuops.guard.daemon", str(home), str(cluster), *more]
