"""What earlier runs left on the nodes: said, put on every node, or taken off; nodes and homes without a cluster."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuops.core.errors import NodeRefused, UsageError
from gpuops.core.reporting import Silent
from gpuops.ledger.rows import RunFacts, RunState
from gpuops.runs import earlier_files
from gpuops.runs.earlier_files import TWO_WAYS, Launch, clear_start, find_places, prepare_start
from gpuops.runs.start_decision import EarlierFile
from gpuops.sync.merged_outputs import OutFolder
from gpuops.sync.merged_outputs_record import Arrival
from gpuops.sync.run_folder import RunHome
from gpuops.transport.file_schemas import DiscardedFiles, MadeFiles


class Node:
    """An agent that has these files of earlier runs, and removes what it is told to."""

    label = "node0"

    def __init__(self, *rows: tuple[str, int, int, str, bool], knows: bool = True) -> None:
        self.rows, self.knows = rows, knows
        self.removed: list[str] = []

    def call(self, verb: str, *, timeout: float, **args: Any) -> Any:
        assert timeout
        if verb == "discard":
            self.removed += [path for path, _size, _mtime_ns in args["files"]]
            return DiscardedFiles(len(args["files"]))
        assert (verb, args["runs"]) == ("made", ["one-1"])
        if not self.knows:
            raise NodeRefused("this agent does not know 'made'", "", "unknown-verb")
        return MadeFiles(list(self.rows))


class World:
    """A home with one run, whose snapshot has come home from node0, and the next that is about to start."""

    def __init__(self, folder: Path) -> None:
        self.home = RunHome(folder / "runs/one-1")
        self.home.create()
        self.comes_home(0, "epoch", 7)
        self.snapshot = self.home.out / "a.pt"
        facts = RunFacts(cluster="lab")
        rows = [SimpleNamespace(id=number, name=name, home=folder / "runs" / name, tree="project", cluster=1,
                                nodes_at=(), state=RunState.HOME, facts=facts)
                for number, name in enumerate(("one-1", "two-1"))]  # fmt: skip
        self.rows, self.row = rows, rows[-1]
        self.said: list[str] = []
        say = SimpleNamespace(say=self.said.append)
        self.ctx: Any = SimpleNamespace(ledger=SimpleNamespace(runs=lambda **_: rows[::-1]), out=say)

    def comes_home(self, node: int, text: str, mtime_ns: int) -> None:
        out = OutFolder(self.home)
        with out.staging() as staging:
            sha256 = staging.create("file", io.BytesIO(text.encode()), len(text), mtime_ns=mtime_ns)
            assert out.publish([Arrival(node, "a.pt", (len(text), mtime_ns), sha256, "file")], staging) == []

    def launch(self, *nodes: Node, training: bool = True, resumes: str = "") -> Launch:
        return Launch(cast(Any, nodes), "project", cast(Any, self.row), (), is_training=training, resumes=resumes)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


SNAPSHOT = ("a.pt", 5, 7, "one-1", False)


def test_what_one_node_goes_on_from_is_said(world: World) -> None:
    prepare_start(world.ctx, world.launch(Node(SNAPSHOT)), Silent())
    assert world.said == ["finds a.pt of one-1 (on node0) to go on from; start afresh: --fresh"]


def test_whether_every_node_finds_the_same_is_said(world: World) -> None:
    prepare_start(world.ctx, world.launch(Node(SNAPSHOT), Node(("a.pt", 5, 99, "one-1", True))), Silent())
    world.comes_home(1, "other", 8)
    prepare_start(world.ctx, world.launch(Node(SNAPSHOT), Node(("a.pt", 5, 8, "one-1", False))), Silent())
    prepare_start(world.ctx, world.launch(Node(("r0.pt", 1, 1, "one-1", False)),
                                          Node(("r1.pt", 1, 1, "one-1", False))), Silent())  # fmt: skip
    assert world.said == [
        "finds a.pt of one-1 (on every node) to go on from; start afresh: --fresh",
        "finds a.pt of one-1 (each node its own) to go on from; start afresh: --fresh",
        "finds r0.pt of one-1, r1.pt of one-1 (each node its own) to go on from; start afresh: --fresh",
    ]


def test_a_node_that_cannot_take_it_leaves_a_way_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise NodeRefused("'outputs/a.pt' cannot be written: 'outputs' is a link", "move it away", "outside")

    monkeypatch.setattr("gpuops.runs.earlier_files.put_files", refuse)
    with pytest.raises(NodeRefused) as caught:
        prepare_start(world.ctx, world.launch(Node(SNAPSHOT), Node()), Silent())
    assert caught.value.hint == "move it away; or start afresh: --fresh"


def test_what_a_later_run_than_the_resumed_one_left_is_named(world: World) -> None:
    prepare_start(world.ctx, world.launch(Node(SNAPSHOT), resumes="one-1"), Silent())
    assert world.said == []
    prepare_start(
        world.ctx, world.launch(Node(SNAPSHOT, ("step20.pt", 5, 9, "two-1", False)), resumes="one-1"), Silent()
    )
    ways = "a script that takes the newest goes on from it; where that shall not be, remove it: gpuops ssh lab"
    assert world.said == [f"note: later than one-1, and on the nodes: step20.pt of two-1; {ways}"]


def test_a_command_on_every_node_is_not_refused_and_changes_nothing(world: World) -> None:
    prepare_start(world.ctx, world.launch(Node(SNAPSHOT), Node(), training=False), Silent())
    (said,) = world.said
    assert said == f"note: a.pt of one-1 lies on node0 alone; {TWO_WAYS}"


def test_what_takes_long_to_even_out_is_said_before(world: World) -> None:
    with pytest.raises(UsageError):  # it is not home, and not fetched either
        prepare_start(world.ctx, world.launch(Node(("a.pt", 10**9, 8, "one-1", False)), Node(), Node()), Silent())
    say = "note: 2.0 GB go to nodes that lack what others have to go on from; start afresh: --fresh"
    assert world.said == [say]


def test_an_older_agent_is_not_asked_twice(world: World) -> None:
    prepare_start(world.ctx, world.launch(Node(SNAPSHOT, knows=False), Node()), Silent())
    assert world.said == []
    with pytest.raises(NodeRefused):
        clear_start(world.ctx, world.launch(Node(SNAPSHOT, knows=False), Node()), Silent())


def test_what_was_put_back_and_is_outdated_goes_where_it_is_home(world: World) -> None:
    put_back = Node(("a.pt", 5, 99, "one-1", True), ("b.pt", 5, 99, "one-1", True))
    nodes = Node(("loss.csv", 5, 99, "two-1", False)), put_back
    prepare_start(world.ctx, world.launch(*nodes), Silent())
    assert ([node.removed for node in nodes], world.said) == ([[], ["a.pt"]], [])


def test_only_what_is_home_as_it_was_made_has_a_place(world: World) -> None:
    home, made = RunHome(world.snapshot.parents[1]), EarlierFile(5, 7, "one-1")
    back = EarlierFile(5, 99, "one-1", restored=True)
    assert find_places(home, [{"a.pt": made}, {"a.pt": back}]) == {(0, "a.pt"): "a.pt", (1, "a.pt"): "a.pt"}
    assert find_places(home, [{"a.pt": EarlierFile(5, 8, "one-1"), "b.pt": made}]) == {}, "written since; unknown"
    world.snapshot.write_text("my own")
    assert find_places(home, [{"a.pt": made}, {"a.pt": back}]) == {}


def test_fresh_removes_what_is_home_and_of_a_run(world: World) -> None:
    nodes = Node(SNAPSHOT, ("by-hand.pt", 1, 1, "", False)), Node(("a.pt", 5, 99, "one-1", True))
    clear_start(world.ctx, world.launch(*nodes), Silent())
    assert [node.removed for node in nodes] == [["a.pt"], ["a.pt"]]
    assert world.said == ["starts afresh: a.pt of one-1 taken off the nodes; all of it is home"]


@pytest.mark.parametrize(
    ("facts", "said"),
    [({}, ["starts afresh: earlier runs left no snapshots on the nodes"]), ({"array": "a1"}, [])],
    ids=["--fresh", "an array, of which nobody asked it"],
)
def test_fresh_where_there_is_nothing(world: World, facts: dict[str, str], said: list[str]) -> None:
    launch = world.launch(Node())
    launch.row.facts.update(facts)
    clear_start(world.ctx, launch, Silent())
    assert world.said == said


def test_a_run_of_an_array_numbers_its_nodes_by_itself(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its snapshot is on node1 of the cluster, which was its node0: it is home, and not fetched once more."""
    monkeypatch.setattr(earlier_files, "fetch", lambda *_, **__: pytest.fail("it is home"))
    world.rows[0].nodes_at = [1]
    nodes = Node(), Node(SNAPSHOT)
    clear_start(world.ctx, world.launch(*nodes), Silent())
    assert nodes[1].removed == ["a.pt"]
    part = Node(SNAPSHOT)
    clear_start(world.ctx, dataclasses.replace(world.launch(part), numbers=[1]), Silent())
    assert part.removed == ["a.pt"]


