"""What `run` decides before it acts: a run's name, its set-up, data that cannot travel."""

from __future__ import annotations

import io
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuops.cli.terminal.output import Output
from gpuops.core.context import Context
from gpuops.core.errors import ConnectionLost, LocalDisk, NodeRefused, RunFailed, UsageError
from gpuops.core.models import Lease
from gpuops.core.polling import Clock
from gpuops.core.reporting import Silent
from gpuops.core.run_models import NodeFacts, RunRequest
from gpuops.core.settings import Settings
from gpuops.core.signals import Signals
from gpuops.ledger.rows import RunFacts, RunState
from gpuops.ledger.store import RunRow
from gpuops.nodes.python import PreparedNode, run_setup, setup_command, setup_key
from gpuops.nodes.session import ClusterSession
from gpuops.runs import prepare, turn
from gpuops.runs.launch import launch
from gpuops.runs.prepare import Prepared, run_name_stem
from gpuops.runs.ready_nodes import Sending
from gpuops.transport.rpc import Items, Stream
from gpuops.transport.schemas import FreePort, SetupOutput, SetupResult
from tests.conftest import HANG_S
from tests.fakes.provider import FakeClock
from tests.unit.runs.test_finish import DEAD, a_cluster, a_run

TRAIN = RunRequest(kind="torchrun", mode="multinode", nodes=2, gpus=None, script="train.py")


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({}, "train"),
        ({"script": "src/My Script.py"}, "my-script"),
        ({"script": None, "module": "pkg.deep.main"}, "main"),
        ({"script": None, "workload": "digits"}, "digits"),
        ({"script": None, "argv": ["/usr/bin/env", "x"]}, "env"),
        ({"script": "2fast.py"}, "run-2fast"),
        ({"script": "ünïcode.py"}, "n-code"),
        ({"script": "....py"}, "run"),
        ({"script": "a" * 60 + ".py"}, "a" * 18),
    ],
)
def test_a_run_is_named_after_what_it_runs(changed: dict[str, object], name: str) -> None:
    assert run_name_stem(replace(TRAIN, **changed)) == name  # type: ignore[arg-type]


def test_a_run_names_the_hosts_of_its_own_nodes(world: Context) -> None:
    row = replace(a_cluster(world, created=0.0), provider="ssh")
    machines = [SimpleNamespace(region=host, bills=False, per_hour=0.0) for host in ("me@a", "me@b")]
    session = cast(ClusterSession, SimpleNamespace(row=row, machines=machines, skews=[0.0, 0.0]))
    assert prepare.add_run(world, session, replace(TRAIN, nodes=1), {}).facts.hosts == ["me@a"]
    assert prepare.add_run(world, session, TRAIN, {}).facts.hosts == ["me@a", "me@b"]


@pytest.mark.parametrize(
    ("files", "asked", "rented", "command"),
    [
        (["requirements.txt"], None, True, "'/a b/python3' -m pip install -r requirements.txt"),
        (["requirements.txt"], None, False, ""),
        (["requirements.txt", "pyproject.toml"], None, True, "'/a b/python3' -m pip install -r requirements.txt"),
        (["pyproject.toml"], None, True, "'/a b/python3' -m pip install -e ."),
        ([], None, True, ""),
        (["requirements.txt"], "", True, ""),
        (["requirements.txt"], "make deps", True, "make deps"),
        ([], "make deps", False, "make deps"),
    ],
)
def test_set_up_is_what_the_project_asks_for_on_rented_nodes(
    tmp_path: Path, files: list[str], asked: str | None, rented: bool, command: str
) -> None:
    for name in files:
        (tmp_path / name).write_text('[project]\nname = "a"\n' if name == "pyproject.toml" else "")
    assert setup_command(replace(TRAIN, setup=asked), tmp_path, "/a b/python3", rented=rented) == command


@pytest.mark.parametrize(("text", "installs"), [("[tool.ruff]\n", False), ("[build-system]\n", True), ("=", True)])
def test_settings_of_tools_alone_are_no_package(tmp_path: Path, text: str, installs: bool) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    assert bool(setup_command(TRAIN, tmp_path, "python3", rented=True)) is installs


