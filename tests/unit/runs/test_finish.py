"""What is written down at a run's end, and which nodes may be destroyed after it; a real ledger, no node."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuops.core.context import Context
from gpuops.core.errors import AuthFailed, ConnectionLost, MalformedAnswer, NodeError, NodeRefused, UsageError
from gpuops.core.models import Lease, MachineEnd, Resource
from gpuops.core.polling import Clock
from gpuops.core.processes import Identity, started
from gpuops.core.reporting import Silent
from gpuops.core.run_models import RunRequest
from gpuops.core.sink import BucketSink, FolderSink
from gpuops.ledger.store import ClusterRow, RunRow
from gpuops.nodes.gpu_shares import is_virtual, with_virtual
from gpuops.nodes.session import ClusterSession
from gpuops.runs import follow, retries
from gpuops.runs.finish import Policy, RunOutcome, finish, finish_late, is_awaited
from gpuops.runs.monitor import LiveFetch
from gpuops.runs.outcome.node_report import NodeReport, ReasonKind, lost_report, parse_report
from gpuops.runs.outcome.run_outcome import FinalFetch, Retryable
from gpuops.runs.results import collect
from gpuops.runs.results.collect import Agents, _fetch_from_nodes
from gpuops.runs.turn import wait_for_turn
from gpuops.sync.archive import FetchedNode
from gpuops.sync.download import UnreadableFiles
from gpuops.sync.run_folder import RunHome
from gpuops.transport.schema_types import Sentence
from gpuops.transport.schemas import NodeRunState, SinkState
from tests.conftest import HANG_S, until

REQUEST = RunRequest(kind="command", mode="run", nodes=1, gpus=None, argv=("true",))
DEAD = Identity(2**22 + 1, 1.0)


def _provider(describe: Callable[[Resource], Resource]) -> Any:
    return type("Provider", (), {"describe": staticmethod(describe), "credentials": ()})()


def a_cluster(world: Context, *, created: float, ephemeral: bool = False) -> ClusterRow:
    return world.ledger.intend(
        provider="local", name="lab", folder=world.folder, ephemeral=ephemeral, token="t", request={},
        boot_deadline=created + 60, lease=Lease(), owner_process=world.me, now=created,
    )  # fmt: skip


def a_run(world: Context, cluster: ClusterRow, *, created: float, owner_process: Identity | None = None) -> RunRow:
    row = world.ledger.add_run(
        stem="r", cluster=cluster.id, folder=world.folder, tree="project", request=dataclasses.asdict(REQUEST),
        facts={"per_hour": 36.0, "world": 0}, owner_process=owner_process or world.me, now=created,
    )  # fmt: skip
    RunHome(row.home).create()
    return row


def conclude(
    world: Context,
    live: ClusterSession,
    row: RunRow,
    results: Mapping[int, NodeReport | Mapping[str, Any]],
    *,
    ends_nodes: bool = False,
) -> RunOutcome:
    """The end of a run whose nodes were followed: `results` are their documents."""
    reports = {
        index: result if isinstance(result, NodeReport) else parse_report(index, result)
        for index, result in results.items()
    }
    return finish(world, row, Agents(live, reports), Policy(Silent(), ends_nodes=ends_nodes))


def retryable(end: RunOutcome) -> str:
    """Why another try may bring more; empty where none would."""
    return end.results.why if isinstance(end.results, Retryable) else ""


@pytest.mark.parametrize(
    ("kind", "state", "unsaved"),
    [("node", "ended", "node0 cannot be reached any more"), ("gone", "home", ""), ("no-run", "home", "")],
)
def test_only_what_is_certainly_lost_may_be_destroyed(world: Context, kind: str, state: str, unsaved: str) -> None:
    cluster = a_cluster(world, created=time.time())
    row = a_run(world, cluster, created=time.time())
    end = conclude(world, ClusterSession(cluster, []), row, {0: lost_report(0, "node0 is silent", ReasonKind(kind))})
    assert world.ledger.run(row.id).state == state
    assert retryable(end) == unsaved
    assert end.missing == (unsaved or ("node0 ended before all results were home" if kind == "gone" else ""))
    assert (end.verdict.outcome, end.verdict.exit_code) == ("lost", 4)


@pytest.mark.parametrize(("kind", "flushed"), [("node", False), ("gone", True)])
def test_all_of_a_run_is_on_the_disk_before_its_nodes_may_go(
    world: Context, monkeypatch: pytest.MonkeyPatch, kind: str, flushed: bool
) -> None:
    """Its logs, which only grow, and the folders that its files were renamed in; and before the ledger says so."""
    cluster = a_cluster(world, created=time.time())
    row = a_run(world, cluster, created=time.time())
    home = RunHome(row.home)
    home.folder.write_at(home.log_name(0, "rank0.out"), 0, b"last words\n")
    (home.out / "sub").mkdir()
    on_disk: set[int] = set()
    here = threading.current_thread()

    def fsync(handle: int) -> None:
        if threading.current_thread() is not here:
            return  # another test's heartbeat
        assert world.ledger.run(row.id).state != "home"
        on_disk.add(os.fstat(handle).st_ino)

    monkeypatch.setattr("gpuops.core.safe_folder.os.fsync", fsync)
    conclude(world, ClusterSession(cluster, []), row, {0: lost_report(0, "node0 is silent", ReasonKind(kind))})
    places = [home.path, home.path / "logs" / "node0" / "rank0.out", home.path / "logs" / "node0", home.out / "sub"]
    assert [place.stat().st_ino in on_disk for place in places] == [flushed] * 4


class Fetched:
    """Nodes whose results come home, but for those in `silent`."""

    def __init__(self, *silent: int) -> None:
        self.silent = silent
        self.asked: list[list[int]] = []

    def __call__(self, _world: Any, _live: Any, _row: Any, _progress: Any, nodes: list[int]) -> FinalFetch:
        self.asked.append(list(nodes))
        return FinalFetch("node1 went away" if set(nodes) & set(self.silent) else "")


@pytest.mark.parametrize(("kind", "left"), [("node", ["4194305-a"]), ("gone", [])])
def test_what_a_killed_guard_was_receiving_goes_with_the_end_of_its_run(
    world: Context, monkeypatch: pytest.MonkeyPatch, kind: str, left: list[str]
) -> None:
    """It still lived when the last fetch began, which clears what it finds of the dead."""
    monkeypatch.setattr("gpuops.runs.results.collect._run_final_fetch", Fetched())
    cluster = a_cluster(world, created=time.time())
    row = a_run(world, cluster, created=time.time())
    incoming = RunHome(row.home).path / "incoming"
    (incoming / f"{DEAD.pid}-a").mkdir(parents=True)
    (incoming / f"{DEAD.pid}-a" / "0-0").write_bytes(b"half")
    conclude(world, ClusterSession(cluster, []), row, {0: lost_report(0, "node0 is silent", ReasonKind(kind))})
    assert [path.name for path in incoming.glob("*")] == left
    assert incoming.exists() == bool(left)


def test_a_node_that_answers_nonsense_keeps_no_others_files_away() -> None:
    """Each is asked alone then, once more; what may come with another try is an error as always."""
    asked: list[list[int]] = []

    def bring(nodes: list[int]) -> str:
        asked.append(nodes)
        if 1 in nodes:
            raise MalformedAnswer("node1", "to 'outs'")
        return f"big{nodes[0]}"

    found = _fetch_from_nodes(bring, [0, 1, 2])
    assert asked == [[0, 1, 2], [0], [1], [2]]
    assert (found.left_behind, found.failed) == ("big0, big2", "")
    assert found.nonsense == "node1 answers nonsense (to 'outs')"

    def lose(nodes: list[int]) -> str:
        raise ConnectionLost("node2 is away") if nodes == [2] else MalformedAnswer("node1", "x")

    with pytest.raises(ConnectionLost):
        _fetch_from_nodes(lose, [1, 2])


def test_nonsense_leaves_nothing_to_try_again(world: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes may go, the run is done with, and whoever reads the verdict knows."""
    monkeypatch.setattr(
        "gpuops.runs.results.collect._run_final_fetch", lambda *_: FinalFetch(nonsense="node0 answers nonsense (x)")
    )
    cluster = a_cluster(world, created=time.time())
    row = a_run(world, cluster, created=time.time())
    end = conclude(world, ClusterSession(cluster, []), row, {0: DONE})
    assert (retryable(end), end.missing, end.nonsense) == ("", *["node0 answers nonsense (x)"] * 2)
    assert (end.verdict.outcome, end.verdict.exit_code) == ("unclear", 4)
    assert "not all home: node0 answers nonsense (x)" in end.verdict.say
    assert world.ledger.run(row.id).state == "home"


