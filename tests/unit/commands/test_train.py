"""What a job does between the end of its nodes and what comes home from a bucket, and where it cannot go on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from gpuops.clusters.selection import Choice
from gpuops.commands import end_after_run, run_attempt, train
from gpuops.commands.cluster_bill import describe_bill
from gpuops.commands.end_after_run import end_cluster
from gpuops.commands.plan import Job, Plan, Size
from gpuops.commands.run_attempt import RunAttempt
from gpuops.core.context import Context
from gpuops.core.errors import Interrupted, LocalDisk, NodeError, StillBilling
from gpuops.core.models import MACHINE, Lease, Request, Resource, ResourceState
from gpuops.core.reporting import Silent
from gpuops.core.run_models import RunRequest, Verdict, VerdictOutcome
from gpuops.core.settings import Settings
from gpuops.core.signals import HandOver
from gpuops.ledger.rows import ClusterRow, RunFacts
from gpuops.ledger.store import LedgerUnwritable
from gpuops.offers.price_approval import PriceApproval
from gpuops.runs.finish import RunOutcome
from gpuops.runs.outcome.run_outcome import Complete, Lost, Results, Retryable
from gpuops.runs.ready_nodes import Sending
from gpuops.runs.retries import JobOutcome, OwnFailure, RetryState
from gpuops.sync.run_folder import RunHome

ROW = cast("Any", SimpleNamespace(id=1, name="r-1", facts=RunFacts(bucket={"place": "s3://results/lab/r-1"})))
LIVE = cast("Any", SimpleNamespace(row=SimpleNamespace(name="lab")))
END = cast("Any", object())
"""What is known before that."""


def add_cluster(world: Context) -> ClusterRow:
    row = world.ledger.intend(provider="local", name="lab", folder=world.folder, ephemeral=True, token="t", request={},
                              boot_deadline=0.0, lease=Lease(), owner_process=world.me, now=0.0)  # fmt: skip
    world.ledger.set_cluster(row.id, state="up")
    return world.ledger.cluster(row.id)


def test_a_terminal_that_goes_while_it_is_fetched_leaves_word(world: Context) -> None:
    def rest() -> RunOutcome:
        raise HandOver("the terminal is gone", "")

    with pytest.raises(HandOver):
        run_attempt._fetch_deferred(world, LIVE, ROW, END, rest, ours=False)
    said = [say for _, say in world.ledger.take_notices()]
    assert said == ["what r-1 kept in its bucket is not all home: gpuops pull r-1 fetches it"]


@pytest.mark.parametrize(
    ("numbers", "where"),
    [
        ([0], "node0"),
        ([5], "node5 (in its logs: node0)"),
        ([2, 3], "node2 and node3 (in its logs: node0 and node1)"),
        ([], "2 nodes"),
    ],
)
def test_the_nodes_of_an_arrays_run_have_both_their_numbers(numbers: list[int], where: str) -> None:
    """Its logs and its verdict count from 0."""
    nodes = [None] * (len(numbers) or 2)
    prepared = SimpleNamespace(nodes=nodes, world_size=0, request=SimpleNamespace(kind="command"))
    assert (
        run_attempt._describe_placement(cast("Any", SimpleNamespace(part_of=numbers)), cast("Any", prepared)) == where
    )


@pytest.mark.parametrize(("own", "of_end", "code"), [(0, 5, 5), (1, 0, 1), (4, 5, 5)])
def test_the_document_has_the_exit_code_of_the_command(
    world: Context, monkeypatch: pytest.MonkeyPatch, own: int, of_end: int, code: int
) -> None:
    monkeypatch.setattr(end_after_run, "end_cluster", lambda *_: of_end)
    outcome = JobOutcome(own, {"run": "r-1", "exit_code": own})
    assert end_after_run.end_after(world, LIVE, "its run ended", outcome) == (not of_end)
    assert (outcome.exit_code, outcome.document) == (code, {"run": "r-1", "exit_code": code})


def test_interrupted_while_the_nodes_end_nothing_is_fetched(world: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """They do end; what is in the bucket stays there."""
    fetched: list[str] = []

    def ended(world: Context, *_: object) -> int:
        world.signals.count += 1
        return 0

    monkeypatch.setattr("gpuops.commands.run_attempt.end_cluster", ended)
    with pytest.raises(Interrupted) as found:
        run_attempt._fetch_deferred(world, LIVE, ROW, END, lambda: cast("Any", fetched.append("rest")), ours=True)
    assert found.value.hint == "gpuops pull r-1 fetches what is in s3://results/lab/r-1"
    assert fetched == []


def test_a_run_that_was_stopped_by_a_signal_brings_everything_home(
    world: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.signals.count = 1
    monkeypatch.setattr("gpuops.commands.run_attempt.end_cluster", lambda *_: 0)
    whole = cast("Any", object())
    assert run_attempt._fetch_deferred(world, LIVE, ROW, END, lambda: whole, ours=True) is whole


def test_while_machines_may_still_bill_nothing_is_fetched(world: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their end is tried again at once, and not after hours."""
    fetched: list[str] = []
    monkeypatch.setattr("gpuops.commands.run_attempt.end_cluster", lambda *_: StillBilling.exit_code)
    rest = lambda: cast("Any", fetched.append("rest"))  # noqa: E731
    assert run_attempt._fetch_deferred(world, LIVE, ROW, END, rest, ours=True) is END
    assert fetched == []


