"""The queue of an array: who takes the next index, and what ends it, with runs that only say how they ended."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuops.cli.terminal.output import Output
from gpuops.commands import array
from gpuops.commands.array import Place, run_array
from gpuops.commands.array_plan import parse_array
from gpuops.commands.array_queue import IndexQueue
from gpuops.core.context import Context
from gpuops.core.errors import ConnectionLost, Interrupted, NodeError, RunFailed, UsageError
from gpuops.core.polling import Poller
from gpuops.core.processes import Identity, started
from gpuops.core.run_models import RunRequest
from gpuops.core.settings import Settings
from gpuops.core.signals import HandOver
from gpuops.ledger.rows import RunState
from gpuops.nodes.session import ClusterSession
from gpuops.runs.outcome.verdict import RETRIES_HINT
from gpuops.runs.ready_nodes import ReadyNodes, Sending
from gpuops.runs.retries import JobOutcome
from gpuops.runs.taken_over import TakenOver
from tests.conftest import HANG_S
from tests.unit.runs.test_finish import a_cluster, a_run

RUN = RunRequest(kind="command", mode="run", nodes=1, gpus=None, argv=["job", "{index}"])

Runs = Callable[[Context, int, int], JobOutcome]
"""What becomes of a run: its surroundings, its node and its index."""


def ended(index: int, code: int = 0, **more: Any) -> JobOutcome:
    verdict = {"say": f"ended with {code}", "outcome": "done", "exit_code": code}
    document = {"run": f"job-{index}", "verdict": verdict, "duration_s": 1.0, "home": "/r"}
    return JobOutcome(code, document, **{"finished": index, **more})


def wait_for_signal(ctx: Context) -> None:
    """Raises what is relayed to a run."""
    for _ in Poller.every(ctx.clock, 0.01, ctx.clock.monotonic() + HANG_S):
        ctx.signals.check()


def outcome_of(
    world: Context, monkeypatch: pytest.MonkeyPatch, indices: str, nodes: int, runs: Runs
) -> tuple[int, dict[int, tuple[int, str]]]:
    """Exit code of the array, and by index its own and its last sentence."""
    cluster = a_cluster(world, created=0.0)
    world.ledger.set_cluster(cluster.id, state="up")
    whole = ClusterSession(cluster, cast(Any, [SimpleNamespace(per_hour=0.0)] * nodes), cast(Any, [None] * nodes),
                           [None] * nodes, [0.0] * nodes)  # fmt: skip
    ready = ReadyNodes(cast(Any, None), [])

    def make_places(*_: object) -> list[Place]:
        places = [Place(whole.part([node]), ready, Sending(), {}, dict, None) for node in range(nodes)]
        places[0].first = cast(Any, (None, None))
        return places

    def run_one(ctx: Context, place: Place, request: RunRequest) -> JobOutcome:
        place.first = None
        assert (request.argv, request.nodes_at) == (["job", str(request.array_index)], [*place.session.part_of])
        return runs(ctx, place.session.part_of[0], cast(int, request.array_index))

    monkeypatch.setattr(array, "_make_places", make_places)
    monkeypatch.setattr(array, "POLL_INTERVAL_S", 0.01)
    result = run_array(world, Settings(), whole, RUN, parse_array(indices), Sending(), run_one)
    listed = cast(Any, result.document["runs"])
    said = {one["index"]: (one["exit_code"], (one.get("verdict") or one.get("error"))["say"]) for one in listed}
    return result.exit_code, said


def test_each_place_resumes_as_the_nodes_of_one_run(world: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run may have left another version of a file on each of its nodes. Its second index finds nothing of the
    first's, a retry what the attempt before it has left."""
    done: list[tuple[object, ...]] = []
    monkeypatch.setattr(array.prepare, "add_run", lambda *_: SimpleNamespace(tree="project"))
    monkeypatch.setattr(array.prepare, "create_home", lambda *_: None)
    monkeypatch.setattr(array.prepare, "complete", lambda *_: None)
    monkeypatch.setattr(array.prepare, "noted_unless_started", lambda *_: nullcontext())
    monkeypatch.setattr(world, "ensure_guard", lambda *_: None)
    monkeypatch.setattr(array, "_is_being_ended", lambda *_: len(done) == 4)
    monkeypatch.setattr(array, "put_back", lambda _ctx, clients, request, *_: done.append((*clients, request.resume)))
    monkeypatch.setattr(
        array, "clear_for_next", lambda _ctx, _part, request, *_, **__: done.append(("clear", request.resume))
    )
    nodes = cast(Any, ["n0", "n1", "n2", "n3"])
    whole = ClusterSession(a_cluster(world, created=0.0), nodes, nodes, [None] * 4, [0.0] * 4)
    place = Place(whole.part([2, 3]), ReadyNodes(cast(Any, None), []), Sending(), {}, dict, "old-1")
    for resume in ("old-1", "job-1", "old-1"):
        place.prepare(world, replace(RUN, resume=resume))
    assert done == [("n2", "n3", "old-1"), ("n2", "n3", "job-1"), ("clear", "old-1")]
    with pytest.raises(NodeError, match="another command ends lab"):
        place.prepare(world, replace(RUN, resume="old-1"))