def test_what_a_node_cannot_read_is_named_with_what_brings_it_and_what_leaves_it(
    world: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = a_cluster(world, created=time.time())
    row = a_run(world, cluster, created=time.time())

    def fetch(*_: object, **__: object) -> None:
        raise UnreadableFiles([(0, "raw data.pt")])

    monkeypatch.setattr("gpuops.runs.results.collect.fetch_now", fetch)
    end = conclude(world, ClusterSession(cluster, []), row, {0: DONE})
    way = (
        "gpuops ssh lab --node 0 -- chmod u+r 'raw data.pt'; then: gpuops pull r-1; "
        "or leave it there: gpuops down lab --out '!./raw data.pt'"
    )
    assert (end.missing, end.verdict.hint) == ("1 file cannot be read on the nodes: raw data.pt (node0)", way)
    assert world.ledger.run(row.id).state == "ended", "it can still be fetched"
    with pytest.raises(NodeError) as caught:
        finish(world, row, Agents(ClusterSession(cluster, []), end_reports()), Policy(Silent(), retry_hint="--force"))
    assert caught.value.hint == f"{way}; else --force"


def end_reports() -> dict[int, NodeReport]:
    return {0: parse_report(0, DONE)}


@pytest.mark.parametrize(("looks", "state"), [(1, "home"), (3, "home"), (10**6, "ended")])
def test_a_machine_that_goes_while_its_results_are_fetched(
    world: Context, monkeypatch: pytest.MonkeyPatch, looks: int, state: str
) -> None:
    """What the others have comes home; while the machine may still be there, nothing is given up."""
    monkeypatch.setattr("gpuops.runs.results.collect.VANISHING_TIMEOUT_S", HANG_S if state == "home" else 0.5)
    monkeypatch.setattr("gpuops.runs.results.collect.VANISHING_POLL_INTERVAL_S", 0.02)
    seen: list[str] = []

    def describe(machine: Resource) -> Resource:
        seen.append(machine.id)
        there = machine.id != "1" or seen.count("1") < looks
        return machine if there else dataclasses.replace(machine, data={"reclaimed": True})

    world.provisioners["local"] = _provider(describe)
    fetched = Fetched(1)
    monkeypatch.setattr("gpuops.runs.results.collect._run_final_fetch", fetched)
    cluster = a_cluster(world, created=time.time())
    row = a_run(world, cluster, created=time.time())
    world.ledger.set_run(row.id, request={**dataclasses.asdict(REQUEST), "nodes": 2})
    machines = [Resource("machine", str(index), "", f"m-{index}", True, state="running") for index in range(2)]
    reason = {"kind": "reclaim", "by": "AWS", "say": "AWS takes node1 back", "at": None, "node": 1}
    results = {index: {**DONE, "node": index, "outcome": "stopped", "reason": reason} for index in range(2)}
    end = conclude(
        world,
        ClusterSession(cluster, machines, cast("Any", [Keeping("safe")] * 2)),
        world.ledger.run(row.id),
        results,
    )
    assert fetched.asked == ([[0, 1], [0]] if state == "home" else [[0, 1]])
    assert world.ledger.run(row.id).state == state
    assert end.missing == ("node1 ended before all results were home" if state == "home" else "node1 went away")
    assert end.verdict.outcome == "reclaimed"


def test_what_a_node_of_a_batch_job_has_left_is_read_as_soon_as_it_has_ended(
    world: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job may be on while its machines are taken back one by one: nobody waits for its end."""
    monkeypatch.setattr("gpuops.runs.results.collect.VANISHING_TIMEOUT_S", 0.5)
    monkeypatch.setattr("gpuops.runs.results.collect.VANISHING_POLL_INTERVAL_S", 0.02)
    fetched, opened = Fetched(0, 1), []

    def describe(machine: Resource) -> Resource:
        left = {"left": True, "root": "the home"} if machine.id == "1" or len(fetched.asked) > 1 else {}
        return dataclasses.replace(machine, state="ended" if left else "running", data=left)

    def open_client(_paths: object, machine: Resource, index: int) -> Any:
        opened.append((index, machine.data["root"]))
        fetched.silent = tuple({*fetched.silent} - {index})
        return Keeping("safe")

    world.provisioners["local"] = _provider(describe)
    monkeypatch.setattr("gpuops.runs.results.collect._run_final_fetch", fetched)
    monkeypatch.setattr("gpuops.nodes.session._open_client", open_client)
    cluster = a_cluster(world, created=time.time())
    row = a_run(world, cluster, created=time.time())
    world.ledger.set_run(row.id, request={**dataclasses.asdict(REQUEST), "nodes": 2})
    machines = [Resource("machine", str(index), "", f"m-{index}", bills=False, state="running") for index in range(2)]
    reason = {"kind": "reclaim", "by": "PBS", "say": "PBS takes node1 back", "at": None, "node": 1}
    results = {index: {**DONE, "node": index, "outcome": "stopped", "reason": reason} for index in range(2)}
    session = ClusterSession(cluster, machines, cast("Any", [Keeping("safe") for _ in range(2)]))
    end = conclude(world, session, world.ledger.run(row.id), results)
    assert (fetched.asked, opened) == ([[0, 1]] * 3, [(1, "the home"), (0, "the home")])
    assert (world.ledger.run(row.id).state, end.missing, end.verdict.outcome) == ("home", "", "reclaimed")


def test_a_virtual_node_that_ends_while_its_results_are_fetched(
    world: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its report came, then its agent ended. The machine goes on, and nobody can bring the node back."""

    def refuse(*_: object) -> None:
        raise NodeRefused("this node has ended: it was ended", "start a new one", "ended")

    monkeypatch.setattr("gpuops.nodes.has_ended.contact_node", refuse)
    world.provisioners["local"] = _provider(lambda machine: machine)
    fetched = Fetched(1)
    monkeypatch.setattr("gpuops.runs.results.collect._run_final_fetch", fetched)
    cluster = a_cluster(world, created=time.time())
    row = a_run(world, cluster, created=time.time())
    world.ledger.set_run(row.id, request={**dataclasses.asdict(REQUEST), "nodes": 2})
    machine = Resource("machine", "m", "", "m", bills=True, state="running")
    machines = with_virtual([dataclasses.replace(machine, data={"virtual": [1]})])
    assert [is_virtual(each) for each in machines] == [False, True]
    reason = {"kind": "end", "say": "this node is being ended"}
    results = {index: {**DONE, "node": index, "outcome": "stopped", "reason": reason} for index in range(2)}
    end = conclude(
        world, ClusterSession(cluster, machines, cast("Any", [Keeping("safe")] * 2)), world.ledger.run(row.id), results
    )
    assert fetched.asked == [[0, 1], [0]]
    assert (world.ledger.run(row.id).state, end.missing) == ("home", "node1 ended before all results were home")


BUCKET = BucketSink("results", "lab", region="us-east-1", end=True)
AUTH = AuthFailed("the session of these AWS credentials has ended", "sign in again")


def a_reclaimed_run(world: Context) -> tuple[ClusterRow, RunRow, dict[str, Any]]:
    """Of one node, whose results are kept in a bucket; and what the node said."""
    cluster = a_cluster(world, created=time.time())
    row = a_run(world, cluster, created=time.time())
    request = dataclasses.replace(REQUEST, sink=BUCKET)
    facts = {**row.facts, "bucket": {"place": "s3://results/lab/r-1", "until": 0.0}}
    world.ledger.set_run(row.id, request=request.document(), facts=facts)
    reason = {"kind": "reclaim", "by": "AWS", "say": "AWS takes node0 back", "at": None, "node": 0}
    return cluster, world.ledger.run(row.id), {**DONE, "outcome": "stopped", "reason": reason}


@pytest.mark.parametrize(
    ("brought", "missing", "in_bucket"),
    [
        (FetchedNode(None, 0), "", []),
        (FetchedNode(None, 2), "node0 could not keep 2 files", []),
        (None, "node0 ended before all results were home", [0]),
    ],
)
def test_what_a_machine_kept_before_it_went_comes_home_though_it_had_answered(
    world: Context, monkeypatch: pytest.MonkeyPatch, brought: FetchedNode | None, missing: str, in_bucket: list[int]
) -> None:
    """It told how its run ended, and was gone before its results had come: they are in the bucket."""
    asked: list[list[int]] = []

    def bring(_world: Any, _row: Any, nodes: list[int], _progress: Any) -> Any:
        asked.append(list(nodes))
        return {node: brought for node in nodes if brought}, []

    monkeypatch.setattr("gpuops.sync.archive.fetch_archives", bring)
    monkeypatch.setattr("gpuops.runs.results.collect._run_final_fetch", Fetched(0))
    world.provisioners["local"] = _provider(lambda machine: dataclasses.replace(machine, state="ended"))
    cluster, row, said = a_reclaimed_run(world)
    machine = Resource("machine", "0", "", "m-0", True, state="running")
    end = conclude(world, ClusterSession(cluster, [machine], cast("Any", [Keeping("copying")])), row, {0: said})
    assert asked == [[0]]
    assert (end.missing, retryable(end), end.left_in_bucket) == (missing, "", "")
    assert world.ledger.run(row.id).facts["in_bucket"] == in_bucket
    assert retries.find_preemption(row, cluster, end) is not None


@pytest.mark.parametrize(("kind", "counts"), [("lease", True), ("gone", True), ("stop", False), ("rank", False)])
def test_what_counts_as_a_loss_of_machines_that_were_granted(
    world: Context, monkeypatch: pytest.MonkeyPatch, kind: str, counts: bool
) -> None:
    """Their time was over, or they are gone; not what the user or the program did."""
    monkeypatch.setattr("gpuops.runs.results.collect._run_final_fetch", Fetched())
    world.provisioners["local"] = _provider(lambda machine: machine)
    cluster = a_cluster(world, created=time.time())
    row = a_run(world, cluster, created=time.time())
    outcome = {"lease": "stopped", "gone": "lost", "stop": "stopped", "rank": "failed"}[kind]
    said = {**DONE, "outcome": outcome, "reason": {"kind": kind, "say": "node0 is gone"}}
    machine = Resource("machine", "0", "", "m-0", True, state="running")
    end = conclude(world, ClusterSession(cluster, [machine], cast("Any", [Keeping("safe")])), row, {0: said})
    assert (retries.find_preemption(row, cluster, end, granted=True) is not None) is counts
    assert retries.find_preemption(row, cluster, end) is None


def test_a_last_fetch_that_is_cut_is_made_again(world: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a new conversation with each node: what a batch job has left is served without its machine."""
    tried: list[list[int]] = []
    reconnected: list[int] = []

    def fetch_now(*_: Any, nodes: list[int], **__: Any) -> None:
        tried.append(nodes)
        if len(tried) == 1:
            raise ConnectionLost("the connection to node0 ended")

    monkeypatch.setattr(collect, "fetch_now", fetch_now)
    monkeypatch.setattr(collect, "_fetch_unnamed", lambda *_: "")
    cluster = a_cluster(world, created=time.time())
    row = a_run(world, cluster, created=time.time())
    machine = Resource("machine", "0", "", "m-0", False, data={"inside_modes": ["connect"]})
    session: Any = SimpleNamespace(row=cluster, reconnect=reconnected.append, machines=[machine, machine])
    assert collect._run_final_fetch(world, session, row, Silent(), [1]) == FinalFetch()
    assert (tried, reconnected) == ([[1], [1]], [1])


def test_what_is_on_a_node_comes_before_what_is_in_a_bucket(world: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bucket stays; the node costs money, and may go as well."""
    order: list[str] = []
    monkeypatch.setattr(
        "gpuops.sync.archive.fetch_archives", lambda *_: (order.append("bucket"), ({0: FetchedNode(None, 0)}, []))[1]
    )
    monkeypatch.setattr(
        "gpuops.runs.results.collect._run_final_fetch", lambda *_: (order.append("node"), FinalFetch())[1]
    )
    cluster, row, said = a_reclaimed_run(world)
    world.ledger.set_run(row.id, request={**row.request, "nodes": 2})
    results = {0: lost_report(0, "node0 ended without a word", ReasonKind.ENDED), 1: {**said, "node": 1}}
    live = ClusterSession(cluster, [], cast("Any", [Keeping("safe")] * 2))
    conclude(world, live, world.ledger.run(row.id), results)
    assert order == ["node", "bucket"]


def a_run_that_lost_a_node(world: Context) -> tuple[ClusterSession, RunRow, dict[int, Mapping[str, Any]]]:
    """Of two nodes, whose results are kept in a bucket; node0 is gone, and node1 has told how it ended."""
    cluster, row, _ = a_reclaimed_run(world)
    world.ledger.set_run(row.id, request={**row.request, "nodes": 2})
    taken = lost_report(0, "node0 ended without a word", ReasonKind.ENDED)
    live = ClusterSession(cluster, [], cast("Any", [Keeping("safe")] * 2))
    return live, world.ledger.run(row.id), {0: taken, 1: {**DONE, "node": 1}}


def test_what_is_in_a_bucket_is_left_for_after_the_nodes_end(world: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then the ledger says that something is there, for whoever is interrupted; the meter stops at their end."""
    order: list[str] = []

    def bring(_world: Any, _row: Any, nodes: Iterable[int], _progress: Any) -> Any:
        order.append(f"bucket {list(nodes)}")
        return {0: FetchedNode(DONE, 0)}, []

    monkeypatch.setattr("gpuops.sync.archive.fetch_archives", bring)
    monkeypatch.setattr(
        "gpuops.runs.results.collect._run_final_fetch", lambda *_: (order.append("node"), FinalFetch())[1]
    )
    monkeypatch.setattr("gpuops.sync.bucket.abort_uploads", lambda *_: order.append("abandon"))
    live, row, results = a_run_that_lost_a_node(world)
    end = conclude(world, live, row, results, ends_nodes=True)
    assert (order, retryable(end), end.verdict.outcome) == (["node"], "", "lost")
    waits = "what node0 kept is in s3://results/lab/r-1; `gpuops pull r-1` fetches it"
    assert end.missing == f"node0 ended before all results were home; {waits}"
    assert end.left_in_bucket, "nothing begins anew without it"
    meanwhile = world.ledger.run(row.id)
    assert (meanwhile.state, meanwhile.facts["in_bucket"]) == ("home", [0])
    assert is_awaited(meanwhile)
    ended = time.time() + 1800.0
    world.ledger.mark_gone(live.row.id, ended, "its run ended")
    assert end.deferred_fetch is not None
    whole = end.deferred_fetch()
    assert order == ["node", "bucket [0]", "abandon"]
    assert (whole.verdict.outcome, whole.missing, whole.left_in_bucket, whole.deferred_fetch) == ("done", "", "", None)
    assert whole.record.kept.startswith("safe in ")
    assert whole.record.cost == pytest.approx(36.0 * 0.5, rel=0.01)
    assert json.loads((row.home / "run.json").read_text())["verdict"]["outcome"] == "done"
    after = world.ledger.run(row.id)
    assert (after.state, after.facts["in_bucket"], after.facts["told"]) == ("home", [], {})


def test_what_was_left_there_is_fetched_later_and_nothing_else(world: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """And judged as it would have been then: what the other node told is known."""
    monkeypatch.setattr("gpuops.runs.results.collect._run_final_fetch", Fetched())
    live, row, results = a_run_that_lost_a_node(world)
    conclude(world, live, row, results, ends_nodes=True)
    asked: list[list[int]] = []

    def bring(_world: Any, _row: Any, nodes: Iterable[int], _progress: Any) -> Any:
        asked.append(list(nodes))
        return {0: FetchedNode(DONE, 0)}, []

    monkeypatch.setattr("gpuops.sync.archive.fetch_archives", bring)
    aborted: list[RunRow] = []
    monkeypatch.setattr("gpuops.sync.bucket.abort_uploads", lambda _world, run: aborted.append(run))
    finish_late(world, world.ledger.run(row.id), Silent())
    assert not aborted, "a node that is ending may still close its archive"
    assert asked == [[0]]
    record = json.loads((row.home / "run.json").read_text())
    assert (record["verdict"]["outcome"], record["missing"]) == ("done", "")
    assert record["kept"].startswith("safe in ")
    assert not is_awaited(world.ledger.run(row.id))


def test_a_node_that_was_taken_back_and_kept_nothing_is_remembered_so(
    world: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuops.runs.results.collect._run_final_fetch", Fetched())
    monkeypatch.setattr("gpuops.sync.archive.fetch_archives", lambda *_: ({}, []))
    live, row, results = a_run_that_lost_a_node(world)
    taken = lost_report(
        0, "node0 ended without a word", ReasonKind.ENDED, MachineEnd("AWS took it back", preempted=True, by="AWS")
    )
    end = conclude(world, live, row, {**results, 0: taken})
    assert end.verdict.outcome == "reclaimed"
    finish_late(world, world.ledger.run(row.id), Silent())
    assert json.loads((row.home / "run.json").read_text())["verdict"] == dataclasses.asdict(end.verdict)


@pytest.mark.parametrize(("kind", "failed"), [("node", ""), ("gone", "node1 went away")])
def test_while_something_may_be_on_a_node_alone_the_bucket_is_asked_first(
    world: Context, monkeypatch: pytest.MonkeyPatch, kind: str, failed: str
) -> None:
    """Only what has come from there says whether the node may go."""
    monkeypatch.setattr("gpuops.sync.archive.fetch_archives", lambda *_: ({0: FetchedNode(DONE, 0)}, []))
    monkeypatch.setattr("gpuops.runs.results.collect._run_final_fetch", lambda *_: FinalFetch(failed))
    live, row, results = a_run_that_lost_a_node(world)
    end = conclude(
        world, live, row, {**results, 0: lost_report(0, "node0 is silent", ReasonKind(kind))}, ends_nodes=True
    )
    assert (end.deferred_fetch, end.verdict.outcome) == (None, "done")


@pytest.mark.parametrize(("missing", "state"), [(0, "home"), (2, "ended")])
def test_a_node_that_may_have_more_than_the_bucket_is_not_given_up(
    world: Context, monkeypatch: pytest.MonkeyPatch, missing: int, state: str
) -> None:
    """Out of reach, it had no time for all: the rest may still be there."""
    cluster, row, said = a_reclaimed_run(world)
    monkeypatch.setattr("gpuops.sync.archive.fetch_archives", lambda *_: ({0: FetchedNode(said, missing)}, []))
    results = {0: lost_report(0, "node0 could not be reached", ReasonKind.UNREACHABLE)}
    end = conclude(world, ClusterSession(cluster, [], cast("Any", [Keeping("safe")])), row, results)
    assert world.ledger.run(row.id).state == state
    assert retryable(end) == ("node0 cannot be reached any more" if missing else "")


@pytest.mark.parametrize("talks", [False, True])
def test_without_what_is_in_the_bucket_nothing_is_begun_anew(
    world: Context, monkeypatch: pytest.MonkeyPatch, talks: bool
) -> None:
    """Where another node has answered, what it has is home; else a new run would begin from something older."""
    monkeypatch.setattr("gpuops.sync.archive.fetch_archives", lambda *_: ({}, [AUTH]))
    monkeypatch.setattr("gpuops.runs.results.collect._run_final_fetch", Fetched())
    cluster, row, said = a_reclaimed_run(world)
    if talks:
        world.ledger.set_run(row.id, request={**row.request, "nodes": 2})
        row = world.ledger.run(row.id)
    taken = lost_report(
        0, "node0 ended without a word", ReasonKind.ENDED, MachineEnd("AWS took it back", preempted=True, by="AWS")
    )
    results = {0: taken, 1: {**said, "node": 1}} if talks else {0: taken}
    end = conclude(world, ClusterSession(cluster, [], cast("Any", [Keeping("safe")] * 2)), row, results)
    assert end.verdict.outcome == "reclaimed"
    assert world.ledger.run(row.id).facts["in_bucket"] == [0]
    assert (retries.find_preemption(row, cluster, end) is not None) is talks
    trouble = f"; what it kept in s3://results/lab/r-1 is not home: {AUTH.message}"
    assert end.verdict.say.endswith(trouble) is not talks
    assert ("`gpuops pull r-1`" in end.verdict.hint) is not talks


@pytest.mark.parametrize(("ephemeral", "index", "hours"), [(True, None, 3), (False, None, 2), (True, 0, 2)])
def test_what_a_run_costs_and_how_long_it_was(world: Context, ephemeral: bool, index: int | None, hours: int) -> None:
    now = time.time()
    cluster = a_cluster(world, created=now - 3 * 3600, ephemeral=ephemeral)
    row = a_run(world, cluster, created=now - 2 * 3600)
    world.ledger.set_run(row.id, request={**row.request, "array_index": index})
    world.ledger.set_run(row.id, state="ended", started=now - 3600, ended=now - 1800)  # its fetch took half an hour
    conclude(
        world, ClusterSession(cluster, []), world.ledger.run(row.id), {0: lost_report(0, "gone", ReasonKind.ENDED)}
    )
    record: dict[str, Any] = json.loads((row.home / "run.json").read_text())
    assert record["schema"] == 1
    assert record["duration_s"] == pytest.approx(1800)
    assert record["before_s"] == pytest.approx((hours - 1) * 3600)
    assert record["cost"] == pytest.approx(36.0 * hours, rel=0.05)


class Keeping:
    """A node whose results cannot be fetched, and may be safe elsewhere."""

    label = "node0"
    paths = None

    def close(self) -> None:
        """Nothing is open."""

    def __init__(self, *states: str) -> None:
        self.states = list(states)
        self.asked: list[str] = []

    def call(self, verb: str, **_: Any) -> NodeRunState:
        self.asked.append(verb)
        if verb != "run":
            raise ConnectionLost("away")
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return NodeRunState(sink=SinkState(state, "/workspace/gpuops/r-1", Sentence("it is full")))


SINK = FolderSink("data", "/workspace", True, "5f0c")
DONE = {
    "node": 0, "outcome": "done", "reason": {"kind": "command", "say": "the command ended well"}, "started": 1.0,
    "ended": 2.0, "launcher": {"code": 0, "signal": None}, "ranks": [], "tail": "", "out": "ok\n",
}  # fmt: skip


def a_kept_run(world: Context, hold_s: float = 60.0) -> tuple[ClusterRow, RunRow]:
    cluster = a_cluster(world, created=time.time())
    row = a_run(world, cluster, created=time.time())
    world.ledger.set_run(row.id, request=dataclasses.replace(REQUEST, sink=SINK, hold_s=hold_s).document())
    return cluster, world.ledger.run(row.id)


def test_what_is_safe_elsewhere_keeps_no_node_alive(world: Context) -> None:
    cluster, row = a_kept_run(world)
    node = Keeping("copying", "safe")
    end = conclude(world, ClusterSession(cluster, [], cast("Any", [node])), row, {0: DONE})
    assert (end.missing, retryable(end)) == ("away", "")
    assert end.record.kept == "safe on the network volume data, in gpuops/r-1"
    assert world.ledger.run(row.id).state == "home"
    assert node.asked[-1] == "home"


def test_nodes_that_get_no_further_are_waited_for_together(world: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them costs money meanwhile."""
    monkeypatch.setattr("gpuops.runs.results.sink_wait.STALL_TIMEOUT_S", 1.0)
    monkeypatch.setattr("gpuops.runs.results.collect._run_final_fetch", Fetched())
    cluster, row = a_kept_run(world)
    world.ledger.set_run(row.id, request={**row.request, "nodes": 12})
    all_at_once = threading.Barrier(12)

    class Met(Keeping):
        def call(self, verb: str, **more: Any) -> NodeRunState:
            if verb == "run" and verb not in self.asked:
                all_at_once.wait(HANG_S)
            return super().call(verb, **more)

    nodes = [Met("copying") for _ in range(12)]
    results = {index: {**DONE, "node": index} for index in range(12)}
    end = conclude(world, ClusterSession(cluster, [], cast("Any", nodes)), world.ledger.run(row.id), results)
    assert end.record.kept.count("it was not waited for any longer") == 12


def test_a_node_that_never_comes_to_an_end_is_not_waited_for(world: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets one byte further at each look."""
    monkeypatch.setattr("gpuops.runs.results.sink_wait.TIMEOUT_S", 1.0)
    monkeypatch.setattr("gpuops.runs.results.collect._run_final_fetch", Fetched())
    cluster, row = a_kept_run(world, hold_s=0.5)

    class Dripping(Keeping):
        def call(self, verb: str, **more: Any) -> NodeRunState:
            answer = super().call(verb, **more)
            return NodeRunState(sink=SinkState("copying", done=len(self.asked))) if verb == "run" else answer

    end = conclude(world, ClusterSession(cluster, [], cast("Any", [Dripping("copying")])), row, {0: DONE})
    assert "it was not waited for any longer" in end.record.kept


def test_what_is_not_safe_anywhere_does(world: Context) -> None:
    cluster, row = a_kept_run(world)
    node = Keeping("failed")
    end = conclude(world, ClusterSession(cluster, [], cast("Any", [node])), row, {0: DONE})
    assert retryable(end) == "away"
    assert end.record.kept == "not all on the network volume data, in gpuops/r-1 (node0: it is full)"
    assert world.ledger.run(row.id).state == "ended"
    assert "home" not in node.asked


def test_of_machines_that_are_gone_the_volume_is_named(world: Context) -> None:
    cluster, row = a_kept_run(world)
    end = conclude(world, ClusterSession(cluster, []), row, {0: lost_report(0, "gone", ReasonKind.ENDED)})
    assert (end.verdict.outcome, end.verdict.exit_code) == ("unclear", 4)
    assert end.verdict.say.endswith("what they kept is on the network volume data, in gpuops/r-1")
    never = conclude(world, ClusterSession(cluster, []), row, {0: lost_report(0, "no run", ReasonKind.NEVER_STARTED)})
    assert never.verdict.outcome == "lost"


class Hanging:
    """A node that never answers."""

    label = "node0"

    def __init__(self) -> None:
        self.asked = 0
        self.let_go = threading.Event()

    def call(self, *_: Any, **__: Any) -> dict[str, Any]:
        self.asked += 1
        self.let_go.wait(HANG_S)
        raise ConnectionLost("away")


def test_a_fetch_that_hangs_keeps_nobody_waiting_and_is_never_doubled(
    world: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuops.runs.monitor.LIVE_FETCH_INTERVAL_S", 0.0)
    cluster = a_cluster(world, created=time.time())
    row = a_run(world, cluster, created=time.time())
    node = Hanging()
    fetching = LiveFetch(ClusterSession(cluster, [], cast("Any", [node])), row, Clock())
    fetching.poll()
    until(lambda: node.asked, "the fetch to begin")
    fetching.poll()
    fetching.poll()
    assert node.asked == 1
    node.let_go.set()
    until(lambda: fetching.poll() or node.asked > 1, "another fetch after the first")


def test_of_two_runs_the_earlier_goes_first(world: Context) -> None:
    """Both are in the ledger, and no node is busy yet: the second waits, or is refused without --queue."""
    cluster = a_cluster(world, created=time.time())
    live = ClusterSession(cluster, [])
    first, second = (a_run(world, cluster, created=time.time()) for _ in range(2))
    assert wait_for_turn(world, live, first, queue=False).id == first.id
    with pytest.raises(UsageError, match="r-1 is running on lab"):
        wait_for_turn(world, live, second, queue=False)
    world.ledger.set_run(first.id, owner_process=DEAD)
    assert wait_for_turn(world, live, second, queue=True).id == second.id


def test_a_run_waits_until_the_last_of_an_earlier_array(world: Context) -> None:
    """Between two of its runs none is in the ledger that goes on."""
    cluster = a_cluster(world, created=time.time())
    live = ClusterSession(cluster, [])
    of_array, mine = (a_run(world, cluster, created=time.time()) for _ in range(2))
    world.ledger.set_run(of_array.id, state="home", owner_process=None)

    def of(pid: int, start: float) -> None:
        world.ledger.set_run(of_array.id, facts={**of_array.facts, "array": [pid, start]})

    of(os.getppid(), started(os.getppid()))
    with pytest.raises(UsageError, match="the array of r-1 is running on lab") as caught:
        wait_for_turn(world, live, mine, queue=False)
    assert caught.value.hint.startswith("wait for it with --queue, or end it: Ctrl-C where it was started")
    of(DEAD.pid, DEAD.start)
    assert wait_for_turn(world, live, mine, queue=False).id == mine.id
    of(world.me.pid, world.me.start)
    assert wait_for_turn(world, live, mine, queue=False).id == mine.id, "its own"


def test_the_nodes_of_a_run_are_those_that_it_was_given(world: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its provider is asked about their machines, and they are numbered from 0 in the run."""
    cluster = a_cluster(world, created=time.time())
    row = a_run(world, cluster, created=time.time())
    world.ledger.set_run(row.id, request={**row.request, "nodes": 1, "nodes_at": [2]})
    asked: list[Any] = []
    monkeypatch.setattr(follow, "node_has_ended", lambda _provider, _row, *machine: asked.append(machine) or True)
    machines, clients = cast(Any, ["m0", "m1", "m2"]), cast(Any, ["c0", "c1", "c2"])
    live = ClusterSession(cluster, machines, clients, [None] * 3, [0.0] * 3)
    follower = follow.make_follower(world, live, world.ledger.run(row.id), lambda *_: None, print)
    assert (follower.node_count, follower.session.clients) == (1, ["c2"])
    assert follower._machine_has_ended(0)
    assert asked == [("m2", 2)]
