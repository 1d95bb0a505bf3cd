"""What a node notes of when its run wrote what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpuops.agent.run_files import OutputTimes


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def written(run: Path) -> list[Any]:
    file = run / "times.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_each_look_notes_what_has_grown(tmp_path: Path) -> None:
    clock = Clock()
    times = OutputTimes(str(tmp_path), clock)
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "3.out").write_text("one\n")
    (tmp_path / "events.jsonl").write_text("{}\n")
    clock.now += 0.5
    times.check()
    assert written(tmp_path) == []
    clock.now += 0.5
    times.check()
    clock.now += 1
    times.check()
    with (tmp_path / "ranks" / "3.out").open("a") as file:
        file.write("two\n")
    (tmp_path / "launcher.err").write_text("W\n")
    times.check(last=True)
    assert written(tmp_path) == [
        {"at": 1001.0, "sizes": {"rank3.out": 4}},
        {"at": 1002.0, "sizes": {"launcher.err": 2, "rank3.out": 8}},
    ]


def test_a_long_run_is_noted_more_coarsely(tmp_path: Path) -> None:
    clock = Clock()
    times = OutputTimes(str(tmp_path), clock)
    with (tmp_path / "launcher.out").open("w", buffering=1) as file:
        for _ in range(24 * 3600):
            clock.now += 1
            file.write("x\n")
            times.check()
    moments = [note["at"] for note in written(tmp_path)]
    assert len(moments) < 3600 * 5
    assert 20 < moments[-1] - moments[-2] < 30
    assert moments[99] - moments[98] == 1.0


def test_a_clock_that_was_set_back_does_not_end_it(tmp_path: Path) -> None:
    clock = Clock()
    times = OutputTimes(str(tmp_path), clock)
    (tmp_path / "launcher.out").write_text("x")
    clock.now -= 500
    times.check()
    assert len(written(tmp_path)) == 1


def test_a_full_disk_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "launcher.out").write_text("x")
    (tmp_path / "times.jsonl").symlink_to("/dev/full")
    OutputTimes(str(tmp_path)).check(last=True)
