"""What an attempt of the guard ends although nothing can be written down, and what it leaves alone."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

from gpuops.core import provider as contract
from gpuops.core.context import Context
from gpuops.core.models import Lease
from gpuops.core.processes import Identity, myself
from gpuops.core.run_models import Verdict, VerdictOutcome
from gpuops.guard import cleanup
from gpuops.ledger.store import ClusterRow, LedgerUnwritable, RunRow
from gpuops.sync.run_folder import RunHome
from gpuops.sync.run_record import RunRecord
from tests.conftest import HANG_S
from tests.fakes.provider import NAME, OWNER, Cloud, Scripted, surroundings

ME = myself()
DEAD = Identity(ME.pid, ME.start - 5.0)
"""Our number, given to another process."""


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Cloud, Context]:
    return surroundings(tmp_path, monkeypatch)


def add_cluster(world: Context, state: str, *, ephemeral: bool = False, lease: Lease | None = None) -> int:
    """A cluster of one machine whose command has died."""
    now = world.clock.now()
    row = world.ledger.intend(
        provider=NAME, name="lab", folder=world.folder, ephemeral=ephemeral, token="t", request={},
        boot_deadline=now + 60, lease=lease or Lease(), owner_process=DEAD, now=now,
    )  # fmt: skip
    world.ledger.got(row.id, Scripted(contract.Context(OWNER, world.home, world.env))._add(f"gpuops-{OWNER}-lab-0"))
    world.ledger.set_cluster(row.id, state=state, ready=now if state == "up" else None)
    return row.id


def add_run(world: Context, cluster: int) -> RunRow:
    row = world.ledger.add_run(
        stem="toy", cluster=cluster, folder=world.folder, tree="project",
        request={"kind": "command", "mode": "run", "nodes": 1, "gpus": None, "argv": ["true"]}, facts={},
        owner_process=DEAD, now=0.0,
    )  # fmt: skip
    world.ledger.set_run(row.id, state="running", started=1.0)
    return row


def fill_disk(world: Context, *, full: bool) -> None:
    """Let nothing be written to the ledger."""
    world.ledger.db.execute(f"PRAGMA query_only = {int(full)}")


@pytest.mark.parametrize(
    ("state", "ephemeral", "lease"),
    [
        ("creating", True, None),
        ("ending", False, None),
        ("up", True, None),
        ("up", False, Lease(hard_end=1.0)),
    ],
)
def test_a_full_disk_keeps_no_machine_alive(
    there: tuple[Cloud, Context], state: str, ephemeral: bool, lease: Lease | None
) -> None:
    """What cannot be recorded is recorded by a later attempt."""
    cloud, world = there
    lab = add_cluster(world, state, ephemeral=ephemeral, lease=lease)
    fill_disk(world, full=True)
    with pytest.raises(LedgerUnwritable):
        cleanup.clean_up(world, lab)
    assert cloud.machines() == []
    fill_disk(world, full=False)
    cleanup.clean_up(world, lab)
    assert world.ledger.cluster(lab).state == "gone"


@pytest.mark.parametrize("state", ["creating", "ending", "up"])
def test_a_full_disk_takes_nothing_from_a_living_command(there: tuple[Cloud, Context], state: str) -> None:
    cloud, world = there
    lab = add_cluster(world, state, ephemeral=True)
    world.ledger.set_cluster(lab, owner_process=ME)
    world.me = DEAD
    fill_disk(world, full=True)
    cleanup.clean_up(world, lab)
    assert len(cloud.machines()) == 1


@pytest.mark.parametrize("is_full", [False, True])
def test_a_run_that_this_attempt_did_not_finish_keeps_its_machines(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    """A command took it over, and died as well: its results are not home."""
    cloud, world = there
    lab = add_cluster(world, "up", ephemeral=True)
    one = add_run(world, lab)
    fill_disk(world, full=is_full)
    monkeypatch.setattr(cleanup, "_finish_run", lambda *_: False)
    if is_full:
        with pytest.raises(LedgerUnwritable):
            cleanup.clean_up(world, lab)
    else:
        cleanup.clean_up(world, lab)
    assert len(cloud.machines()) == 1
    assert world.ledger.run(one.id).state == "running"


def test_runs_of_an_array_are_followed_at_the_same_time(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes of one that has ended wait for its results to be fetched, and not for ever."""
    _, world = there
    lab = add_cluster(world, "up")
    names = {add_run(world, lab).name for _ in range(2)}
    both, finished = threading.Barrier(2), set()

    def finish(ctx: Context, _row: ClusterRow, run: RunRow, *_: object) -> bool:
        both.wait(HANG_S)
        ctx.ledger.set_run(run.id, state="home", owner_process=None)
        finished.add(run.name)
        return True

    monkeypatch.setattr(cleanup, "_finish_run", finish)
    cleanup.clean_up(world, lab)
    assert finished == names


@pytest.mark.parametrize("holder", [DEAD, ME])
def test_word_is_left_once_of_the_runs_of_an_array_that_nobody_starts(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch, holder: Identity
) -> None:
    """Its latest run knows them, which may be home. A living command starts them itself."""
    _, world = there
    lab = add_cluster(world, "up")
    for waiting in ("4,6-9", "8-9"):
        run = add_run(world, lab)
        world.ledger.set_run(run.id, facts={"array": [holder.pid, holder.start], "array_waiting": waiting})
    world.ledger.set_run(run.id, state="home")
    monkeypatch.setattr(cleanup, "_finish_run", lambda *_: False)
    for _ in range(2):
        cleanup.clean_up(world, lab)
    why = "since its command died or was stopped"
    say = f"the other runs of an array on lab are not started, {why}: --array 8-9 starts them"
    assert [notice for _, notice in world.ledger.take_notices()] == ([say] if holder == DEAD else [])
    cleanup.clean_up(world, lab)
    assert world.ledger.take_notices() == []


@pytest.mark.parametrize("missing", ["", "a.pt is not home"])
def test_a_verdict_that_the_ledger_missed_is_taken_over(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """Its command could not write it there, and has died; the nodes may have ended since, and say nothing."""
    _, world = there
    lab = add_cluster(world, "up")
    one = add_run(world, lab)
    home = RunHome(one.home)
    home.create()
    verdict = Verdict(VerdictOutcome.DONE, 0, "all well")
    home.write_record(RunRecord(run=one.name, ended=5.0, verdict=verdict, missing=missing))
    asked = []
    monkeypatch.setattr(cleanup, "_open_session", lambda *_: asked.append(1) or 1 / 0)
    with nullcontext() if not missing else pytest.raises(ZeroDivisionError):
        cleanup.clean_up(world, lab)
    assert bool(asked) == bool(missing), "what is not home is on the nodes"
    row = world.ledger.run(one.id)
    assert (row.state, row.verdict) == (("running", None) if missing else ("home", verdict))
