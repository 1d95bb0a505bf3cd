"""The guard: the second dead-man. And what is left when it is dead too: the node's own boot lease."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from gpuops.clusters.creation import bring_up
from gpuops.core import provider as contract
from gpuops.core.context import Context
from gpuops.core.errors import NodeError
from gpuops.core.models import Lease, Request
from gpuops.core.polling import Clock
from gpuops.core.processes import Identity, myself, started
from gpuops.guard import cleanup, daemon, guard_heartbeat, schedule, start
from gpuops.guard.schedule import Job
from gpuops.ledger.rows import ClusterState, RunState
from gpuops.ledger.store import ClusterRow, Ledger, RunRow
from gpuops.offers.lease_limits import LeaseLimits
from tests.conftest import HANG_S, Shell, until
from tests.fakes.provider import NAME, OWNER, Cloud, FakeClock, Fault, Scripted, surroundings

ROOT = Path(__file__).parents[3]
NOW = 1_800_000_000.0
ME = myself()
DEAD = Identity(ME.pid, ME.start - 5.0)
"""Our number, given to another process."""


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Cloud, Context]:
    return surroundings(tmp_path, monkeypatch)


@pytest.fixture
def other() -> Iterator[Identity]:
    """Somebody who lives: another command."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield Identity(process.pid, started(process.pid))
    process.kill()
    process.wait()


# -- what is to be done ---------------------------------------------------------------------------


def row(state: str = "up", owner_process: Identity | None = None, ephemeral: bool = False, lease: Lease | None = None,
        boot: float = NOW + 99) -> ClusterRow:  # fmt: skip
    lease, at = lease or Lease(), ClusterState(state)
    return ClusterRow(
        1, "a", NAME, Path("/p"), at, ephemeral, "t", {}, {}, boot, lease, owner_process, 0.0, None, None, ""
    )


def run(state: str, owner_process: Identity | None) -> RunRow:
    return RunRow(
        1, "r", 1, Path("/p"), Path("/p/r"), "project", {}, RunState(state), {}, None, owner_process, 0.0, None, None
    )


def test_who_needs_the_guard(other: Identity) -> None:
    long_ago = Lease(hard_end=NOW - schedule.LEASE_MARGIN_S - 1)
    just_now = Lease(hard_end=NOW - schedule.LEASE_MARGIN_S + 1)
    table: list[tuple[ClusterRow, list[RunRow], bool]] = [
        (row(), [], False),
        (row(owner_process=DEAD), [], False),
        (row("creating"), [], True),
        (row("creating", owner_process=DEAD), [], True),
        (row("creating", owner_process=other), [], False),
        (row("creating", owner_process=other, boot=NOW - schedule.LEASE_MARGIN_S - 1), [], True),
        (row("ending", owner_process=DEAD), [], True),
        (row("ending", owner_process=other), [], False),
        (row(ephemeral=True), [], True),
        (row(ephemeral=True, owner_process=other), [], False),
        (row(ephemeral=True), [run("home", None)], True),
        (row(ephemeral=True), [run("home", None), run("starting", other)], False),
        (row(ephemeral=True), [run("running", None), run("starting", other)], True),
        (row(owner_process=DEAD), [run("running", DEAD)], True),
        (row(), [run("running", None)], True),
        (row(), [run("running", DEAD)], True),
        (row(), [run("running", other)], False),
        (row(), [run("home", None)], False),
        (row(owner_process=other, lease=long_ago), [], True),
        (row(owner_process=other, lease=just_now), [], False),
        (row(owner_process=other, lease=Lease(None, 5.0, NOW - 100)), [], True),
    ]
    for cluster, runs, expected in table:
        assert schedule.needs_tending(cluster, runs, NOW, since_check_s=1.0) is expected, (cluster, runs)
    assert schedule.needs_tending(row(), [], NOW, schedule.NODE_CHECK_INTERVAL_S), "now and then it is checked"


# -- doing it -------------------------------------------------------------------------------------