@pytest.mark.parametrize(
    ("command", "changed", "again"),
    [
        ("python3 -m pip install -r requirements.txt", "requirements.txt", True),
        ("python3 -m pip install -r requirements.txt", "more/gpu.txt", True),
        ("python3 -m pip install -r requirements.txt", "train.py", False),
        ("python3 -m pip install -r requirements.txt", "pyproject.toml", False),
        ("python3 -m pip install -e .", "pyproject.toml", True),
        ("pip install './lib[all]'&& make", "lib/setup.py", True),
        ("bash setup.sh", "setup.sh", True),
        ("cat ../beside.txt /etc/hostname nothing loop", "train.py", False),
        (" ".join(f"{number}.txt" for number in range(5000)), "train.py", False),
    ],
)
def test_a_set_up_is_done_again_where_what_it_reads_has_changed(
    tmp_path: Path, command: str, changed: str, again: bool
) -> None:
    folder = tmp_path / "project"
    texts = {"requirements.txt": "numpy\n-r more/gpu.txt\n-c none.txt\n-r requirements.txt\n", "more/gpu.txt": "a\n"}
    for name in (*texts, "train.py", "pyproject.toml", "setup.sh", "lib/setup.py", "../beside.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(texts.get(name, ""))
    (folder / "loop").symlink_to("loop")
    before = setup_key(command, "python3", folder)
    assert setup_key(command, "python3", folder) == before
    assert setup_key(command, "/opt/python3", folder) != before
    (folder / changed).write_text("other\n")
    assert (setup_key(command, "python3", folder) != before) is again


def test_our_workloads_need_no_set_up(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("")
    assert setup_command(replace(TRAIN, script=None, workload="digits"), tmp_path, "python3", rented=True) == ""


class SettingUp:
    """An agent whose set-up takes until all that may go on at the same time do."""

    def __init__(self, machine: str, busy: list[str], at_once: threading.Barrier) -> None:
        self._machine, self._busy, self._at_once = machine, busy, at_once

    def stream(self, _verb: str, **_args: Any) -> Stream:
        return Stream(self._items())

    def _items(self) -> Items:
        assert self._machine not in self._busy, "two set-ups at once on one machine"
        self._busy.append(self._machine)
        self._at_once.wait(HANG_S)
        time.sleep(0.02)
        self._busy.remove(self._machine)
        yield SetupOutput(b"")
        return SetupResult(0, skipped=False)


@pytest.mark.parametrize(("machines", "at_once"), [("aabb", 2), ("abcd", 4), ("    ", 1)])
def test_nodes_on_one_machine_are_set_up_one_after_the_other(machines: str, at_once: int, tmp_path: Path) -> None:
    """They share a Python. Nodes on different machines do not wait for each other: else the barrier never opens."""
    busy: list[str] = []
    barrier = threading.Barrier(at_once)
    data = [{"target": {"host": name, "port": 22}} if name.strip() else {} for name in machines]
    agents = [SettingUp(name, busy, barrier) for name in machines]
    live = ClusterSession(cast(Any, None), cast(Any, [SimpleNamespace(data=one) for one in data]), cast(Any, agents))
    nodes = [PreparedNode(NodeFacts(index, "python", ranks=1, cores=1, address=""), None, "") for index in range(4)]
    said: list[str] = []
    world = SimpleNamespace(out=SimpleNamespace(say=said.append))
    run_setup(cast(Any, world), live, "project", tmp_path, ["make deps"] * 4, nodes, Silent())
    assert sorted(said) == [f"node{index}: set up" for index in range(4)]


@pytest.mark.parametrize(
    ("ephemeral", "index", "look"),
    [(True, 1, "with --keep it stays"), (False, 0, "gpuops ssh lab"), (False, 1, "gpuops ssh lab --node 1")],
)
def test_a_set_up_that_fails_says_which_and_where_to_look(
    ephemeral: bool, index: int, look: str, tmp_path: Path
) -> None:
    caught = failed_set_up(b"make: no rule\n", tmp_path, ephemeral, index)
    say = f"the set-up command `make deps` failed on node{index} with exit code 2: make: no rule"
    assert (caught.message, caught.hint) == (say, f"correct the command, or look at the node: {look}")


def test_of_versions_that_conflict_it_says_which(tmp_path: Path) -> None:
    said = b"""ERROR: Cannot install lightning==2.5.0 because these package versions have conflicting dependencies.

The conflict is caused by:
    lightning 2.5.0 depends on torch>=2.8
    The user requested (constraint) torch==2.6

To fix this you could try to:
1. loosen the range of package versions you've specified

ERROR: ResolutionImpossible: for help visit https://pip.pypa.io/en/latest/topics/dependency-resolution/
"""
    named = "these versions conflict: lightning 2.5.0 depends on torch>=2.8; The user requested (constraint) torch==2.6"
    assert failed_set_up(said, tmp_path).message.endswith(f"with exit code 2: {named}")
    cut_off = said[said.index(b"To fix") :]
    assert "exit code 2: ERROR: ResolutionImpossible" in failed_set_up(cut_off, tmp_path).message


def test_a_python_without_pip_is_named(tmp_path: Path) -> None:
    caught = failed_set_up(b"/usr/bin/python3: No module named pip\n", tmp_path)
    assert caught.message == "the Python of node0, python, has no pip, which the set-up command `make deps` needs"
    assert "--setup 'apt-get install -y python3-pip" in caught.hint


def failed_set_up(said: bytes, folder: Path, ephemeral: bool = True, index: int = 0) -> RunFailed:
    def items() -> Items:
        yield SetupOutput(said)
        return SetupResult(2, skipped=False)

    agent = SimpleNamespace(stream=lambda *_, **__: Stream(items()))
    row = SimpleNamespace(name="lab", ephemeral=ephemeral)
    live = ClusterSession(cast(Any, row), cast(Any, [SimpleNamespace(data={})] * 2), cast(Any, [agent] * 2))
    nodes = [PreparedNode(NodeFacts(index, "python", ranks=1, cores=1, address=""), None, "")]
    with pytest.raises(RunFailed) as caught:
        run_setup(cast(Any, None), live, "project", folder, ["make deps"], nodes, Silent())
    return caught.value


class Agent:
    """Notes where it is to meet the others; the head refuses so many times."""

    def __init__(self, refusals: int = 0, kind: str = "gang") -> None:
        self.asked: list[tuple[int, int]] = []
        self._refusals, self._kind = refusals, kind
        self._fresh = 21000

    def call(self, verb: str, **args: Any) -> dict[str, Any]:
        if verb == "port":
            self._fresh += 1
            return FreePort(self._fresh)
        if verb == "start":
            spec = args["spec"]
            self.asked.append((spec["master"]["port"], spec["gang"]["port"]))
            if len(self.asked) <= self._refusals:
                raise NodeRefused("no start", "start again", self._kind)
        return {}


def launched(refusals: int, times: int = 1, kind: str = "gang") -> list[Agent]:
    agents = [Agent(refusals, kind), Agent()]
    facts = [NodeFacts(index, "python", ranks=1, cores=1, address=f"10.0.0.{index}") for index in range(2)]
    row = SimpleNamespace(id=1, name="train-1", tree="project", facts=RunFacts(), request={})
    ledger = SimpleNamespace(set_run=lambda *_args, **_fields: None, run=lambda _id: row)
    world = SimpleNamespace(ledger=ledger, progress=Silent(), clock=Clock())
    prepared = Prepared(cast(Any, row), cast(Any, None), TRAIN, facts, (23456, 23457))
    live = ClusterSession(cast(Any, SimpleNamespace(name="c-1")), [], cast(Any, agents))
    try:
        for _ in range(times):
            launch(cast(Any, world), live, prepared)
    except NodeRefused:
        agents[0].asked.append((0, 0))
    return agents


def test_the_first_launch_takes_the_ports_that_were_probed_and_a_second_takes_others() -> None:
    assert [agent.asked for agent in launched(0, times=2)] == [[(23456, 23457), (21001, 21002)]] * 2


@pytest.mark.parametrize(
    ("refusals", "head", "member"),
    [
        (1, [(23456, 23457), (21001, 21002)], [(21001, 21002)]),
        (2, [(23456, 23457), (21001, 21002), (0, 0)], []),
    ],
)
def test_a_gang_port_taken_in_the_meantime_is_replaced_once(
    refusals: int, head: list[tuple[int, int]], member: list[tuple[int, int]]
) -> None:
    assert [agent.asked for agent in launched(refusals)] == [head, member]


def test_a_command_that_is_not_there_is_the_runs_failure_and_not_the_nodes() -> None:
    with pytest.raises(RunFailed, match=r"^no start$") as caught:
        launched(1, kind="cannot-start")
    assert (caught.value.hint, caught.value.exit_code) == ("start again", 1)


class QueuedOn:
    """A cluster with one node, whose conversation was cut; the n-th reconnection succeeds."""

    def __init__(self, reconnections: int) -> None:
        self.row = SimpleNamespace(id=1, name="lab")
        self.hellos: list[Any] = []
        self.reconnections = reconnections
        self.clients = [self]
        self.asked = 0

    def each(self, action: Any) -> list[Any]:
        return [action(0, self)]

    def call(self, _verb: str) -> Any:
        raise ConnectionLost("the connection to node0 ended")

    def reconnect(self, _index: int) -> Any:
        self.asked += 1
        if self.asked < self.reconnections:
            raise ConnectionLost("node0 does not answer")
        return SimpleNamespace(call=lambda _verb: SimpleNamespace(busy=""))


def queued(cluster: QueuedOn, monkeypatch: pytest.MonkeyPatch) -> Any:
    row = SimpleNamespace(id=7, name="train-7")
    ledger = SimpleNamespace(runs=lambda **_: [row], run=lambda _: row, resources=lambda _: [])
    out, signals = SimpleNamespace(say=print), Signals()
    world = SimpleNamespace(ledger=ledger, clock=FakeClock(), progress=Silent(), out=out, signals=signals)
    monkeypatch.setattr(turn, "readmit_this_computer", lambda *_: False)
    monkeypatch.setattr(turn, "explain_connection_loss", lambda _ctx, _row, error: error)
    return turn.wait_for_turn(cast(Any, world), cast(Any, cluster), cast(Any, row), queue=True)


@pytest.mark.parametrize("reconnections", [1, 5])
def test_a_run_that_waits_for_its_turn_outlasts_a_cut(reconnections: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = QueuedOn(reconnections)
    assert queued(cluster, monkeypatch).name == "train-7"
    assert cluster.asked == reconnections


def test_a_run_does_not_wait_for_ever_for_a_cluster_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConnectionLost, match="node0 does not answer"):
        queued(QueuedOn(10_000), monkeypatch)


def test_a_run_that_no_guard_can_look_after_is_not_started(world: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is noted as such: no later command takes it for one that goes on."""

    def fail(*_: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("gpuops.runs.prepare.add_virtual_nodes", lambda *_: None)
    world.services = replace(world.services, ensure_guard=fail)
    row = world.ledger.intend(provider="local", name="lab", folder=world.folder, ephemeral=True, token="t", request={},
                              boot_deadline=0.0, lease=Lease(), owner_process=world.me, now=0.0)  # fmt: skip
    live = ClusterSession(row, [], [], [], [])
    request = replace(TRAIN, kind="command", script=None, argv=["true"], mode="run", nodes=1)
    with pytest.raises(LocalDisk, match="the guard cannot be started: Resource temporarily unavailable"):
        prepare.prepare(world, Settings(), live, request, Sending(), Silent())
    (run,) = world.ledger.runs()
    assert (run.state, run.owner_process) == ("home", None)


def test_a_run_has_its_folder_before_anything_else_and_leaves_none_that_it_did_not_use(
    world: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command with another ledger may give a name in the same project at the same time."""
    (world.folder / "runs/true-1").mkdir(parents=True)
    seen: list[bool] = []

    def fail(*_: object) -> None:
        seen.append((world.folder / "runs/true-2").is_dir())
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("gpuops.runs.prepare.add_virtual_nodes", lambda *_: None)
    world.services = replace(world.services, ensure_guard=fail)
    row = world.ledger.intend(provider="local", name="lab", folder=world.folder, ephemeral=True, token="t", request={},
                              boot_deadline=0.0, lease=Lease(), owner_process=world.me, now=0.0)  # fmt: skip
    request = replace(TRAIN, kind="command", script=None, argv=["true"], mode="run", nodes=1)
    with pytest.raises(LocalDisk):
        prepare.prepare(world, Settings(), ClusterSession(row, [], [], [], []), request, Sending(), Silent())
    assert [run.name for run in world.ledger.runs()] == ["true-2"]
    assert seen == [True]
    assert [path.name for path in (world.folder / "runs").iterdir()] == ["true-1"]


@pytest.mark.parametrize(
    ("request_", "beside"),
    [
        (TRAIN, ""),
        (RunRequest(kind="command", mode="run", nodes=0, gpus=None, argv=["ls", "a b"]),
         "; beside it: gpuops ssh lab -- ls 'a b'"),
        (RunRequest(kind="command", mode="run", nodes=0, gpus=None, argv=["nvidia-smi"], all_nodes=True),
         "; beside it: gpuops ssh lab --all-nodes -- nvidia-smi"),
    ],
)  # fmt: skip
def test_what_may_run_beside_a_run_is_named(monkeypatch: pytest.MonkeyPatch, request_: RunRequest, beside: str) -> None:
    monkeypatch.setattr(turn, "_find_earlier_run", lambda *_: turn.EarlierRun("digits-3", "gpuops stop digits-3"))
    session = cast("Any", SimpleNamespace(row=SimpleNamespace(name="lab")))
    with pytest.raises(UsageError) as caught:
        turn.refuse_second_run(cast("Any", None), session, None, request_)
    assert caught.value.hint == f"wait for it with --queue, or end it: gpuops stop digits-3{beside}"


class EndedFollower:
    """Of a run whose nodes all say how it ended, or not all of them (`ended`)."""

    def __init__(self, ended: bool) -> None:
        self.ended = ended
        self.reports: dict[int, Any] = {}

    def start(self) -> None:
        pass

    def wait(self, _timeout: float) -> bool:
        return self.ended

    def quit(self) -> None:
        pass


@pytest.mark.parametrize(
    ("ended", "missing", "said"),
    [
        (True, "", "r-2: the command ended well"),
        (
            True,
            "node1 is gone",
            "note: results of r-2 are not all home, and this run may overwrite them: node1 is gone",
        ),
        (False, "", "overwrite them: not every node says how r-2 ended"),
    ],
)
def test_what_an_earlier_run_left_comes_home_before_it_is_overwritten(
    world: Context, monkeypatch: pytest.MonkeyPatch, ended: bool, missing: str, said: str
) -> None:
    cluster = a_cluster(world, created=0.0)
    home, left, new = (a_run(world, cluster, created=0.0, owner_process=DEAD) for _ in range(3))
    world.ledger.set_run(home.id, state=RunState.HOME)
    world.ledger.set_run(left.id, state=RunState.ENDED)
    finished: list[str] = []

    def bring(_world: Context, run: RunRow, *_: object) -> Any:
        finished.append(run.name)
        return SimpleNamespace(verdict=SimpleNamespace(say="the command ended well"), missing=missing)

    monkeypatch.setattr(prepare, "finish", bring)
    monkeypatch.setattr(prepare, "make_follower", lambda *_: EndedFollower(ended))
    world.out = Output(out=io.StringIO(), err=io.StringIO())
    prepare.finish_earlier_runs(world, ClusterSession(cluster, []), new, Silent())
    assert finished == (["r-2"] if ended else [])
    assert said in cast(io.StringIO, world.out.err).getvalue()
    assert world.ledger.run(left.id).owner_process is None
