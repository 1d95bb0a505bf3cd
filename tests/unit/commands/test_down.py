"""In which order `gpuops down` ends clusters and brings home what needs no machine."""

from __future__ import annotations

import os
import sqlite3
import time
from typing import Any

import pytest

from gpuops.commands.down import DeferredFetch, _save_runs, down, leave_there
from gpuops.core.context import Context
from gpuops.core.errors import Interrupted, LocalDisk, NodeError, StillBilling, UsageError
from gpuops.core.models import Lease
from gpuops.core.processes import Identity, started
from gpuops.core.reporting import Silent
from gpuops.core.run_models import Verdict
from gpuops.ledger.store import ClusterRow, RunRow
from gpuops.nodes.session import ClusterSession
from gpuops.runs.finish import RunOutcome
from gpuops.runs.outcome.run_outcome import Complete, Lost
from gpuops.sync.run_folder import RunHome
from tests.unit.runs.test_finish import a_run

PULL = "gpuops pull r-1 fetches what is in s3://results/lab/r-1"


def clusters(world: Context) -> list[ClusterRow]:
    """Two that are up."""
    now = time.time()
    for name in ("one", "two"):
        row = world.ledger.intend(
            provider="local", name=name, folder=world.folder, ephemeral=False, token=name, request={},
            boot_deadline=now + 60, lease=Lease(), owner_process=world.me, now=now,
        )  # fmt: skip
        world.ledger.set_cluster(row.id, state="up")
    return world.ledger.clusters()


