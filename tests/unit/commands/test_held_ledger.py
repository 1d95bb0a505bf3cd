"""Another command holds the ledger when a run ends: its verdict is told and its machines end all the same."""

from __future__ import annotations

import io
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuops.cli.terminal.output import Output
from gpuops.clusters.selection import Choice
from gpuops.commands import end_after_run, run_attempt, train
from gpuops.commands.plan import Job, Plan, Size
from gpuops.commands.run_attempt import RunAttempt
from gpuops.core import provider as contract
from gpuops.core.context import Context
from gpuops.core.models import Lease, Request
from gpuops.core.processes import Identity, myself
from gpuops.core.reporting import Silent
from gpuops.core.run_models import RunRequest
from gpuops.core.settings import Settings
from gpuops.guard import cleanup
from gpuops.nodes.session import ClusterSession
from gpuops.offers.price_approval import PriceApproval
from gpuops.runs.outcome.node_report import parse_report
from gpuops.runs.outcome.run_outcome import FinalFetch
from gpuops.runs.retries import JobOutcome, RetryState
from gpuops.sync.run_folder import RunHome
from tests.fakes.provider import NAME, OWNER, Cloud, Scripted, surroundings

DEAD = Identity(myself().pid, myself().start - 5.0)
REQUEST = RunRequest(kind="command", mode="run", nodes=1, gpus=None, argv=["true"])
DONE = {
    "node": 0, "outcome": "done", "reason": {"kind": "command", "say": "the command ended well"}, "started": 1.0,
    "ended": 2.0, "launcher": {"code": 0, "signal": None}, "ranks": [], "tail": "", "out": "ok\n",
}  # fmt: skip


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Cloud, Context]:
    cloud, world = surroundings(tmp_path, monkeypatch)
    world.out = Output(out=io.StringIO(), err=io.StringIO())
    world.ledger.db.execute("PRAGMA busy_timeout = 1")
    return cloud, world


def said(world: Context) -> str:
    assert isinstance(world.out.err, io.StringIO)
    return world.out.err.getvalue()


class Holder:
    """Another command, which holds the ledger from the moment at which the run's nodes report their end."""

    def __init__(self, world: Context, how: str) -> None:
        self.other = sqlite3.connect(world.ledger.path, isolation_level=None)
        self.how = how

    def follow(self, *_: object) -> dict[int, Any]:
        self.other.execute(f"BEGIN {self.how}")
        return {0: parse_report(0, DONE)}

    def release(self) -> None:
        self.other.execute("ROLLBACK")


def run_to_its_end(world: Context, patch: pytest.MonkeyPatch, holder: Holder) -> JobOutcome:
    """A run on a machine of its own, which is there for it alone."""
    now = world.clock.now()
    cluster = world.ledger.intend(
        provider=NAME, name="lab", folder=world.folder, ephemeral=True, token="t", request={},
        boot_deadline=now + 60, lease=Lease(), owner_process=world.me, now=now,
    )  # fmt: skip
    machine = Scripted(contract.Context(OWNER, world.home, world.env))._add(f"gpuops-{OWNER}-lab-0")
    world.ledger.got(cluster.id, machine)
    world.ledger.mark_up(cluster.id, Lease(), now)
    row = world.ledger.add_run(stem="toy", cluster=cluster.id, folder=world.folder, tree="project",
                               request=REQUEST.document(), facts={}, owner_process=world.me, now=now)  # fmt: skip
    world.ledger.set_run(row.id, state="running", started=now)
    RunHome(row.home).create()
    session = ClusterSession(world.ledger.cluster(cluster.id), [machine])
    patch.setattr(train, "_open_session", lambda *_: session)
    patch.setattr(run_attempt, "_start", lambda *_: SimpleNamespace(row=row, request=REQUEST, nodes=[0], world_size=1))
    patch.setattr(run_attempt, "_follow", holder.follow)
    patch.setattr("gpuops.runs.results.collect._run_final_fetch", lambda *_: FinalFetch())
    plan = Plan(Choice(None, NAME, ""), Size(1, None), Job(REQUEST, Request(NAME)))
    return train._run_attempt(RunAttempt(world, Settings(), plan, Silent(), RetryState(0, PriceApproval())))


def test_a_ledger_that_cannot_be_written_keeps_neither_verdict_nor_end(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next look at the cluster writes down what was told then, although no node says it any more."""
    cloud, world = there
    holder = Holder(world, "IMMEDIATE")
    outcome = run_to_its_end(world, monkeypatch, holder)
    assert (outcome.exit_code, outcome.last[-1]) == (0, "the command ended well")
    assert cloud.machines() == []
    why = f"another command holds the ledger {world.ledger.path}: database is locked"
    assert said(world).splitlines()[1:] == [
        f"note: what came of toy-1 is in {world.folder}/runs/toy-1, and not in the ledger: {why}",
        f"note: {why}; lab is ended all the same",
        f"note: 1 node of lab ended, and the ledger does not know: {why}; the next command looks again",
    ]
    holder.release()
    (cluster,) = world.ledger.clusters()
    world.ledger.set_cluster(cluster.id, owner_process=DEAD)
    world.ledger.set_run(world.ledger.runs()[0].id, owner_process=DEAD)
    cleanup.clean_up(world, cluster.id)
    (run,) = world.ledger.runs()
    assert (run.state, run.verdict and run.verdict.say) == ("home", "the command ended well")
    assert world.ledger.cluster(cluster.id).state == "gone"


def test_one_that_is_free_again_has_the_verdict(there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch) -> None:
    cloud, world = there
    holder = Holder(world, "IMMEDIATE")

    def end_after(*words: Any) -> bool:
        holder.release()
        return end_after_run.end_after(*words)

    monkeypatch.setattr(train, "end_after", end_after)
    assert run_to_its_end(world, monkeypatch, holder).exit_code == 0
    (run,) = world.ledger.runs()
    assert (run.state, run.verdict and run.verdict.say) == ("home", "the command ended well")
    assert (cloud.machines(), world.ledger.clusters()) == ([], [])


def test_one_that_cannot_be_read_ends_nothing_and_that_is_told(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud, world = there
    outcome = run_to_its_end(world, monkeypatch, Holder(world, "EXCLUSIVE"))
    assert (outcome.exit_code, outcome.last[-1]) == (5, "the command ended well")
    assert len(cloud.machines()) == 1
    why = f"another command holds the ledger {world.ledger.path}: database is locked"
    assert said(world).splitlines()[-2:] == [
        f"error: gpuops-{OWNER}-lab-0 may still be there and bill $1.25/h: {why}",
        f"hint: end it, or wait until it has ended (`lsof {world.ledger.path}` names it); then: gpuops down lab",
    ]
