"""What `gpuops stop` says of a run by what its nodes answer."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

import pytest

from gpuops.commands import stop
from gpuops.core.context import Context
from gpuops.core.errors import NodeError, UsageError
from gpuops.core.models import Lease
from gpuops.core.processes import Identity, started
from gpuops.core.reporting import Silent
from gpuops.ledger.store import RunRow
from gpuops.runs.outcome.node_report import ReasonKind, lost_report


@pytest.fixture
def run(world: Context) -> RunRow:
    """One that another command keeps, and has noted as running."""
    other = Identity(os.getppid(), started(os.getppid()))
    now = time.time()
    cluster = world.ledger.intend(
        provider="local", name="lab", folder=world.folder, ephemeral=False, token="t", request={},
        boot_deadline=now + 60, lease=Lease(), owner_process=other, now=now,
    )  # fmt: skip
    row = world.ledger.add_run(stem="a", cluster=cluster.id, folder=world.folder, tree="project", request={}, facts={},
                               owner_process=other, now=now)  # fmt: skip
    world.ledger.set_run(row.id, state="running", started=now)
    return world.ledger.run(row.id)


def answer(patch: pytest.MonkeyPatch, *kinds: str) -> None:
    """Each node's answer."""
    results = {index: lost_report(index, "as it says", ReasonKind(kind)) for index, kind in enumerate(kinds)}
    patch.setattr(stop, "open_session", lambda *_, **__: SimpleNamespace(close=lambda: None))
    patch.setattr(stop, "stop_and_wait", lambda *_: results)


def outcome(missing: str = "") -> SimpleNamespace:
    """What `finish` makes of them."""
    return SimpleNamespace(missing=missing, kept="")


def test_results_that_did_not_come_are_not_said_to_be_home(
    world: Context, run: RunRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, "stop")
    monkeypatch.setattr(stop, "finish", lambda *_: outcome("node0 ended before all results were home"))
    world.ledger.set_run(run.id, owner_process=None)
    with pytest.raises(NodeError) as caught:
        stop.stop(world, run, Silent())
    assert caught.value.message == "results of a-1 are not home: node0 ended before all results were home"
    assert caught.value.hint == f"what came home is in {run.home}"


def test_one_that_no_node_has_heard_of_yet_is_not_called_stopped(
    world: Context, run: RunRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is noted as running before the first node is asked to start it, which it then does all the same."""
    answer(monkeypatch, "no-run", "no-run")
    with pytest.raises(UsageError) as caught:
        stop.stop(world, run, Silent())
    assert (caught.value.message, caught.value.hint) == ("a-1 is only just being started", "try again: gpuops stop a-1")


def test_what_another_command_has_brought_home_is_not_judged_again(
    world: Context, run: RunRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who keeps the run may be through with it, and its machines gone, before its nodes have told this command."""
    answer(monkeypatch, "stop")
    judged: list[RunRow] = []
    monkeypatch.setattr(stop, "finish", lambda _world, row, *_: judged.append(row) or outcome())
    world.ledger.set_run(run.id, owner_process=None)
    stop.stop(world, run, Silent())
    assert judged == [run], "of those that live, this command is the only one"
    assert world.ledger.run(run.id).owner_process == world.me, "the guard leaves it alone"
    world.ledger.set_run(run.id, state="home", owner_process=None)
    stop.stop(world, run, Silent())
    assert judged == [run]


def test_one_that_a_node_has_stopped_is(world: Context, run: RunRow, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, "stop", "no-run")
    assert stop.stop(world, run, Silent()) == f"a-1 is stopped; its results are in {run.home}"
