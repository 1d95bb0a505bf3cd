"""A lease is judged by two clocks of this computer: one that jumps ends nothing, and keeps nothing from its end."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.agent.lease_clock import ClockReading
from gpuops.core.context import Context
from gpuops.core.models import Lease
from gpuops.guard import daemon, lease_time
from gpuops.guard.lease_time import FirstSight, see_end
from gpuops.guard.schedule import ATTEMPT_S, LEASE_MARGIN_S, NODE_CHECK_INTERVAL_S, Job, next_job
from gpuops.ledger.store import ClusterRow
from tests.fakes.provider import NAME, FakeClock, surroundings
from tests.unit.guard.test_schedule import NOW
from tests.unit.guard.test_schedule import row as cluster_row

END = 10_000.0
SEEN = ClockReading(wall=1_000.0, mono=50.0, boot_id="b1")


def after(seconds: float, *, jump: float = 0.0, boot_id: str = "b1") -> ClockReading:
    return ClockReading(SEEN.wall + seconds + jump, SEEN.mono + seconds, boot_id)


@pytest.mark.parametrize(
    ("seconds", "jump", "is_over"),
    [
        (8_999, 0, False),
        (9_001, 0, True),
        (100, 20_000, False),  # ahead: boot time counts
        (9_001, 20_000, True),  # and ends it
        (9_001, -20_000, True),  # behind: boot time counts, or nothing would end it
        (8_999, -20_000, False),
        (8_970, 40, False),  # both must say so where they nearly agree
        (9_001, -40, False),
        (9_041, -40, True),
        (9_001, 61, True),
        (9_001, -61, True),
    ],
)
def test_an_end_comes_by_both_clocks_or_by_the_time_since_the_boot(seconds: float, jump: float, is_over: bool) -> None:
    first = FirstSight(END, SEEN, is_sure=True)
    assert (lease_time.lease_time(first, after(seconds, jump=jump), can_ask=False) > END) is is_over


@given(seconds=st.floats(0, 1e8), jump=st.floats(-1e9, 1e9), sure=st.booleans(), can_ask=st.booleans())
def test_whatever_the_clock_is_set_to_there_is_an_end(seconds: float, jump: float, sure: bool, can_ask: bool) -> None:
    """At most a minute late by the time since the boot."""
    now = lease_time.lease_time(FirstSight(END, SEEN, sure), after(seconds, jump=jump), can_ask=can_ask)
    assert now >= SEEN.wall + seconds - 60.001


@pytest.mark.parametrize(
    ("seconds", "jump", "is_over", "by_one"),
    [
        (100, 20_000, True, True),  # a virtual machine that stood still is set right, or the clock is set wrong
        (9_001, -20_000, True, False),
        (8_999, 0, False, False),
        (8_970, 40, False, False),
        (9_001, 0, True, False),
    ],
)
def test_an_end_in_doubt_has_come_by_either_clock_since_the_nodes_are_asked(
    seconds: float, jump: float, is_over: bool, by_one: bool
) -> None:
    now = after(seconds, jump=jump)
    assert SURE.is_in_doubt(now) is by_one
    assert (lease_time.lease_time(SURE, now, can_ask=True) > END) is is_over
    assert UNSURE.is_in_doubt(now)
    assert (lease_time.lease_time(UNSURE, after(seconds, jump=jump), can_ask=True) > END) is (is_over or jump == 40)


SURE, UNSURE = FirstSight(END, SEEN, is_sure=True), FirstSight(END, SEEN, is_sure=False)


@pytest.mark.parametrize(
    ("known", "end", "now", "is_new", "found"),
    [
        (None, END, SEEN, True, SURE),
        (None, END, SEEN, False, UNSURE),  # its file was lost, or an earlier gpuops wrote none
        (SURE, END, after(500, jump=20_000), False, SURE),  # the next guard of this boot
        (UNSURE, END, after(500), False, UNSURE),
        (SURE, END + 1, after(500), False, FirstSight(END + 1, after(500), is_sure=True)),  # a command has moved it
        (SURE, END, after(500, boot_id="b2"), False, FirstSight(END, after(500, boot_id="b2"), is_sure=False)),
        (SURE, None, after(500), False, None),
        (SURE, END, after(500, boot_id=""), False, None),
    ],
)
def test_what_is_taken_for_the_first_sight(
    known: FirstSight | None, end: float | None, now: ClockReading, is_new: bool, found: FirstSight | None
) -> None:
    assert see_end(known, end, now, is_new=is_new) == found


def test_without_a_first_sight_the_wall_clock_counts() -> None:
    assert lease_time.lease_time(None, after(5, jump=-99), can_ask=True) == SEEN.wall - 94


@given(left=st.floats(1, 1e6), jump=st.floats(-1e9, 1e9))
def test_an_end_that_a_node_tells_comes_then(left: float, jump: float) -> None:
    moved = lease_time.move_end(UNSURE, left, after(100, jump=jump))
    assert lease_time.lease_time(moved, after(100 + left - 0.1, jump=jump), can_ask=True) < END + 0.1
    assert lease_time.lease_time(moved, after(100 + left + 61, jump=jump), can_ask=True) > END


def test_it_survives_its_file(tmp_path: Path) -> None:
    (tmp_path / "guards").mkdir()
    assert lease_time.read(tmp_path, 1) is None
    lease_time.write(tmp_path, 1, SURE)
    assert lease_time.read(tmp_path, 1) == SURE
    moved = lease_time.move_end(SURE, 5.0, after(7))
    lease_time.write(tmp_path, 1, moved)
    assert lease_time.read(tmp_path, 1) == moved
    (tmp_path / "guards" / "1.clocks.json").write_text('{"end": []}')
    assert lease_time.read(tmp_path, 1) is None
    lease_time.forget(tmp_path, 1)
    lease_time.forget(tmp_path, 1)
    assert [*(tmp_path / "guards").iterdir()] == []
    lease_time.write(tmp_path / "missing", 1, SURE)  # as on a full disk


def test_an_unsure_end_is_asked_about_once_a_minute() -> None:
    late = cluster_row(lease=Lease(hard_end=NOW - LEASE_MARGIN_S - 1))

    def job(ran_s: float, is_sure: bool) -> Job | None:
        return next_job(late, [], NOW, ran_s, ATTEMPT_S, working=False, rested=True, is_sure=is_sure)

    assert [job(5.0, True), job(5.0, False), job(NODE_CHECK_INTERVAL_S, False)] == [Job.TEND, None, Job.TEND]


# -- a guard, and its child -------------------------------------------------------------------------


class JumpingClock(FakeClock):
    jump = 0.0

    def now(self) -> float:
        return super().now() + self.jump


@pytest.fixture
def clock() -> JumpingClock:
    return JumpingClock()


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: JumpingClock) -> Context:
    monkeypatch.setattr(lease_time, "boot_id", lambda: "b1")
    return surroundings(tmp_path, monkeypatch, clock)[1]


def add_cluster(world: Context, lease_s: float) -> ClusterRow:
    """A cluster whose command lives."""
    now = world.clock.now()
    return world.ledger.intend(
        provider=NAME, name="lab", folder=world.folder, ephemeral=False, token="t", request={}, boot_deadline=now + 600,
        lease=Lease(hard_end=now + lease_s), owner_process=world.me, now=now,
    )  # fmt: skip


def test_a_clock_that_jumps_for_a_moment_ends_no_run(
    there: Context, clock: JumpingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Job] = []

    class Ended:
        def poll(self) -> int:
            return 0

        def end(self) -> None:
            pass

    def start(_home: Path, _cluster: int, job: Job, _failures: int) -> Ended:
        started.append(job)
        return Ended()

    row = add_cluster(there, 5 * 3600)
    (there.home / "guards").mkdir()
    monkeypatch.setattr(daemon, "make_context", lambda *_: there)
    monkeypatch.setattr(there.ledger, "close", lambda: None)
    guard = daemon.Guard(there.home, row.id, start, clock)
    assert guard.round()
    there.ledger.set_cluster(row.id, state="up", ready=clock.now())
    assert guard.round()
    for clock.jump in (20_000.0, 20_000.0, 0.0, -20_000.0):
        clock.sleep(1.0)
        assert guard.round()
        now = lease_time.lease_time(guard._first_sight, read(clock), can_ask=False)
        assert not there.ledger.cluster(row.id).is_overdue(now)
    assert started == []
    clock.sleep(5 * 3600 + LEASE_MARGIN_S)
    guard.round()
    assert started == [Job.TEND], "by the time since the boot, whatever the clock says"


def read(clock: JumpingClock) -> ClockReading:
    return lease_time.read_clocks(clock)
