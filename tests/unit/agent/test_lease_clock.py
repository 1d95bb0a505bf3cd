"""When a node ends: on clocks that the test holds."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.agent import lease_clock
from gpuops.agent.lease_clock import ClockReading, IdleTimer, Lease, first_lease, next_end, renewed_lease
from gpuops.agent.node import Node

START = ClockReading(wall=1_000_000.0, mono=500.0, boot_id="b1")


def after(seconds: float, *, wall_jump: float = 0.0, reboot: bool = False) -> ClockReading:
    """The clocks `seconds` later; the wall clock may have been set, the machine restarted."""
    mono = 10.0 if reboot else START.mono + seconds
    return ClockReading(START.wall + seconds + wall_jump, mono, "b2" if reboot else "b1")


def left(noted: Lease, now: ClockReading, quiet_s: float = 0.0, live: bool = False) -> float | None:
    end = next_end(noted, now, quiet_s, live)
    return None if end is None else end.left_s


def test_without_ends_there_is_none() -> None:
    assert left(renewed_lease(START, None, None), after(1e9)) is None
    assert left(Lease(), after(1e9)) is None


def test_a_hard_end_comes_with_the_clocks() -> None:
    noted = renewed_lease(START, 100.0, None)
    assert left(noted, after(60)) == 40
    assert left(noted, after(160)) == -60


def test_a_wall_clock_set_back_lengthens_nothing() -> None:
    assert left(renewed_lease(START, 100.0, None), after(90, wall_jump=-5000)) == 10


@pytest.mark.parametrize(
    ("jump", "remaining"), [(0.0, 90.0), (60.0, 30.0), (-60.0, 90.0), (61.0, 90.0), (20_000.0, 90.0), (-20_000.0, 90.0)]
)
@pytest.mark.parametrize("noted", [renewed_lease(START, 100.0, None), first_lease(START, 100.0, None, None)])
def test_a_wall_clock_that_was_set_ends_nothing(noted: Lease, jump: float, remaining: float) -> None:
    """A small difference may be a clock's error, and the earlier end wins; a jump is none."""
    assert left(noted, after(10, wall_jump=jump)) == remaining
    assert left(noted, after(101, wall_jump=jump)) <= -1.0, "and it keeps nothing alive"


def test_where_boots_have_no_id_the_earlier_end_wins() -> None:
    """After a new start the monotonic clock is behind, however long ago the old one was."""
    noted = renewed_lease(START._replace(boot_id=""), 100.0, None)
    for seconds, jump, remaining in ((101, 5000.0, -5001.0), (10, -5000.0, 90.0)):
        assert left(noted, after(seconds, wall_jump=jump)._replace(boot_id="")) == remaining


def test_an_earlier_agent_noted_no_second_clock_for_its_boot_lease() -> None:
    assert left(first_lease(START, 100.0, None, None)._replace(boot_mono=None), after(10, wall_jump=5000)) == -4910


def test_after_a_reboot_only_the_wall_counts() -> None:
    assert left(renewed_lease(START, 100.0, None), after(90, reboot=True)) == 10
    assert left(first_lease(START, 100.0, None, None), after(90, reboot=True)) == 10
    assert left(first_lease(START, 100.0, None, None), after(90, wall_jump=5000, reboot=True)) == -4990


@given(seconds=st.floats(0, 1e6), jump=st.floats(-1e6, 1e6), ends_in=st.floats(0, 1e6))
def test_nothing_moves_a_hard_end_back(seconds: float, jump: float, ends_in: float) -> None:
    remaining = left(renewed_lease(START, ends_in, None), after(seconds, wall_jump=jump))
    assert remaining is not None
    assert remaining <= ends_in - seconds + 1e-6


def test_the_boot_lease_holds_until_a_client_sends_another() -> None:
    noted = first_lease(START, 60.0, None, None)
    end = next_end(noted, after(61), 0.0, False)
    assert end == (-1.0, "no client took it over in time after it started")
    assert left(renewed_lease(after(30), 1000.0, None), after(61)) == 969


