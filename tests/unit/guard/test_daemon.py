"""The guard's own rounds."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from gpuops.core.context import Context
from gpuops.core.models import Lease
from gpuops.guard import guard_heartbeat, start
from gpuops.guard.daemon import Guard, make_context
from gpuops.ledger.store import ClusterRow
from tests.fakes.provider import FakeClock


class FullDisk(io.StringIO):
    def write(self, _text: str) -> int:
        raise OSError(28, "No space left on device")


def test_a_full_disk_under_its_log_does_not_end_the_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[str] = []

    def fail_once(_: Guard) -> bool:
        rounds.append("round")
        if len(rounds) == 1:
            raise RuntimeError("a bug")
        return False

    monkeypatch.setattr(Guard, "round", fail_once)
    monkeypatch.setattr(sys, "stderr", FullDisk())
    Guard(tmp_path, 1, clock=FakeClock()).watch()
    assert len(rounds) == 2


def test_a_home_that_does_not_answer_does_not_end_the_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what lies behind a network, say; only one that was removed has no clusters any more."""
    (tmp_path / "a file").touch()
    for home, rounds in ((tmp_path / "a file" / "home", 3), (tmp_path / "removed", 1)):
        left = [False, False, True]

        def fail(_: Guard, left: list[bool] = left) -> bool:
            if left.pop(0):
                return False
            raise OSError

        monkeypatch.setattr(Guard, "round", fail)
        Guard(home, 1, clock=FakeClock()).watch()
        assert len(left) == 3 - rounds


def intend(world: Context, token: str) -> ClusterRow:
    return world.ledger.intend(
        provider="local", name="lab", folder=world.folder, ephemeral=False, token=token, request={},
        boot_deadline=0.0, lease=Lease(), owner_process=world.me, now=0.0,
    )  # fmt: skip


def test_a_cluster_of_a_new_ledger_keeps_what_its_own_guard_has_written(world: Context) -> None:
    """A guard of another cluster leaves, whose number this one has by now."""
    row = intend(world, "new")
    guard_heartbeat.lock_path(world.home, row.id)
    guard_heartbeat.start(world.home, row, {})
    former = Guard(world.home, row.id)
    former._token = "of a ledger that was lost"
    assert not former.round()
    assert former.wanted_row() == row
    assert guard_heartbeat.read(world.home, row.id)


def test_an_attempt_does_not_replace_the_guard_that_it_works_for(
    world: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an upgrade in place that guard's code is another: to end it ends the attempt."""
    row = intend(world, "t")
    monkeypatch.setattr(start, "ensure", lambda *_, **__: pytest.fail("a guard was looked for"))
    make_context(world.home).ensure_guard(row)