@pytest.fixture
def order(world: Context, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done; both clusters have something in a bucket."""
    found: list[str] = []

    def rest_of(name: str) -> DeferredFetch:
        def rest() -> RunOutcome:
            found.append(f"fetch {name}")
            results = Lost("node0 could not keep 2 files") if name == "one" else Complete()
            return RunOutcome(Verdict("done", None, "", ""), RunHome(world.folder), results)

        return DeferredFetch(rest, f"what {name} kept: gpuops pull")

    def ended(world: Context, cluster: int, *_: object, **__: object) -> None:
        found.append(f"end {world.ledger.cluster(cluster).name}")
        world.ledger.mark_gone(cluster, time.time(), "gpuops down")

    monkeypatch.setattr("gpuops.commands.down._save_runs", lambda _world, row, *_: [rest_of(row.name)])
    monkeypatch.setattr("gpuops.commands.down._save_edits", lambda *_: None)
    monkeypatch.setattr("gpuops.commands.down.tear_down", ended)
    return found


def test_every_cluster_is_ended_before_anything_is_fetched(
    world: Context, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(world.out, "say", said.append)
    assert down(world, clusters(world), Silent(), force=False) == ["one is gone", "two is gone"]
    assert order == ["end one", "end two", "fetch one", "fetch two"]
    assert said == ["one is gone", "two is gone", "note: node0 could not keep 2 files"]


def test_a_ledger_that_another_command_holds_keeps_no_other_cluster_alive(
    world: Context, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = clusters(world)
    world.ledger.db.execute("PRAGMA busy_timeout = 1")
    other = sqlite3.connect(world.ledger.path, isolation_level=None)

    def ended(_world: Context, cluster: int, *_: object, **__: object) -> None:
        order.append(f"end {cluster}")
        if len(order) == 1:
            world.ledger.mark_gone(cluster, time.time(), "gpuops down")
            other.execute("BEGIN EXCLUSIVE")
        else:
            raise StillBilling("two may still be there", "wait")

    monkeypatch.setattr("gpuops.commands.down.tear_down", ended)
    with pytest.raises(StillBilling, match="two may still be there"):
        down(world, rows, Silent(), force=False)
    other.execute("ROLLBACK")
    assert order == [f"end {row.id}" for row in rows]


def test_the_end_tells_the_total(world: Context, order: list[str]) -> None:
    first, second = clusters(world)
    world.ledger.set_cluster(first.id, offer={"prices": [{"what": "pod", "per_hour": 1.6}]}, created=time.time() - 7800)
    world.ledger.set_cluster(second.id, offer={"prices": [{"what": "pod", "per_hour": 1.6}]})
    rows = [world.ledger.cluster(first.id), world.ledger.cluster(second.id)]
    assert down(world, rows, Silent(), force=False) == [
        "one is gone; it cost about $3.47 in 2 h 10 min",
        "two is gone",
    ], "less than a cent is not worth a word"
    assert order[:2] == ["end one", "end two"]


def test_one_that_may_still_bill_is_said_at_once(
    world: Context, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def billing(*_: object, **__: object) -> None:
        raise StillBilling("two may still be there", "gpuops down two")

    rows = clusters(world)
    monkeypatch.setattr("gpuops.commands.down.tear_down", billing)
    with pytest.raises(StillBilling):
        down(world, rows, Silent(), force=False)
    assert order == []


def test_interrupted_while_it_is_fetched_nothing_is_left_to_a_guard(
    world: Context, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> RunOutcome:
        raise Interrupted("interrupted", PULL)

    monkeypatch.setattr("gpuops.commands.down._save_runs", lambda *_: [DeferredFetch(interrupted, "")])
    monkeypatch.setattr("gpuops.guard.start.ensure", lambda *_, **__: order.append("guard"))
    with pytest.raises(Interrupted) as found:
        down(world, clusters(world), Silent(), force=False)
    assert (found.value.message, found.value.hint) == ("interrupted", PULL)
    assert order == ["end one", "end two"]


@pytest.mark.usefixtures("order")
def test_of_several_errors_the_worst_decides_the_exit_code(world: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that may bill counts for more than results that are not home, whichever comes first."""
    said: list[str] = []
    monkeypatch.setattr(world.out, "say", said.append)
    errors = {"one": StillBilling("one may still bill", "look"), "two": NodeError("two has results", "try again")}

    def failing(world: Context, cluster: int, *_: object, **__: object) -> None:
        raise errors[world.ledger.cluster(cluster).name]

    monkeypatch.setattr("gpuops.commands.down.tear_down", failing)
    with pytest.raises(StillBilling, match="one may still bill"):
        down(world, clusters(world), Silent(), force=False)
    assert said == ["error: two has results\nhint: try again"]


@pytest.mark.usefixtures("order")
def test_one_download_that_fails_keeps_no_other_from_home(world: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(world.out, "say", said.append)
    fetched: list[str] = []

    def fetch(name: str) -> RunOutcome:
        fetched.append(name)
        if name == "one":
            raise LocalDisk("this disk is full", "free some space")
        return RunOutcome(Verdict("done", None, "", ""), RunHome(world.folder), Complete())

    monkeypatch.setattr(
        "gpuops.commands.down._save_runs",
        lambda _world, row, *_: [DeferredFetch(lambda: fetch(row.name), f"gpuops pull {row.name}")],
    )
    with pytest.raises(LocalDisk, match="this disk is full"):
        down(world, clusters(world), Silent(), force=False)
    assert fetched == ["one", "two"]
    assert said[2:] == ["note: gpuops pull one"]


def test_what_was_given_up_on_one_cluster_keeps_no_other_download_from_home(
    world: Context, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both clusters have ended: nothing bills while it is fetched."""

    def give_up(_world: object, row: ClusterRow, _progress: object, failed: list[NodeError]) -> None:
        if row.name == "two":
            failed.append(NodeError("two answered nonsense", "look"))

    monkeypatch.setattr("gpuops.commands.down._save_edits", give_up)
    with pytest.raises(NodeError, match="two answered nonsense"):
        down(world, clusters(world), Silent(), force=False)
    assert order == ["end one", "end two", "fetch one", "fetch two"]


def test_what_is_not_fetched_because_another_cluster_may_bill_is_named(
    world: Context, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(world.out, "say", said.append)

    def end_first(world: Context, cluster: int, *_: object, **__: object) -> None:
        if world.ledger.cluster(cluster).name == "two":
            raise StillBilling("two may still be there", "gpuops down two")
        world.ledger.mark_gone(cluster, time.time(), "gpuops down")

    monkeypatch.setattr("gpuops.commands.down.tear_down", end_first)
    with pytest.raises(StillBilling):
        down(world, clusters(world), Silent(), force=False)
    assert (order, said) == ([], ["one is gone", "note: what one kept: gpuops pull"])


@pytest.mark.usefixtures("order")
@pytest.mark.parametrize("is_full", [True, False])
def test_an_interruption_stays_one_where_the_guard_cannot_take_over(
    world: Context, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    """What is not handed over is named, with the command that ends it; the rest is handed over all the same."""
    guarded: list[str] = []

    def ensure(_home: object, row: ClusterRow, **_: object) -> None:
        if row.name == "one":
            raise OSError(28, "No space left on device")
        guarded.append(row.name)

    def interrupt(world: Context, *_: object, **__: object) -> None:
        world.ledger.db.execute(f"PRAGMA query_only = {int(is_full)}")
        raise Interrupted("interrupted", "")

    monkeypatch.setattr("gpuops.guard.start.ensure", ensure)
    monkeypatch.setattr("gpuops.commands.down.tear_down", interrupt)
    with pytest.raises(Interrupted) as found:
        down(world, clusters(world), Silent(), force=False)
    assert "one may still be there, and is not handed to the guard: " in found.value.message
    assert guarded == ([] if is_full else ["two"])
    assert found.value.hint == ("gpuops down one two" if is_full else "gpuops down one")
    assert ("the guard goes on ending two" in found.value.message) is not is_full


def test_what_is_left_there_is_no_result_of_runs_that_are_not_home(world: Context) -> None:
    row = world.ledger.intend(provider="local", name="lab", folder=world.folder, ephemeral=False, token="t", request={},
                              boot_deadline=0.0, lease=Lease(), owner_process=world.me, now=0.0)  # fmt: skip
    for state in ("running", "home"):
        run = world.ledger.add_run(stem="toy", cluster=row.id, folder=world.folder, tree="project",
                                   request={"outs": ["*.pt"]}, facts={}, owner_process=world.me, now=1.0)  # fmt: skip
        world.ledger.set_run(run.id, state=state)
    leave_there(world, [row], ["!raw.pt"])
    assert [run.request["outs"] for run in world.ledger.runs()] == [["*.pt", "!raw.pt"], ["*.pt"]]
    with pytest.raises(UsageError, match=r"^--out raw\.pt: down only leaves files there$") as caught:
        leave_there(world, [row], ["raw.pt"])
    assert caught.value.hint == "gpuops down --out '!raw.pt'"


def test_the_runs_of_an_array_stop_at_the_same_time_and_are_no_longer_its_commands(
    world: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = clusters(world)[0]
    other = Identity(os.getppid(), started(os.getppid()))
    for node in (0, 1):
        run = a_run(world, row, created=0.0, owner_process=other)
        request = {**run.request, "nodes": 1, "nodes_at": [node]}
        world.ledger.set_run(run.id, state="running", started=1.0, request=request)
    done: list[tuple[str, object]] = []

    def save(world: Context, _session: object, run: RunRow, *_: object) -> None:
        owners = {one.owner_process for one in world.ledger.runs(cluster=row.id)}
        done.append((f"save {run.name}", owners))

    nodes: list[Any] = [None] * 2
    session = ClusterSession(row, nodes, nodes, nodes, [0.0] * 2)
    session.close = lambda: None  # type: ignore[method-assign]
    monkeypatch.setattr("gpuops.commands.down.open_session", lambda *_, **__: session)
    monkeypatch.setattr("gpuops.commands.down._save_run", save)
    monkeypatch.setattr(
        "gpuops.commands.down.stop_nodes", lambda part, run, *_: done.append((f"stop {run}", [*part.part_of]))
    )
    _save_runs(world, row, Silent(), [])
    assert sorted(done[:2]) == [("stop r-1", [0]), ("stop r-2", [1])]
    assert done[2:] == [("save r-1", {world.me}), ("save r-2", {world.me})]
