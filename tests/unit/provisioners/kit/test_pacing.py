"""Turns of one account: seconds apart, whoever takes them."""

from __future__ import annotations

from pathlib import Path

from provisioners.kit.pacing import Pace
from tests.fakes.provider import FakeClock


def test_turns_are_apart_for_all_that_share_the_file(tmp_path: Path) -> None:
    clock = FakeClock()
    mine, others = (Pace(tmp_path / "pace" / "one", 12.0, clock) for _ in range(2))
    mine.wait()
    assert clock.slept == [0.0]
    others.wait()
    assert 11.9 < clock.slept[-1] <= 12.0
    assert 11.9 < mine.try_now() < 12.1
    clock.sleep(12.0)
    assert mine.try_now() == 0.0
    assert 11.9 < others.try_now() < 12.1, "it was taken"


def test_neither_a_clock_set_back_nor_a_folder_that_cannot_be_written_stops_anybody(tmp_path: Path) -> None:
    clock = FakeClock()
    (tmp_path / "one").write_text(f"{clock.now() + 1e6}")
    assert Pace(tmp_path / "one", 1.0, clock).try_now() == 0.0
    (tmp_path / "one").write_text("what is this")
    assert Pace(tmp_path / "one", 1.0, clock).try_now() == 0.0
    (tmp_path / "file").write_text("")
    Pace(tmp_path / "file" / "one", 1.0, clock).wait()
    assert clock.slept == [1.0]