def no_guard(*_: object) -> None:
    raise BlockingIOError(11, "Resource temporarily unavailable")


def test_who_is_left_without_a_guard_is_told(world: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing says that the guard brings results home, or ends machines, where none can be started."""
    said: list[str] = []
    monkeypatch.setattr(world.out, "say", said.append)
    monkeypatch.setattr(world, "services", dataclasses.replace(world.services, ensure_guard=no_guard))
    live = cast("Any", SimpleNamespace(row=add_cluster(world)))
    run = world.ledger.add_run(stem="toy", cluster=live.row.id, folder=world.folder, tree="project", request={},
                               facts={}, owner_process=world.me, now=0.0)  # fmt: skip
    detached = run_attempt._detach(world, live, run, ours=True)
    assert (detached.exit_code, detached.document["exit_code"]) == (LocalDisk.exit_code, LocalDisk.exit_code)
    assert detached.last == ["detached, without a guard: `gpuops pull toy-1` brings the results home"]
    world.ledger.set_run(run.id, state="running")
    assert end_cluster(world, live, "its run ended") == 4
    why = "the guard cannot be started: Resource temporarily unavailable"
    assert said == [f"note: {why}; the next command tries again, and `gpuops down lab` ends it"] * 2


def test_a_cluster_that_stays_says_what_it_bills_and_who_ends_it(
    world: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = add_cluster(world)
    assert describe_bill(world, row.id) == ""
    pod = Resource(kind=MACHINE, id="p", region="", name="p", bills=True, state=ResourceState.RUNNING, per_hour=1.09)
    world.ledger.got(row.id, pod)
    monkeypatch.setattr("gpuops.commands.cluster_bill.has_capability", lambda *_: True)
    monkeypatch.setattr(world, "services", dataclasses.replace(world.services, ensure_guard=lambda *_: None))
    said = describe_bill(world, row.id)
    assert said.startswith("lab goes on at $1.09/h: `gpuops down lab` ends it")
    told: list[str] = []
    monkeypatch.setattr(world.out, "say", told.append)
    live = cast("Any", SimpleNamespace(row=row))
    for in_receipt in (True, False):
        train._say_kept(world, live, in_receipt=in_receipt)
    assert told == [said], "once, and not by its name twice"


@pytest.mark.parametrize("error", [NodeError("the push failed", "try again"), Interrupted("interrupted", "")])
def test_a_cluster_that_is_kept_is_named_where_its_run_fails(
    world: Context, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """It stays, and may bill: `--keep` holds for what is brought up, not for what comes of the run."""

    def fail(*_: object) -> None:
        raise error

    said: list[str] = []
    monkeypatch.setattr(world.out, "say", said.append)
    live = cast("Any", SimpleNamespace(row=add_cluster(world), close=lambda: None))
    monkeypatch.setattr(train, "_open_session", lambda *_: live)
    monkeypatch.setattr(train, "carry_out", fail)
    request = RunRequest(kind="command", mode="run", nodes=1, gpus=None, argv=["true"])
    job = Job(request, Request("local"), keep=True)
    plan = Plan(Choice(None, "local", ""), Size(1, None), job)
    with pytest.raises(type(error)):
        train._run_attempt(RunAttempt(world, Settings(), plan, Silent(), RetryState(0, PriceApproval())))
    assert said == ["lab is kept: `gpuops down lab` ends it"]


@pytest.mark.parametrize(
    ("verdict", "results", "kept", "code"),
    [
        (0, Complete(), "", 0),
        (0, Retryable("node0 is away", "node0 is away"), "", 4),
        (0, Lost("node0 kept nothing"), "", 4),
        (0, Lost("node0 kept nothing"), "all of it is in its bucket", 0),
        (1, Lost("node0 kept nothing"), "", 4),
        (1, Complete(), "", 1),
    ],
)
def test_results_that_are_not_home_are_no_success(
    world: Context, verdict: int, results: Results, kept: str, code: int
) -> None:
    said = Verdict(VerdictOutcome.DONE, verdict, "the command ended")
    outcome = run_attempt._job_outcome(
        world, RunOutcome(said, RunHome(world.folder / "runs/r-1"), results, kept=kept), ""
    )
    assert (outcome.exit_code, outcome.document["exit_code"]) == (code, code)


class Again(NamedTuple):
    """What each try comes to, and what follows: the run that each of them resumes from."""

    failures: Sequence[OwnFailure | None]
    retries: int
    resumed: Sequence[str | None]


LEFT, NOTHING = OwnFailure("toy-1", "rank 0 failed", True), OwnFailure("toy-1", "rank 0 failed", False)


@pytest.mark.parametrize(
    "again",
    [
        Again([None], 2, [None]),
        Again([LEFT, None], 2, [None, "toy-1"]),
        Again([NOTHING, None], 2, [None, None]),
        Again([LEFT, LEFT, LEFT, None], 2, [None, "toy-1", "toy-1"]),
        Again([LEFT], 0, [None]),
    ],
)
def test_a_run_that_fails_by_itself_is_started_again_where_nothing_is_rented(
    world: Context, monkeypatch: pytest.MonkeyPatch, again: Again
) -> None:
    resumed: list[str | None] = []
    said: list[str] = []

    def run_on(attempt: RunAttempt, _: object) -> JobOutcome:
        resumed.append(attempt.job.request.resume)
        return JobOutcome(1, {}, failure=again.failures[len(resumed) - 1])

    monkeypatch.setattr(world.out, "say", said.append)
    monkeypatch.setattr(train, "carry_out", run_on)
    live = cast("Any", SimpleNamespace(row=add_cluster(world)))
    job = Job(RunRequest(kind="command", mode="run", nodes=1, gpus=None), Request("local"), retries=again.retries)
    plan = Plan(Choice(None, "local", ""), Size(1, None), job)
    train._run_with_restarts(RunAttempt(world, Settings(), plan, Silent(), RetryState()), live)
    assert resumed == again.resumed
    how = "from what toy-1 left" if again.failures[0] is LEFT else "from the beginning: it left nothing to resume from"
    retried = [f"rank 0 failed; retry {one} of 2 on lab, {how}" for one in range(1, len(again.resumed))]
    assert said == retried


def test_a_ledger_that_cannot_be_used_starts_no_run_again_and_hides_no_verdict(
    world: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Any:
        raise LedgerUnwritable("the ledger cannot be used", "try again")

    said: list[str] = []
    monkeypatch.setattr(world.out, "say", said.append)
    live = cast("Any", SimpleNamespace(row=add_cluster(world)))
    failed = JobOutcome(1, {}, failure=LEFT)
    assert run_attempt.may_start_again(world, live, failed)
    assert not run_attempt.may_start_again(world, live, dataclasses.replace(failed, record_again=lambda: None))
    monkeypatch.setattr(world.ledger, "cluster", fail)
    assert not run_attempt.may_start_again(world, live, failed)
    train._say_kept(world, live, in_receipt=True)
    assert said == ["lab is kept: `gpuops down lab` ends it"]


def test_machines_that_are_rented_for_a_run_are_replaced_and_not_tried_again(
    world: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_attempt, "is_rented", lambda _: True)
    job = Job(RunRequest(kind="command", mode="run", nodes=1, gpus=None), Request("local"), retries=2)
    fresh = RunAttempt(world, Settings(), Plan(Choice(None, "local", ""), Size(1, None), job), Silent(), RetryState())
    kept = Plan(Choice(add_cluster(world), "local", ""), Size(1, None), job)
    assert (fresh.may_restart, dataclasses.replace(fresh, plan=kept).may_restart) == (False, True)
    of_array = dataclasses.replace(fresh, place=cast("Any", SimpleNamespace()))
    assert (of_array.may_restart, of_array.owns_cluster) == (True, False), "the machines go on for the other runs"


def test_what_a_retry_goes_on_from_is_not_taken_off_the_nodes() -> None:
    request = RunRequest(kind="command", mode="run", nodes=1, gpus=None, resume="toy-1")
    job = Job(request, Request("local"), sending=Sending(fresh=True))
    assert job.resuming("toy-1") is job
    again = job.resuming("toy-2")
    assert (again.request.resume, again.sending.fresh) == ("toy-2", False)
