"""Whether a command that was stopped still owns what it had begun."""

from __future__ import annotations

import pytest

from gpuops.commands.end_after_run import end_cluster
from gpuops.core.context import Context
from gpuops.core.heartbeat import Heart
from gpuops.core.models import Lease
from gpuops.core.processes import Identity, myself
from gpuops.core.run_models import Verdict, VerdictOutcome
from gpuops.ledger.store import ClusterRow, RunRow
from gpuops.nodes.session import ClusterSession
from gpuops.runs import taken_over
from gpuops.runs.taken_over import TakenOver

ME = myself()
GUARD = Identity(ME.pid, ME.start)
"""Another process, which lives."""


@pytest.fixture
def begun(world: Context) -> tuple[ClusterRow, RunRow]:
    """A cluster with a run, both of this command."""
    world.me = Identity(ME.pid, ME.start - 5.0)
    row = world.ledger.intend(provider="local", name="lab", folder=world.folder, ephemeral=True, token="t", request={},
                              boot_deadline=0.0, lease=Lease(), owner_process=world.me, now=0.0)  # fmt: skip
    run = world.ledger.add_run(stem="toy", cluster=row.id, folder=world.folder, tree="project", request={}, facts={},
                               owner_process=world.me, now=0.0)  # fmt: skip
    return row, run


def stop_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Heart, "was_silent", lambda _: True)


def test_who_was_not_stopped_asks_nobody(world: Context, begun: tuple[ClusterRow, RunRow]) -> None:
    """`down` in another terminal ends a run that this command goes on to show."""
    row, run = begun
    world.ledger.set_run(run.id, owner_process=GUARD)
    world.ledger.set_cluster(row.id, owner_process=GUARD)
    taken_over.check_run(world, run)
    assert not taken_over.is_cluster_taken(world, row)


@pytest.mark.parametrize("owner", ["mine", "nobody's"])
def test_what_nobody_took_goes_on(
    world: Context, begun: tuple[ClusterRow, RunRow], monkeypatch: pytest.MonkeyPatch, owner: str
) -> None:
    row, run = begun
    stop_for_long(monkeypatch)
    if owner == "nobody's":  # an attempt of the guard was here, and failed
        world.ledger.set_run(run.id, owner_process=None)
        world.ledger.set_cluster(row.id, owner_process=None)
    taken_over.check_run(world, run)
    assert not taken_over.is_cluster_taken(world, row)
    assert world.ledger.run(run.id).owner_process == world.ledger.cluster(row.id).owner_process == world.me


def test_what_the_guard_does_is_left_to_it(
    world: Context, begun: tuple[ClusterRow, RunRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    row, run = begun
    said: list[str] = []
    monkeypatch.setattr(world.out, "say", said.append)
    stop_for_long(monkeypatch)
    world.ledger.set_run(run.id, owner_process=GUARD)
    world.ledger.set_cluster(row.id, owner_process=GUARD)
    with pytest.raises(TakenOver, match="the guard goes on with toy-1, since this command was stopped"):
        taken_over.check_run(world, run)
    assert end_cluster(world, ClusterSession(row, [], [], [], []), "its run ended") == 0
    assert said == ["the guard ends lab, since this command was stopped"]
    assert world.ledger.cluster(row.id).state == "creating"
    code, _, say = taken_over.describe_takeover(world, row)
    assert code == 130
    assert say.endswith("follow it with: gpuops logs toy-1 -f")


def test_what_the_guard_has_finished_is_told_with_its_verdict(
    world: Context, begun: tuple[ClusterRow, RunRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    row, run = begun
    stop_for_long(monkeypatch)
    verdict = Verdict(VerdictOutcome.FAILED, 1, "rank 3 exited with 7")
    world.ledger.set_run(run.id, state="home", owner_process=None, verdict=verdict)
    world.ledger.add_run(stem="toy", cluster=row.id, folder=world.folder, tree="project", request={}, facts={},
                         owner_process=GUARD, now=1.0)  # fmt: skip
    with pytest.raises(TakenOver) as taken:  # and another terminal has begun a run on a cluster that stays
        taken_over.check_run(world, run)
    code, _, say = taken_over.describe_takeover(world, row, taken.value.run)
    assert code == 1
    home = f"results are in {run.home}"
    assert say == f"the guard finished toy-1 while this command was stopped; {home}\nrank 3 exited with 7"
