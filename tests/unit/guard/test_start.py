"""What the start of a guard is taken for: its first heartbeat, or its end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuops.core.errors import LocalDisk
from gpuops.guard import guard_heartbeat, start
from tests.fakes.provider import FakeClock
from tests.unit.guard.test_guard_heartbeat import row


@dataclass
class Process:
    """A guard that was started, and how it ended."""

    status: int | None = None

    def poll(self) -> int | None:
        return self.status


@pytest.fixture
def home(tmp_path: Path) -> Path:
    guard_heartbeat.lock_path(tmp_path, 1)
    return tmp_path


def wait(home: Path, process: Process | None, clock: FakeClock | None = None, log_bytes: int = 0) -> None:
    start.await_first_beat(home, row(), process, log_bytes, clock or FakeClock())


def test_a_guard_works_once_it_has_completed_a_round(home: Path) -> None:
    """That it holds its lock is not enough."""

    class Later(FakeClock):
        def sleep(self, seconds: float) -> None:
            guard_heartbeat.start(home, row(), {})
            super().sleep(seconds)

    clock = Later()
    guard_heartbeat.claim(home, 1)
    wait(home, Process(), clock)
    assert clock.slept
    wait(home, None)


def test_a_guard_that_ends_at_once_is_told_with_its_last_line(home: Path) -> None:
    (home / start.LOG).write_text("of long ago\nModuleNotFoundError: No module named 'filelock'\n\n")
    with pytest.raises(LocalDisk) as found:
        wait(home, Process(1))
    assert found.value.exit_code == 4
    assert found.value.message == "the guard of lab ended at once: ModuleNotFoundError: No module named 'filelock'"
    assert str(home / start.LOG) in found.value.hint
    with pytest.raises(LocalDisk, match=r"the guard of lab ended at once$"):
        wait(home, Process(-9), log_bytes=(home / start.LOG).stat().st_size)


@pytest.mark.parametrize("process", [None, Process()])
def test_a_guard_that_never_begins_is_not_waited_for_for_ever(home: Path, process: Process | None) -> None:
    guard_heartbeat.claim(home, 1)
    clock = FakeClock()
    with pytest.raises(LocalDisk, match="the guard of lab has not begun to work within 30 s"):
        wait(home, process, clock)
    assert sum(clock.slept) == pytest.approx(guard_heartbeat.FIRST_BEAT_S, rel=0.1)


def test_a_guard_that_had_nothing_to_do_is_no_failure(home: Path) -> None:
    wait(home, Process(0))


def test_a_guard_that_begins_is_started_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Process] = []
    monkeypatch.setattr("gpuops.core.processes.start_background", lambda *_, **__: begun.append(Process()) or begun[-1])
    start.ensure(home, row(), waits=False)
    start.ensure(home, row(), waits=False)
    assert len(begun) == 1, "it has not taken the lock yet"
    guard_heartbeat.claim(home, 1)
    start.ensure(home, row(), waits=False)
    assert len(begun) == 2, "the first one has had the lock: it leaves, and may not see what is new"
    begun[-1].status = 1
    start.ensure(home, row(), waits=False)
    assert len(begun) == 3, "it has ended"
    monkeypatch.setattr(guard_heartbeat, "FIRST_BEAT_S", -1.0)
    start.ensure(home, row(), waits=False)
    assert len(begun) == 4, "it does not begin"
