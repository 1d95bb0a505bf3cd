"""Who counts as alive: by the system at its own place, by its heartbeat elsewhere and where it is stopped."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from gpuops.core import heartbeat
from gpuops.core.heartbeat import SILENCE_MAX_S, Heart, Place, Pulse
from gpuops.core.processes import Activity, Identity, myself

NOW, UTC = 50_000.0, 1_800_000_000.0
HERE = Place("laptop", "monday", "host")
CONTAINER = dataclasses.replace(HERE, namespace="container")
BEFORE = dataclasses.replace(HERE, boot="sunday")
OTHER = Place("desktop", "friday", "host")
OLD = SILENCE_MAX_S + 1.0


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "here", lambda: HERE)


def last(place: Place, silent_s: float) -> Pulse:
    """The monotonic clock of another machine tells nothing here."""
    return Pulse(place, NOW - silent_s if place.boot == HERE.boot else 3.0, UTC - silent_s)


@pytest.mark.parametrize(
    ("activity", "pulse", "alive"),
    [
        (Activity.RUNS, None, True),  # of an earlier gpuops
        (Activity.STOPPED, None, True),
        (Activity.ENDED, None, False),
        (Activity.RUNS, last(HERE, OLD), True),  # a full disk, most often
        (Activity.STOPPED, last(HERE, 12.0), True),  # Ctrl-Z, and fg
        (Activity.STOPPED, last(HERE, OLD), False),
        (Activity.ENDED, last(HERE, 0.0), False),
        (Activity.RUNS, last(Place(), OLD), True),  # of a system that tells no place
        (Activity.ENDED, last(CONTAINER, 12.0), True),  # what the system says of its pid is of another process
        (Activity.RUNS, last(CONTAINER, OLD), False),
        (Activity.ENDED, last(OTHER, 12.0), True),
        (Activity.RUNS, last(OTHER, OLD), False),
        (Activity.RUNS, last(OTHER, -OLD), False),
        (Activity.RUNS, last(BEFORE, 12.0), False),
    ],
)
def test_who_is_alive(monkeypatch: pytest.MonkeyPatch, activity: Activity, pulse: Pulse | None, alive: bool) -> None:
    monkeypatch.setattr(Identity, "activity", lambda _: activity)
    assert heartbeat.is_alive(Identity(7, 1.0), pulse, NOW, UTC) is alive


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """By who has read its pid in the ledger."""
    heart = Heart(tmp_path)
    owner = Identity(os.getpid(), heart.process.start, tmp_path / heartbeat.FOLDER)
    assert heartbeat.read(owner) is None
    heart.beat()
    pulse = heartbeat.read(owner)
    assert pulse
    assert (pulse.place, heartbeat.lives(owner)) == (HERE, True)
    heart._end()
    assert heartbeat.read(owner) is None
    assert heartbeat.lives(owner)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"place": [1], "at": 0}', '{"place": ["", "", ""]}'])
def test_a_heartbeat_that_cannot_be_read_decides_nothing(tmp_path: Path, text: str) -> None:
    me = myself()
    owner = Identity(me.pid, me.start, tmp_path)
    (tmp_path / f"{me.pid}-{me.start:.2f}.json").write_text(text)
    assert heartbeat.read(owner) is None
    assert heartbeat.lives(owner)


def test_a_disk_that_cannot_be_written_stops_no_process(tmp_path: Path) -> None:
    Heart(tmp_path / "no" / "home").beat()


def test_a_process_knows_that_it_was_stopped_for_long(tmp_path: Path) -> None:
    """Whichever comes first when it is continued: its next heartbeat, or its question."""
    now = [NOW]
    heart = Heart(tmp_path, lambda: now[0])
    now[0] += SILENCE_MAX_S
    heart.beat()
    assert not heart.was_silent()
    now[0] += OLD
    assert heart.was_silent()
    heart.beat()
    assert heart.was_silent()


def test_a_process_knows_that_nothing_was_heard_of_it(tmp_path: Path) -> None:
    """It worked all the time; but its disk was full, and where its pid tells nothing it counts as dead."""
    now = [NOW]
    heart = Heart(tmp_path / "no" / "home", lambda: now[0])
    for _ in range(2):
        now[0] += SILENCE_MAX_S / 2 + 1.0
        heart.beat()
    assert heart.was_silent()


def test_what_killed_processes_left_is_forgotten(tmp_path: Path) -> None:
    old, fresh = tmp_path / "1-1.00.json", tmp_path / "2-2.00.json"
    for path in (old, fresh):
        path.write_text("{}")
    os.utime(old, (0, 0))
    heartbeat._forget_old(tmp_path)
    assert [*tmp_path.iterdir()] == [fresh]