def cluster(world: Context, *, owner_process: Identity | None = None, state: str = "up", lease: Lease | None = None,
            machine: bool = True, ephemeral: bool = False) -> int:  # fmt: skip
    ledger = world.ledger
    made = ledger.intend(provider=NAME, name="lab", folder=world.folder, ephemeral=ephemeral, token="t", request={},
                         boot_deadline=world.clock.now() + 60, lease=lease or Lease(),
                         owner_process=owner_process or DEAD, now=world.clock.now())  # fmt: skip
    if machine:
        ledger.got(made.id, Scripted(contract.Context(OWNER, world.home, world.env))._add(f"gpuops-{OWNER}-lab-0"))
    ledger.set_cluster(made.id, state=state, ready=world.clock.now() if state == "up" else None)
    return made.id


def running(world: Context, on: int, owner_process: Identity | None) -> RunRow:
    made = world.ledger.add_run(stem="toy", cluster=on, folder=world.folder, tree="project", request=REQUEST, facts={},
                                owner_process=ME, now=0.0)  # fmt: skip
    world.ledger.set_run(made.id, state="running", started=1.0, owner_process=owner_process)
    return world.ledger.run(made.id)


REQUEST = {"kind": "command", "mode": "run", "nodes": 1, "gpus": None, "argv": ["true"]}


def told(world: Context) -> str:
    return "; ".join(say for _, say in world.ledger.take_notices())


@pytest.mark.parametrize(
    ("state", "ephemeral", "say"),
    [
        ("creating", True, "lab was half-made when its command died: undone"),
        ("ending", False, "lab: teardown finished"),
        ("up", True, "lab was torn down: its command died before a run was started"),
    ],
)
def test_what_a_dead_command_left(there: tuple[Cloud, Context], state: str, ephemeral: bool, say: str) -> None:
    cloud, world = there
    lab = cluster(world, state=state, ephemeral=ephemeral)
    cleanup.clean_up(world, lab)
    assert cloud.machines() == []
    assert world.ledger.cluster(lab).state == "gone"
    assert say in told(world)


def test_what_a_living_command_has_in_hand_is_left_to_it(there: tuple[Cloud, Context], other: Identity) -> None:
    cloud, world = there
    for state in ("creating", "ending", "up"):
        lab = cluster(world, state=state, ephemeral=True, owner_process=other)
        cleanup.clean_up(world, lab)
        assert len(cloud.machines()) == 1
        world.ledger.set_cluster(lab, owner_process=DEAD)
        cleanup.clean_up(world, lab)


def test_a_lease_ends_a_cluster_even_while_its_keeper_lives(there: tuple[Cloud, Context], other: Identity) -> None:
    cloud, world = there
    lab = cluster(world, owner_process=other, lease=Lease(hard_end=world.clock.now() + 10))
    cleanup.clean_up(world, lab)
    assert len(cloud.machines()) == 1, "not before its end"
    world.clock.sleep(20)
    cleanup.clean_up(world, lab)
    assert cloud.machines() == []
    assert "lab reached the end of its lease and was ended" in told(world)