class Uploading:
    """A node to which files are sent for hours, until its connection is closed."""

    def __init__(self) -> None:
        self.connection = self
        self.closed = threading.Event()
        self.began = threading.Event()

    def send(self) -> None:
        self.began.set()
        assert self.closed.wait(HANG_S)
        raise ConnectionLost("node0 does not answer")

    def close(self) -> None:
        self.closed.set()


@pytest.mark.parametrize("how", [Interrupted, HandOver])
def test_a_signal_does_not_wait_for_files_that_are_sent_before_a_run(
    world: Context, monkeypatch: pytest.MonkeyPatch, how: type[Interrupted]
) -> None:
    node = Uploading()
    monkeypatch.setattr(array, "put_back", lambda *_: node.send())

    def make_places(ctx: Context, *_: object) -> list[Place]:
        cluster = ctx.ledger.clusters()[0]
        whole = ClusterSession(cluster, cast(Any, [None]), cast(Any, [node]), [None], [0.0])
        row = a_run(ctx, cluster, created=0.0)
        request = replace(RUN, nodes_at=[0], array_index=0)
        return [Place(whole.part([0]), ReadyNodes(cast(Any, None), []), Sending(), {}, dict, None, (row, request))]

    def wait(ctx: Context, *_: object) -> None:
        assert node.began.wait(HANG_S)
        ctx.signals.count = int(how is Interrupted)
        raise how("it ends", "")

    cluster = a_cluster(world, created=0.0)
    monkeypatch.setattr(array, "_make_places", make_places)
    monkeypatch.setattr(array, "_wait", wait)
    session = ClusterSession(cluster, [])
    with pytest.raises(HandOver) if how is HandOver else nullcontext():
        run_one = lambda ctx, place, request: place.prepare(ctx, request)  # noqa: E731
        outcome = run_array(world, Settings(), session, RUN, parse_array("0-1"), Sending(), run_one)
        assert outcome.exit_code == 130
    verdict = world.ledger.runs()[0].verdict
    assert verdict is not None
    assert verdict.say == "stopped before it was started"