def test_idleness_ends_only_a_node_without_a_run() -> None:
    noted = renewed_lease(START, None, 1800.0)
    assert left(noted, after(0), quiet_s=1801) == -1
    assert left(noted, after(0), quiet_s=1801, live=True) is None
    end = next_end(noted, after(0), 1801, False)
    assert end is not None
    assert end.why == "nothing was run on it for 30 min"


def test_what_nobody_has_fetched_takes_the_place_of_the_idle_end() -> None:
    noted = renewed_lease(START, 9000.0, 1800.0)
    assert next_end(noted, START, 1801.0, False, 7200.0) == (
        5399.0,
        "no client downloaded the results of its run for 120 min",
    )
    assert next_end(noted, START, 100.0, False, 60.0) == (-40.0, "no client downloaded the results of its run for 60 s")
    assert left(noted, START, live=True) == 9000.0, "no end of that kind while a run is on"
    held = next_end(noted, after(8000), 0.0, False, 7200.0)
    assert held == (1000.0, "its lease ended"), "never beyond the hard end"
    assert next_end(renewed_lease(START, None, None), after(1e9), 1e9, False, 60.0) is None, (
        "no idle end, no other either"
    )


def test_the_machines_own_watchdog_is_told_of_a_lease(tmp_path: Path) -> None:
    lease_clock.move_boot_end(str(tmp_path), 1000.7)
    assert (tmp_path / "end").read_text() == "1120\n"
    lease_clock.move_boot_end(str(tmp_path), None)
    assert (tmp_path / "end").read_text() == "none\n"
    assert [path.name for path in tmp_path.iterdir()] == ["end"]


def test_that_it_cannot_be_told_fails_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lease_clock.move_boot_end(str(tmp_path / "gone"), 1000.0)
    lease_clock.move_boot_end(None, 1000.0)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert f"the watchdog of {tmp_path}/gone" in said[0]


def test_two_who_extend_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each writes a whole file, and the later one counts."""
    node, ends = Node(str(tmp_path)), [200.0]
    real = os.replace

    def replace(source: str, target: str) -> None:
        if ends and target == node.path("lease.json"):  # another thread, just before the first one's file has its name
            other = threading.Thread(target=lease_clock.lease, args=(node, {"ends_in": ends.pop()}, None))
            other.start()
            other.join(60)
            assert (lease_clock.read_lease(node).hard_wall or 0.0) > time.time() + 150
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    lease_clock.lease(node, {"ends_in": 100.0}, None)
    assert time.time() < (lease_clock.read_lease(node).hard_wall or 0.0) < time.time() + 150
    assert {path.name for path in tmp_path.iterdir()} == {"activity", "lease.json"}


def test_the_first_end_wins() -> None:
    noted = first_lease(START, 50.0, 100.0, 10.0)
    assert left(noted, START) == 10
    assert left(noted, START, live=True) == 50


@pytest.mark.parametrize(("seconds", "words"), [(1.0, "1 s"), (119, "119 s"), (120, "2 min"), (1800, "30 min")])
def test_times_are_spoken(seconds: float, words: str) -> None:
    assert lease_clock.format_duration(seconds) == words


def test_quiet_counts_from_the_last_touch_not_from_a_jumping_clock() -> None:
    quiet = IdleTimer()
    assert quiet.seconds(START.wall - 5, START) == 5
    assert quiet.seconds(START.wall - 5, after(2, wall_jump=90_000)) == 7
    assert quiet.seconds(START.wall + 90_003, after(4, wall_jump=90_000)) == 0
    assert quiet.seconds(START.wall + 90_003, after(9, wall_jump=-90_000)) == 5


def test_a_touch_in_the_future_is_not_negative_quiet() -> None:
    assert IdleTimer().seconds(START.wall + 100, START) == 0