def test_fresh_removes_nothing_where_something_is_not_home(world: World) -> None:
    nodes = Node(SNAPSHOT), Node(("b.pt", 5, 99, "one-1", True))
    with pytest.raises(UsageError, match=r"^b.pt of one-1 on node1 is not home, and --fresh would lose it$") as caught:
        clear_start(world.ctx, world.launch(*nodes), Silent())
    hint = "give it another name there, under which it comes home: gpuops ssh lab --node 1"
    assert caught.value.hint == hint
    assert [node.removed for node in nodes] == [[], []]


@pytest.mark.parametrize(("maker", "removed"), [(None, []), ([7, 1.0], []), ([8, 1.0], ["a.pt"])])
def test_a_further_run_of_an_array_takes_off_what_its_runs_made_alone(
    world: World, maker: list[float] | None, removed: list[str]
) -> None:
    """What the set-up command has brought since an earlier run began passes for that run's."""
    world.row.facts = RunFacts(cluster="lab", array=[8, 1.0])
    world.ctx.ledger.runs()[-1].facts = RunFacts(cluster="lab", array=maker)
    node = Node(SNAPSHOT)
    assert clear_start(world.ctx, world.launch(node), Silent(), of_array=True) == {*removed}
    assert node.removed == removed


def test_a_node_of_an_arrays_run_is_named_by_its_number_in_the_cluster(world: World) -> None:
    launch = dataclasses.replace(world.launch(Node(("b.pt", 5, 99, "one-1", True))), numbers=[3])
    with pytest.raises(UsageError, match=r"^b.pt of one-1 on node3 is not home") as caught:
        clear_start(world.ctx, launch, Silent())
    assert caught.value.hint.endswith("gpuops ssh lab --node 3")


