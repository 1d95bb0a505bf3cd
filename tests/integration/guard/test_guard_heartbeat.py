"""A guard that hangs, as a process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from gpuops.core.heartbeat import here
from gpuops.core.installed_code import installed_code
from gpuops.core.processes import Identity, started
from gpuops.guard import guard_heartbeat, start
from tests.conftest import until
from tests.unit.guard.test_guard_heartbeat import row

GUARD = """
import subprocess, sys
from pathlib import Path
from filelock import FileLock
from gpuops.guard import guard_heartbeat
from tests.unit.guard.test_guard_heartbeat import row
home = Path(sys.argv[1])
with FileLock(guard_heartbeat.lock_path(home, 1)):
    last = guard_heartbeat.start(home, row(), {})
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    print(child.pid, flush=True)
    input()
"""


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[tuple[Identity, Identity]]:
    """A guard that holds its lock and completes no round, and its child."""
    words = [sys.executable, "-c", GUARD, str(tmp_path)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
    ) as process:
        assert process.stdout
        child = int(process.stdout.readline())
        yield Identity(process.pid, started(process.pid)), Identity(child, started(child))
        process.kill()


def test_a_guard_that_hangs_is_replaced(
    tmp_path: Path, hanging: tuple[Identity, Identity], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[list[str]] = []
    monkeypatch.setattr("gpuops.core.processes.start_background", lambda argv, **_: begun.append(argv))
    start.ensure(tmp_path, row(), waits=False)
    assert begun == [], "it works"
    monkeypatch.setattr(guard_heartbeat, "STALE_S", 0.0)
    start.ensure(tmp_path, row(), waits=False)
    assert begun == [start.command(tmp_path, 1)], (guard_heartbeat.read(tmp_path, 1), here(), installed_code(), hanging)
    until(lambda: not any(one.alive() for one in hanging), "its end, and its child's")
    with FileLock(guard_heartbeat.lock_path(tmp_path, 1), timeout=60):
        pass