def test_two_nodes_take_from_one_queue_and_a_failure_stops_nobody(
    world: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Index 0 does not end before all others have: they follow one another on the other node."""
    others = threading.Semaphore(0)
    nodes: dict[int, int] = {}

    def run(_ctx: Context, node: int, index: int) -> JobOutcome:
        nodes[index] = node
        if index == 0:
            assert all(others.acquire(timeout=HANG_S) for _ in range(4))
        others.release()
        return ended(index, 1 if index == 2 else 0)

    code, said = outcome_of(world, monkeypatch, "0-4", 2, run)
    assert code == 1
    assert {index: one for index, (one, _) in said.items()} == {0: 0, 1: 0, 2: 1, 3: 0, 4: 0}
    assert nodes == {0: 0, 1: 1, 2: 1, 3: 1, 4: 1}


@pytest.mark.parametrize("how", ["lost", "refused", "not all home"])
def test_a_node_that_is_lost_or_has_unsaved_results_gets_no_further_run(
    world: Context, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    ran: list[int] = []

    def run(_ctx: Context, _node: int, index: int) -> JobOutcome:
        ran.append(index)
        if how == "refused":
            raise UsageError("it cannot begin", "correct it")
        return ended(index, 130, finished=None) if how == "not all home" else ended(index, NodeError.exit_code)

    code, said = outcome_of(world, monkeypatch, "5,6,7", 1, run)
    assert ran == [5]
    assert code == (130 if how == "not all home" else 4)
    first = {"lost": (4, "ended with 4"), "refused": (2, "it cannot begin"), "not all home": (130, "ended with 130")}
    assert said[5] == first[how]
    assert said[6] == said[7] == (4, "not started: no node of it is left")


def test_a_command_of_one_index_that_is_not_there_stops_nobody(world: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_ctx: Context, _node: int, index: int) -> JobOutcome:
        if index == 0:
            raise RunFailed("cannot start ./job-0.sh", "chmod +x")
        return ended(index, 0)

    assert outcome_of(world, monkeypatch, "0-1", 1, run) == (
        1,
        {0: (1, "cannot start ./job-0.sh"), 1: (0, "ended with 0")},
    )


def test_what_is_not_home_and_what_to_do_is_told_of_each_run(world: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    world.out = Output(out=io.StringIO(), err=(err := io.StringIO()))

    def run(_ctx: Context, _node: int, index: int) -> JobOutcome:
        outcome = ended(index, 4)
        hint = f"--resume job-1 goes on from it{RETRIES_HINT}"
        verdict = {**outcome.document["verdict"], "hint": hint}
        document = {"missing": "a.pt of node0", "left_behind": "big.bin (2.0 GB)", "cluster": "lab", "verdict": verdict}
        return JobOutcome(4, {**outcome.document, **document})

    outcome_of(world, monkeypatch, "1", 1, run)
    lines = err.getvalue().splitlines()
    assert lines[1:] == [
        "[1] not home a.pt of node0",
        "[1] left     still on lab: big.bin (2.0 GB); `gpuops down` brings them home",
        "[1] ended with 4",
        "[1] hint: --resume job-1 goes on from it",
    ]


def test_an_array_on_a_cluster_that_is_being_ended_begins_no_further_run(
    world: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said = outcome_of(world, monkeypatch, "0-2", 1, lambda _ctx, _node, index: ended(index, 130, taken=True))
    assert code == 130
    assert said[1] == (4, "not started: another command ends lab")


def test_a_command_that_ends_the_cluster_is_noticed_where_it_has_taken_the_run_of_another_place(
    world: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops one run after the other, those that there were when it began."""
    taken, both, ran = threading.Event(), threading.Event(), set[int]()

    def run(ctx: Context, _node: int, index: int) -> JobOutcome:
        ran.add(index)
        if index == 0:
            down = Identity(os.getppid(), started(os.getppid()))
            row = a_run(ctx, ctx.ledger.clusters()[0], created=0.0, owner_process=down)
            facts = {**row.facts, "array": [ctx.me.pid, ctx.me.start]}
            ctx.ledger.set_run(row.id, state=RunState.RUNNING, facts=facts)
            taken.set()
            assert both.wait(HANG_S)
        assert taken.wait(HANG_S)
        both.set()
        return ended(index)

    _, said = outcome_of(world, monkeypatch, "0-3", 2, run)
    assert ran == {0, 1}
    assert said[2] == said[3] == (4, "not started: another command ends lab")


def test_an_interrupt_reaches_every_run_and_begins_none(world: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(3)

    def run(ctx: Context, _node: int, index: int) -> JobOutcome:
        both.wait(HANG_S)
        with pytest.raises(Interrupted):
            wait_for_signal(ctx)
        assert ctx.signals.count == 1
        ctx.signals.check()  # once
        return ended(index, 130)

    def wait(ctx: Context, *_: object) -> None:
        both.wait(HANG_S)
        ctx.signals.count = 1
        raise Interrupted("interrupted", "")

    monkeypatch.setattr(array, "_wait", wait)
    code, said = outcome_of(world, monkeypatch, "0-3", 2, run)
    assert code == 130
    assert said == {
        **dict.fromkeys((0, 1), (130, "ended with 130")),
        **dict.fromkeys((2, 3), (130, "not started: interrupted")),
    }


def test_a_terminal_that_goes_leaves_word_of_what_was_not_started(
    world: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(3)

    def run(ctx: Context, _node: int, index: int) -> JobOutcome:
        if index == 0:
            row = a_run(ctx, ctx.ledger.clusters()[0], created=0.0)
            request = {**row.request, "array_index": 0}
            facts = {**row.facts, "array": [ctx.me.pid, ctx.me.start], "array_waiting": "2-3"}
            ctx.ledger.set_run(row.id, state=RunState.RUNNING, started=1.0, request=request, facts=facts)
        both.wait(HANG_S)
        wait_for_signal(ctx)
        raise AssertionError("no signal came")

    def wait(*_: object) -> None:
        both.wait(HANG_S)
        raise HandOver("the terminal is gone", "")

    monkeypatch.setattr(array, "_wait", wait)
    with pytest.raises(HandOver):
        outcome_of(world, monkeypatch, "0-3", 2, run)
    (notice,) = world.ledger.take_notices()
    assert "3 of 4 runs of an array on lab were not started, since its terminal went: --array 1-3" in str(notice)
    assert world.ledger.runs()[0].facts.array_waiting == "", "the guard tells nothing of them"


@pytest.mark.parametrize("error", [ZeroDivisionError(), TakenOver(cast(Any, SimpleNamespace(name="job-1")))])
def test_what_is_not_a_runs_own_ends_the_command(
    world: Context, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    ran: list[int] = []

    def run(_ctx: Context, _node: int, index: int) -> JobOutcome:
        ran.append(index)
        raise error

    world.out = Output(out=io.StringIO(), err=(err := io.StringIO()))
    with pytest.raises(type(error)):
        outcome_of(world, monkeypatch, "0-3", 1, run)
    assert ran == [0]
    assert err.getvalue().endswith("note: no run was started for --array 1-3\n")


def test_a_run_that_begins_after_a_signal_hears_of_it() -> None:
    queue, relayed = IndexQueue([0]), []
    error = Interrupted("interrupted", "")
    queue.relay(1, error)
    queue.begin(0, cast(Any, SimpleNamespace(signals=SimpleNamespace(relay=lambda *said: relayed.append(said)))))
    assert relayed == [(1, error)]