def test_a_lease_that_is_extended_at_the_last_moment_counts(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard has seen its end, and brings home what is there: then its nodes and the ledger are told of another."""
    cloud, world = there
    now = world.clock.now()
    lab = cluster(world, lease=Lease(hard_end=now - 1, idle_s=60.0))
    monkeypatch.setattr(
        cleanup, "save_cluster_edits", lambda *_: world.ledger.set_lease(lab, Lease(now + 3600, 60.0)) and []
    )
    cleanup.clean_up(world, lab)
    assert (world.ledger.cluster(lab).state, len(cloud.machines())) == ("up", 1)
    assert world.ledger.cluster(lab).owner_process is None
    world.clock.sleep(3700)
    monkeypatch.setattr(cleanup, "save_cluster_edits", lambda *_: [])
    cleanup.clean_up(world, lab)
    assert cloud.machines() == []
    assert not world.ledger.set_lease(lab, Lease()), "too late"


def test_who_takes_a_cluster_over_while_the_guard_looks_at_it_keeps_it(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch, other: Identity
) -> None:
    """Its provider may take seconds to answer: in between `gpuops down` has begun."""
    _, world = there
    lab = cluster(world)
    monkeypatch.setattr(
        cleanup, "all_machines_ended", lambda *_: bool(world.ledger.set_cluster(lab, owner_process=other))
    )
    cleanup.clean_up(world, lab)
    assert world.ledger.cluster(lab).owner_process == other


def test_a_run_that_a_command_was_quicker_to_take_is_left_to_it(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch, other: Identity
) -> None:
    """Between the guard's look and its beginning `gpuops stop` has become its owner."""
    _, world = there
    lab = cluster(world)
    one = running(world, lab, DEAD)
    take = cleanup._take_run
    monkeypatch.setattr(
        cleanup, "_take_run", lambda ctx, run: world.ledger.take_run_ownership(run.id, other) and take(ctx, run)
    )
    cleanup.clean_up(world, lab)
    assert (world.ledger.run(one.id).state, world.ledger.run(one.id).owner_process) == ("running", other)


def test_a_command_that_hangs_while_creating_is_ended_for(there: tuple[Cloud, Context], other: Identity) -> None:
    cloud, world = there
    lab = cluster(world, owner_process=other, state="creating", lease=Lease(hard_end=world.clock.now() + 86400))
    world.clock.sleep(61)
    cleanup.clean_up(world, lab)
    assert cloud.machines() == []
    assert "lab was not ready in time: undone" in told(world)


def test_a_node_that_cannot_be_reached_is_waited_for_but_not_beyond_its_lease(there: tuple[Cloud, Context]) -> None:
    """Nothing answers on it, and its provider says that it runs and bills: at the lease's end results are given up."""
    cloud, world = there
    lab = cluster(world, lease=Lease(hard_end=world.clock.now() + 10))
    one = running(world, lab, owner_process=None)
    with pytest.raises(NodeError, match="node0 is reached by 'pigeon'"):
        cleanup.clean_up(world, lab)
    assert len(cloud.machines()) == 1
    assert world.ledger.run(one.id).state == "running"
    world.clock.sleep(20)
    cleanup.clean_up(world, lab)
    assert cloud.machines() == []
    assert world.ledger.run(one.id).state == "home"
    assert "toy-1: " in told(world)


@pytest.mark.parametrize("queued", [None, "lives", "dies"])
def test_what_a_command_takes_over_is_not_ended_under_it(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch, other: Identity, queued: str | None
) -> None:
    """`down` stops a run and brings its results home, while the guard has followed it till now; or another run waits
    for its turn on the same machines, and its command may die."""
    cloud, world = there
    lab = cluster(world, ephemeral=True)
    one = running(world, lab, DEAD)

    def finish(*_: object) -> None:
        if queued:
            world.ledger.set_run(one.id, state="home", owner_process=None)
            running(world, lab, other if queued == "lives" else DEAD)
        else:
            world.ledger.set_cluster(lab, owner_process=other)
            world.ledger.set_run(one.id, owner_process=other)

    monkeypatch.setattr(cleanup, "_finish_run", finish)
    cleanup.clean_up(world, lab)
    assert len(cloud.machines()) == 1
    found = world.ledger.cluster(lab)
    assert (found.state, found.owner_process) == ("up", None if queued else other)
    for run in world.ledger.runs(cluster=lab):
        world.ledger.set_run(run.id, state="home", owner_process=None)
    world.ledger.set_cluster(lab, owner_process=DEAD)
    cleanup.clean_up(world, lab)
    assert cloud.machines() == []


def test_a_cluster_that_ended_by_itself_is_cleared_away(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    lab = cluster(world, lease=Lease(None, 1800.0))
    cleanup.clean_up(world, lab)
    assert world.ledger.cluster(lab).state == "up"
    assert world.ledger.cluster(lab).owner_process is None, "the guard keeps nothing that it does not work on"
    for path in cloud.folder.glob("machines/*"):
        path.unlink()
    cleanup.clean_up(world, lab)
    assert world.ledger.cluster(lab).state == "gone"
    assert "lab had ended by itself and was cleared away" in told(world)


@pytest.mark.parametrize("able", [True, "it has no door from inside"])
def test_machines_do_not_outlive_their_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, able: bool | str) -> None:
    """A watchdog whose node was idle for long ends what it can; what is rented goes on, until the guard sees that."""
    cloud, world = surroundings(tmp_path, monkeypatch, Clock())
    cloud.play(real=True, settle_s=0.0)
    provider = world.provisioner(NAME)
    monkeypatch.setattr(provider, "capabilities", {**provider.capabilities, "self_destruct": able})
    live = bring_up(world, Request(NAME, timeout_min=10.0), name="lab", ephemeral=False, wish=LeaseLimits(idle_min=1.0))
    live.close()
    world.ledger.set_cluster(live.row.id, owner_process=None)
    cleanup.clean_up(world, live.row.id)
    assert (world.ledger.cluster(live.row.id).state, len(cloud.machines())) == ("up", 1)
    (world.home / "local" / "lab" / "n0" / "ended.json").write_text('{"at": 0, "why": "nothing was run on it"}')
    if able is True:
        cleanup.clean_up(world, live.row.id)
        assert len(cloud.machines()) == 1, "before it may have been idle for too long it is not asked"
        world.ledger.set_cluster(live.row.id, ready=world.clock.now() - 61.0)
    cleanup.clean_up(world, live.row.id)
    assert (world.ledger.cluster(live.row.id).state, cloud.machines()) == ("gone", [])
    assert "its nodes had ended by themselves" in told(world)


@pytest.mark.parametrize("state", ["up", "ending"])
def test_what_is_rented_waits_once_for_what_is_on_it(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    cloud, world = there
    lab = cluster(world, lease=Lease(hard_end=1.0), state=state)
    world.ledger.set_cluster(lab, ready=2.0)
    running(world, lab, DEAD)
    asked: list[str] = []
    monkeypatch.setattr(cleanup, "_finish_run", lambda *_: asked.append("results"))
    monkeypatch.setattr(cleanup, "save_cluster_edits", lambda *_: asked.append("edits") or [])
    cleanup.clean_up(world, lab, saving=False)
    assert (asked, cloud.machines()) == ([], [])


class Hanging:
    """An attempt that is ended, or over when a test says so."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.is_ended = False

    def poll(self) -> int | None:
        return self.status

    def end(self) -> None:
        self.is_ended = True


class Office:
    """A guard whose attempts only are written down."""

    def __init__(self, world: Context, cluster: int) -> None:
        self.attempts: list[tuple[Hanging, Job, int]] = []
        self.guard = daemon.Guard(world.home, cluster, self._start)
        (world.home / "owner").write_text(OWNER + "\n")

    def _start(self, _home: Path, _cluster: int, job: Job, failures: int) -> Hanging:
        self.attempts.append((Hanging(), job, failures))
        return self.attempts[-1][0]

    @property
    def jobs(self) -> list[Job]:
        return [job for _, job, _ in self.attempts]

    def over(self, status: int) -> None:
        self.attempts[-1][0].status = status


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The guard's monotonic seconds."""
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_attempts_that_fail_are_made_again(there: tuple[Cloud, Context], clock: list[float]) -> None:
    """Each is told how many have failed before it; a good one lets the count begin again."""
    _, world = there
    office = Office(world, cluster(world, state="ending"))
    for failures in range(4):
        assert office.guard.round()
        assert office.attempts[-1][2] == failures
        assert len(office.attempts) == failures + 1, "one at a time"
        office.over(1)
        clock[0] += 0.5
        assert office.guard.round()
        assert len(office.attempts) == failures + 1, "not at once"
        clock[0] += schedule.retry_pause_s(failures + 1)
    assert office.guard.round()
    office.over(0)
    assert office.guard.round()
    assert office.attempts[-1][2] == 0


def test_what_fails_is_told_and_ends_once_it_is_possible(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A provider that raises: after a few attempts a notice says so, once; each is a line of the log."""
    cloud, world = there
    monkeypatch.setenv("SCRIPTED", str(cloud.folder))
    (world.home / "owner").write_text(OWNER + "\n")
    lab = cluster(world, state="ending")
    cloud.play(destroy_always=[Fault("KeyError", lie=True)], gone_s=0.3, settle_s=0.0)
    for failures in range(4):
        assert daemon.run_attempt(world.home, lab, Job.TEND, failures) == daemon.ATTEMPT_FAILED
        assert capsys.readouterr().err.count("Z lab: gpuops-") == 1
        said = told(world)
        assert ("lab cannot be looked after: gpuops-" in said) is (failures + 1 == schedule.NOTICE_FAILURES), said
    cloud.play(settle_s=0.0)
    assert daemon.run_attempt(world.home, lab, Job.TEND, 4) == 0
    assert cloud.machines() == []
    assert "lab is looked after again" in told(world)
    assert "Traceback" not in capsys.readouterr().err


def test_an_attempt_that_cannot_say_why_it_failed_is_told_all_the_same(
    there: tuple[Cloud, Context], clock: list[float]
) -> None:
    """As while an upgrade replaces its code."""
    _, world = there
    office = Office(world, cluster(world, state="ending"))
    (world.home / start.LOG).write_text("Traceback (most recent call last):\nImportError: cannot import name 'keep'\n")
    for failures in range(1, 6):
        assert office.guard.round()
        office.over(1)
        assert office.guard.round()
        clock[0] += schedule.retry_pause_s(failures)
        said = told(world)
        assert ("ended with 1: ImportError: cannot import name 'keep'; the guard goes on" in said) is (failures == 3)
    assert office.guard.round()
    office.over(daemon.ATTEMPT_FAILED)
    assert office.guard.round()
    assert told(world) == "", "it has said so itself"


def test_a_ledger_that_cannot_be_read_is_waited_for(there: tuple[Cloud, Context]) -> None:
    """Ever more seldom, while its home is there: nobody else ends what it names."""
    _, world = there
    (world.home / "owner").write_text(OWNER + "\n")
    ledger = world.home / "ledger.db"
    ledger.mkdir()
    slept: list[float] = []

    class Mended(FakeClock):
        def sleep(self, seconds: float) -> None:
            slept.append(seconds)
            if len(slept) == 50:
                ledger.rmdir()
            super().sleep(seconds)

    daemon.Guard(world.home, 1, clock=Mended()).watch()
    assert len(slept) == 50
    assert slept[0] == pytest.approx(schedule.RETRY_S, rel=0.1)
    assert slept[-1] > slept[0]
    assert guard_heartbeat.read(world.home, 1) is None, "no round was completed"


def test_a_home_that_is_gone_keeps_no_guard(tmp_path: Path) -> None:
    clock = FakeClock()
    daemon.Guard(tmp_path / "removed", 1, clock=clock).watch()
    assert clock.slept == []


def test_a_bug_does_not_end_the_guard(there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch) -> None:
    _, world = there
    rounds: list[int] = []

    def round_(_: daemon.Guard) -> bool:
        rounds.append(len(rounds))
        if len(rounds) == 1:
            raise RuntimeError("can't start new process")
        return False

    monkeypatch.setattr(schedule, "RETRY_S", 0.001)
    monkeypatch.setattr(daemon.Guard, "round", round_)
    daemon.Guard(world.home, 1).watch()
    assert rounds == [0, 1]


def test_a_guard_that_has_just_begun_looks_at_no_node_that_a_command_has_just_seen(
    there: tuple[Cloud, Context], clock: list[float]
) -> None:
    _, world = there
    lab = cluster(world, lease=Lease(idle_s=1800.0))
    office = Office(world, lab)
    assert office.guard.round()
    assert office.jobs == [], "a process that would find nothing new"
    clock[0] += schedule.NODE_CHECK_INTERVAL_S
    assert office.guard.round()
    assert office.jobs == [Job.TEND]


def test_an_attempt_that_hangs_keeps_no_cluster_beyond_its_lease(
    there: tuple[Cloud, Context], clock: list[float]
) -> None:
    _, world = there
    lab = cluster(world, lease=Lease(idle_s=1800.0))
    office = Office(world, lab)
    clock[0] += schedule.NODE_CHECK_INTERVAL_S
    assert office.guard.round()
    clock[0] += 10 * schedule.ATTEMPT_S
    assert office.guard.round()
    assert office.jobs == [Job.TEND], "without an end it may follow a run for as long as that takes"
    world.ledger.set_cluster(lab, lease=Lease(hard_end=time.time() - 2 * schedule.LEASE_MARGIN_S))
    assert office.guard.round()
    assert (office.attempts[0][0].is_ended, office.jobs) == (True, [Job.TEND, Job.TEND]), "one that knows of the end"
    world.ledger.set_cluster(lab, lease=Lease(hard_end=1.0))
    clock[0] += schedule.ATTEMPT_S - 1.0
    assert office.guard.round()
    assert len(office.attempts) == 2
    clock[0] += 1.0
    assert office.guard.round()
    assert (office.attempts[1][0].is_ended, office.jobs[2]) == (True, Job.END_AT_ONCE)
    clock[0] += 2 * schedule.ATTEMPT_S - 1.0
    assert office.guard.round()
    assert len(office.attempts) == 3, "the next has twice as long"


def test_a_lease_that_ends_while_an_attempt_is_waited_for_ends_the_wait(
    there: tuple[Cloud, Context], clock: list[float]
) -> None:
    _, world = there
    lab = cluster(world, state="ending")
    office = Office(world, lab)
    assert office.guard.round()
    office.over(1)
    clock[0] += 1.0
    assert office.guard.round()
    assert len(office.attempts) == 1
    clock[0] += 2 * schedule.LEASE_MARGIN_S
    office.guard._retry_at = clock[0] + 100.0
    world.ledger.set_cluster(lab, lease=Lease(hard_end=time.time() - schedule.LEASE_MARGIN_S - 1.0))
    assert office.guard.round()
    assert len(office.attempts) == 2


def test_at_the_second_time_it_is_ended_before_all_is_home(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud, world = there
    monkeypatch.setenv("SCRIPTED", str(cloud.folder))
    (world.home / "owner").write_text(OWNER + "\n")
    lab = cluster(world, lease=Lease(hard_end=1.0))
    assert daemon.run_attempt(world.home, lab, Job.END_AT_ONCE, 0) == 0
    assert cloud.machines() == []
    assert "lab reached the end of its lease and was ended, before all of it was home" in told(world)


def test_the_guard_does_not_leave_before_its_last_word(there: tuple[Cloud, Context], clock: list[float]) -> None:
    """An attempt dies with its guard, and may still fetch what a bucket has kept; but it is not waited for for ever."""
    _, world = there
    lab = cluster(world, ephemeral=True)
    office = Office(world, lab)
    assert office.guard.round()
    world.ledger.mark_gone(lab, 1.0, "its end")
    assert office.guard.round()
    clock[0] += daemon.CHILD_EXIT_TIMEOUT_S
    assert office.guard.round()
    clock[0] += 1.0
    assert not office.guard.round()
    office.over(0)
    assert not office.guard.round()


def test_an_attempt_that_is_to_be_made_again_keeps_no_guard(there: tuple[Cloud, Context]) -> None:
    _, world = there
    lab = cluster(world, ephemeral=True)
    office = Office(world, lab)
    assert office.guard.round()
    office.over(1)
    world.ledger.mark_gone(lab, 1.0, "another command was quicker")
    assert not office.guard.round()


def test_a_guard_is_of_one_cluster_not_of_its_number(there: tuple[Cloud, Context]) -> None:
    """In a ledger that was lost and begun again another cluster has it."""
    _, world = there
    lab = cluster(world, lease=Lease(idle_s=1800.0))
    office = Office(world, lab)
    assert office.guard.round()
    world.ledger.set_cluster(lab, token="another")
    assert not office.guard.round()


# -- as a process ---------------------------------------------------------------------------------


def guards(shell: Shell) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if "gpuops.guard.daemon" in process.cmdline() and str(shell.home) in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return found


def end_guards(shell: Shell) -> None:
    for one in guards(shell):
        with suppress(psutil.NoSuchProcess):  # of two that were started the second leaves by itself
            one.kill()
    until(lambda: not guards(shell), "their death")


def test_one_at_a_time_and_gone_when_nothing_is_left(shell: Shell) -> None:
    assert shell.run("up", "local", "--max-hours", "1").returncode == 0
    before = until(lambda: guards(shell), "a guard")  # or two: one has just begun, and will leave
    words = start.command(shell.home, 1)
    more = [subprocess.Popen(words, cwd=ROOT, env=shell.environment()) for _ in range(3)]
    assert [process.wait(HANG_S) for process in more] == [0, 0, 0]
    (left,) = until(lambda: len(found := guards(shell)) == 1 and found, "one guard")
    assert left in before
    assert shell.run("down").returncode == 0
    until(lambda: not guards(shell), "the guard gone")
    shell.expect_clean()


def test_a_killed_guard_is_replaced_by_the_next_command(shell: Shell) -> None:
    assert shell.run("up", "local", "--max-hours", "1").returncode == 0
    until(lambda: guards(shell), "a guard")
    end_guards(shell)
    shell.run("status")
    until(lambda: guards(shell), "another guard")
    assert shell.run("down").returncode == 0
    shell.expect_clean()


UP_THAT_NEVER_ENDS = """
import os, signal, sys
from gpuops.clusters import readiness
from gpuops.offers import price_terms
price_terms.BOOT_MARGIN_S = 4.0
readiness.contact_cluster = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)  # its node is made, and it is not over
from gpuops.cli import main
main(sys.argv[1:])
"""


def test_with_command_and_guard_dead_a_node_ends_by_its_boot_lease(shell: Shell) -> None:
    """SIGKILL for both before the run lease came: the node's own watchdog is what is left, and it suffices."""
    up = subprocess.Popen([sys.executable, "-c", UP_THAT_NEVER_ENDS, "up", "local", "--timeout", "0.05"], text=True,
                          cwd=shell.folder, env={**shell.environment(), "PYTHONPATH": str(ROOT)},
                          stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)  # fmt: skip
    shell.started.append(up)
    node = shell.home / "local" / "local-1" / "n0"
    stopped = psutil.Process(up.pid)
    until(lambda: stopped.status() == psutil.STATUS_STOPPED and guards(shell), "a node and a guard")
    end_guards(shell)
    os.kill(up.pid, signal.SIGKILL)
    up.wait()
    until(lambda: (node / "ended.json").exists(), "the end of the boot lease")
    assert json.loads((node / "ended.json").read_text())["why"] == "no client took it over in time after it started"
    until(lambda: not shell.processes(), "no process of the node left")
    ledger = Ledger.open(shell.home)
    assert [one.state for one in ledger.clusters()] == ["creating"], "nobody was there to write it down"
    ledger.close()
    shell.run("status")
    shell.expect_clean()
    until(lambda: not shell.cluster_states(), "the ledger's word for it")


def test_what_is_begun_while_the_guard_leaves_has_another(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its command saw that a guard was there, and started none."""
    _, world = there
    (world.home / "owner").write_text(OWNER + "\n")
    lab = cluster(world)
    world.ledger.release_ownership(lab, DEAD)
    started: list[list[str]] = []
    monkeypatch.setattr("gpuops.core.processes.start_background", lambda argv, **_: started.append(argv))
    monkeypatch.setattr("signal.signal", lambda *_: None)

    def watch(_: daemon.Guard) -> None:
        start.ensure(world.home, world.ledger.cluster(lab), waits=False)
        assert started == []
        running(world, lab, None)

    monkeypatch.setattr(daemon.Guard, "watch", watch)
    assert daemon.main(world.home, lab) == 0
    assert started == [start.command(world.home, lab)]


def test_who_sees_that_a_cluster_is_gone_sees_why(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard's word for it is in the ledger when the end is."""
    _, world = there
    lab = cluster(world, ephemeral=True)
    seen: list[str] = []
    real = Ledger.mark_gone

    def gone(self: Ledger, *args: object, **more: object) -> None:
        real(self, *args, **more)  # type: ignore[arg-type]
        seen.append(told(world))

    monkeypatch.setattr(Ledger, "mark_gone", gone)
    cleanup.clean_up(world, lab)
    assert ["lab was torn down" in say for say in seen] == [True]


def test_the_guard_knows_what_stands_in_the_projects_dotenv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    project.mkdir()
    (project / ".env").write_text("GPUOPS_TORCH_SPEC=torch==2.11.0\n= = =\n")
    monkeypatch.delenv("GPUOPS_TORCH_SPEC", raising=False)
    assert "GPUOPS_TORCH_SPEC" not in daemon.make_context(home).env
    assert daemon.make_context(home, project).env["GPUOPS_TORCH_SPEC"] == "torch==2.11.0"
    monkeypatch.setenv("GPUOPS_TORCH_SPEC", "torch")
    assert daemon.make_context(home, project).env["GPUOPS_TORCH_SPEC"] == "torch"
