"""When a run is asked for a snapshot: on clocks that the test holds."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from gpuops.agent import lease_clock
from gpuops.agent.lease_clock import ClockReading
from gpuops.agent.node import Node
from gpuops.agent.peers.events import SnapshotRequested
from gpuops.agent.run import snapshot_request
from gpuops.agent.run.snapshot_request import RequestPlan, SnapshotRequests, plan_request
from gpuops.agent.run_documents import LaunchSpec, Reason

H, M = 3600.0, 60.0


@pytest.mark.parametrize(
    ("left", "lead"),
    [
        (24 * H, 10 * M),
        (20 * M, 10 * M),
        (19 * M, 9.5 * M),
        (10 * M, 5 * M),  # a run that began late is not asked at its first step
        (4.0, 2.0),
    ],
)
def test_ten_minutes_before_the_end_or_halfway(left: float, lead: float) -> None:
    assert plan_request(None, left, 500.0) == RequestPlan(500.0 + left, 500.0 + left - lead)


@pytest.mark.parametrize("left", [None, 0.0, -3.0])
def test_without_an_end_or_after_it_nothing_is_asked(left: float | None) -> None:
    assert plan_request(None, left, 500.0) is None
    assert plan_request(RequestPlan(400.0, 390.0), left, 500.0) is None


@pytest.mark.parametrize(
    ("moved_by", "lead"),
    [
        (0.0, None),
        (29.0, None),  # a client told the same end again
        (-29.0, None),
        (2 * H, 10 * M),  # extended
        (10 * M, 8 * M),  # extended, to 16 minutes from now
        (-4 * M, 1 * M),  # cut
    ],
)
def test_an_end_that_was_moved_is_another_one(moved_by: float, lead: float | None) -> None:
    """Six minutes before the one that was asked for."""
    before = RequestPlan(1000.0, math.inf)
    now = 1000.0 - 6 * M
    after = plan_request(before, 6 * M + moved_by, now)
    if lead is None:
        assert after is before
    else:
        assert after == RequestPlan(1000.0 + moved_by, 1000.0 + moved_by - lead)


class World:
    """A node with a lease, a run on it, a clock, and all that was noted."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node = Node(str(folder / "lab/n1"))
        self.folder = Path(self.node.run("r-1"))
        self.folder.mkdir(parents=True)
        self.now = ClockReading(1_000_000.0, 500.0, "b1")
        self.events: list[tuple[str, dict[str, Any]]] = []
        monkeypatch.setattr(snapshot_request, "LEASE_CHECK_INTERVAL_S", 0.0)
        spec = LaunchSpec("r-1", node=1)
        self.saving = SnapshotRequests(
            self.node, spec, lambda kind, reason: self.events.append((kind, reason)), lambda: self.now
        )

    def lease(self, ends_in: float | None) -> None:
        noted = lease_clock.renewed_lease(self.now, ends_in, 60.0)
        (self.folder.parent.parent / "lease.json").write_text(json.dumps(noted._asdict()))

    def after(self, seconds: float) -> None:
        self.now = ClockReading(self.now.wall + seconds, self.now.mono + seconds, "b1")

    def asked(self) -> dict[str, Any] | None:
        """What the file says."""
        path = self.folder / "snapshot"
        return dict(json.loads(path.read_text())) if path.exists() else None


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_once_before_each_end(world: World) -> None:
    world.lease(2 * H)
    told = []
    for minute in range(240):
        if minute == 115:
            world.lease(2 * H)  # extended, when the first end was five minutes off
        reason = world.saving.due()
        if reason is not None:
            told.append((minute, reason.say, (reason.at or 0.0) - world.now.wall))
        world.after(M)
    assert told == [(110, "its lease ends in 10 min", 600.0), (225, "its lease ends in 10 min", 600.0)]


def test_a_lease_without_an_end_and_no_lease_at_all(world: World) -> None:
    assert world.saving.due() is None
    world.lease(None)
    world.after(24 * H)
    assert world.saving.due() is None


def test_a_wall_clock_that_is_set_asks_for_nothing(world: World) -> None:
    world.lease(24 * H)
    assert world.saving.due() is None
    world.now = world.now._replace(wall=world.now.wall + 24 * H - 100.0)
    assert world.saving.due() is None
    world.after(23 * H + 49 * M)
    assert world.saving.due() is None
    world.after(1 * M)
    assert world.saving.due() == Reason("lease", "its lease ends in 10 min", at=world.now.wall + 10 * M, node=1)


REASON = Reason("rebalance", "AWS may take node1 back soon", by="AWS", at=1.0, node=1)


def test_asked_by_a_file_that_is_written_anew(world: World) -> None:
    assert world.asked() is None
    assert world.saving.ask(REASON)
    assert world.asked() == REASON.document()
    os.utime(world.folder / "snapshot", (1.0, 1.0))  # some kernels' clocks for files stand still for milliseconds
    before = (world.folder / "snapshot").stat()
    world.after(31.0)
    assert world.saving.ask(REASON._replace(node=0))
    after = (world.folder / "snapshot").stat()
    assert before.st_ino != after.st_ino, "never half of one"
    assert before.st_mtime_ns != after.st_mtime_ns
    assert [kind for kind, _ in world.events] == ["snapshot"] * 2


def test_what_is_asked_at_the_same_time_is_one_request(world: World) -> None:
    assert world.saving.ask(REASON)
    world.after(29.0)
    assert not world.saving.ask(REASON._replace(kind="lease"))
    assert world.asked() == REASON.document()
    assert len(world.events) == 1


def test_another_node_is_heard_once_and_ourselves_never(world: World) -> None:
    event = SnapshotRequested(0, 7.0, REASON._replace(node=0))
    world.saving.receive(event._replace(node=1))  # a link that came back says all of it again
    assert world.asked() is None
    for _ in range(2):
        world.saving.receive(event)
        world.after(60.0)
    assert world.events == [("snapshot", REASON._replace(node=0, sender=0).document())]
    world.saving.receive(event._replace(at=8.0))
    assert len(world.events) == 2


def test_a_disk_that_takes_no_file_ends_nothing(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    (world.folder / "snapshot").mkdir()
    assert not world.saving.ask(REASON)
    assert world.events == []
    assert "a snapshot could not be asked for" in capsys.readouterr().err