CHANGED = ("a.pt", 5, 8, "one-1", False)
"""The snapshot of the run that is home, written anew on the node: by hand, since no later run was there."""


@pytest.mark.parametrize("prepare", [prepare_start, clear_start])
def test_what_was_changed_after_its_run_was_home_does_not_replace_the_result(world: World, prepare: Any) -> None:
    node = Node(CHANGED)  # that is asked for no file
    with pytest.raises(UsageError, match=r"^a.pt of one-1 (lies on node0 alone, and that|on node0) is not home"):
        prepare(world.ctx, world.launch(node, Node()), Silent())
    assert (world.snapshot.read_text(), node.removed) == ("epoch", [])


@pytest.mark.parametrize("older", [("a.pt", 5, 8, "", False), ("a.pt", 5, 8, "zero-1", False)])
def test_what_is_nowhere_else_is_not_replaced_on_a_node(world: World, older: tuple[str, int, int, str, bool]) -> None:
    with pytest.raises(UsageError, match=r"^a.pt of one-1 lies on node0 alone, and what it would replace on node1"):
        prepare_start(world.ctx, world.launch(Node(SNAPSHOT), Node(older)), Silent())


def test_many_files_are_looked_up_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of a run is read once for all of its files."""
    reads: list[RunHome] = []

    def look(home: RunHome, _nodes: object) -> dict[tuple[int, str], str]:
        reads.append(home)
        return {}

    monkeypatch.setattr("gpuops.runs.earlier_files.find_places", look)
    put_back = Node(*((f"step{number}.pt", 5, 99, "one-1", True) for number in range(50)))
    prepare_start(world.ctx, world.launch(Node(("loss.csv", 5, 99, "two-1", False)), put_back), Silent())
    assert [home.path.name for home in reads] == ["one-1"]
