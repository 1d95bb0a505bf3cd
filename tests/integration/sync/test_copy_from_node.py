"""What one node has goes to the others from node to node, and nothing is lost on the way: by real processes."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from gpuops.agent import wire_format
from gpuops.agent.files import copies as copies_module
from gpuops.agent.files import push_steps
from gpuops.agent.files.copies import copies
from gpuops.agent.files.folder import TreeFolder
from gpuops.agent.files.incoming import Incoming
from gpuops.agent.files.output_files import sums, walk_matching
from gpuops.agent.files.push_decision import Entry
from gpuops.agent.node import Refusal
from gpuops.core.errors import ConnectionLost, MalformedAnswer, NodeRefused, UsageError
from gpuops.core.reporting import Silent
from gpuops.sync import push_chain
from gpuops.sync.copy_from_node import Copies, copy_to, list_copies
from gpuops.sync.upload import PushReport
from tests.fakes.inprocess import VERBS
from tests.integration.sync.chain_scene import Member, Scene, quick

BIG_BYTES = 12_000_000
PLACES = [1, pytest.param(3, marks=pytest.mark.proof)]
"""In the chain: one that hands on, and the last, which does less: what is shown of the first holds for it."""


class CopyScene(Scene):
    """A pushed project on four nodes, and data that node0 made."""

    def __init__(self, project: Path, tmp_path: Path) -> None:
        super().__init__(project, tmp_path)
        (project / "big.bin").unlink()
        self.push()
        self.data = self.nodes[0].tree / "data"
        (self.data / "deep").mkdir(parents=True)
        (self.data / "big.bin").write_bytes(os.urandom(BIG_BYTES))
        for number in range(20):
            (self.data / "deep" / f"f{number}").write_bytes(os.urandom(5_000))

    def list(self, *paths: str) -> Copies:
        origin: Any = self.nodes[0]
        return list_copies(origin, "project", paths)

    def copy(self, *paths: str, overwrite: bool = False, progress: Any = None) -> list[PushReport]:
        targets: Any = self.nodes[1:]
        return copy_to(self.list(*paths), targets, overwrite=overwrite, progress=progress or self.words)

    def data_of(self, node: Member) -> dict[bytes, tuple[bytes, int]]:
        folder = os.fsencode(node.tree / "data")
        files = [os.path.join(above, name) for above, _, names in os.walk(folder) for name in names]
        return {path[len(folder) :]: (Path(os.fsdecode(path)).read_bytes(), os.stat(path).st_mode) for path in files}

    def is_copied(self, *nodes: int) -> bool:
        wanted = self.data_of(self.nodes[0])
        return all(self.data_of(self.nodes[number]) == wanted for number in nodes or (1, 2, 3))


@pytest.fixture
def scene(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CopyScene:
    quick(monkeypatch)
    return CopyScene(project, tmp_path)


def test_everything_that_no_push_wrote_goes_to_the_others(scene: CopyScene) -> None:
    (scene.data / "tool").write_text("#!/bin/sh\n")
    (scene.data / "tool").chmod(0o755)
    Path(os.fsdecode(os.fsencode(scene.data) + b"/n\xff\nx")).write_text("odd")
    (scene.data / "empty").touch()
    before = scene.left_home
    reports = scene.copy()
    assert scene.is_copied()
    assert {report.way for report in reports} == {"from node0"}
    assert {report.files_sent for report in reports} == {24}
    assert scene.left_home - before < 100_000
    assert [report.files_sent for report in scene.copy()] == [0, 0, 0]


def test_a_part_of_it_leaves_the_rest_where_it_is(scene: CopyScene) -> None:
    scene.copy("data/deep")
    assert not (scene.nodes[1].tree / "data" / "big.bin").exists()
    scene.copy("data/big.bin")
    assert scene.is_copied()
    (scene.data / "deep" / "f0").write_text("newer")
    scene.copy("data/deep/f0")
    assert scene.is_copied()


def test_a_push_from_here_leaves_it_there(scene: CopyScene) -> None:
    scene.copy()
    (scene.here / "many" / "f1").unlink()
    assert [report.removed for report in scene.push()] == [1] * 4
    assert scene.is_copied()


def test_what_was_changed_on_a_target_is_not_overwritten(scene: CopyScene) -> None:
    scene.copy()
    theirs = scene.nodes[2].tree / "data" / "deep" / "f3"
    theirs.write_text("by hand, on node2")
    (scene.data / "deep" / "f3").write_text("anew, on node0")
    with pytest.raises(UsageError, match="data/deep/f3 was edited on node2"):
        scene.copy()
    assert theirs.read_text() == "by hand, on node2"
    scene.copy(overwrite=True)
    assert scene.is_copied()


def test_equal_files_of_a_target_are_not_sent(scene: CopyScene) -> None:
    other = scene.nodes[3].tree / "data"
    other.mkdir()
    (other / "big.bin").write_bytes((scene.data / "big.bin").read_bytes())
    reports = scene.copy("data/big.bin")
    assert [report.files_sent for report in reports] == [1, 1, 0]
    assert scene.is_copied() is False
    assert (other / "big.bin").read_bytes() == (scene.data / "big.bin").read_bytes()


def test_all_files_that_a_target_has_as_well_are_hashed_at_one_request(scene: CopyScene) -> None:
    other = scene.nodes[3].tree / "data" / "deep"
    other.mkdir(parents=True)
    for file in (scene.data / "deep").iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    assert [report.files_sent for report in scene.copy("data/deep")] == [20, 20, 0]
    assert scene.nodes[0].asked.count("sums") == 1


def test_a_node_that_gives_sums_without_end_is_not_believed(scene: CopyScene, monkeypatch: pytest.MonkeyPatch) -> None:
    other = scene.nodes[3].tree / "data" / "deep"
    other.mkdir(parents=True)
    (other / "f0").write_bytes(bytes(5_000))
    monkeypatch.setitem(VERBS, "sums", lambda node, args, emit: sums(node, {**args, "paths": args["paths"] * 2}, emit))
    with pytest.raises(MalformedAnswer, match="what was not asked for, or twice"):
        scene.copy("data/deep/f0")


def test_files_of_the_project_come_from_here_alone(scene: CopyScene) -> None:
    (scene.nodes[0].tree / "many" / "f0").write_text("edited there")
    found = scene.list()
    assert found.edited == ["many/f0"]
    assert all(file.path.startswith("data/") for file in found.files)
    with pytest.raises(UsageError, match="node0 has nothing at many/f1 that is not pushed"):
        scene.list("many/f1")


def test_a_file_that_changes_meanwhile_is_told(scene: CopyScene) -> None:
    found = scene.list()
    (scene.data / "big.bin").write_bytes(b"shorter")
    targets: Any = scene.nodes[1:]
    with pytest.raises(NodeRefused, match=r"node0: 'data/big.bin' changes while it is copied"):
        copy_to(found, targets, overwrite=False, progress=Silent())
    assert not (scene.nodes[1].tree / "data").exists()
    scene.copy()
    assert scene.is_copied()


def test_a_file_that_goes_while_it_is_listed_is_left_out(scene: CopyScene, monkeypatch: pytest.MonkeyPatch) -> None:
    def walk(*args: Any, **more: Any) -> Any:
        for path, stamp in walk_matching(*args, **more):
            if path == "data/deep/f7":
                (scene.data / "deep" / "f7").unlink()
            yield path, stamp

    monkeypatch.setattr(copies_module, "walk_matching", walk)
    assert len(scene.list("data/deep").files) == 19


def test_a_file_that_cannot_be_read_is_told_as_such(scene: CopyScene, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    [file] = scene.list("data/big.bin").files
    listed = copies_module.Listed(0, file.path, file.size, file.mtime_ns)
    folder = TreeFolder(str(scene.nodes[0].tree))
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(Refusal, match=r"'data/big\.bin' cannot be read"):
        list(copies_module.read_stream(folder, [listed]))


class Event(Silent):
    """Something happens once so much has gone."""

    def __init__(self, at: int, action: Any) -> None:
        self.at, self.action = at, action

    def advance(self, done: int, total: int, label: str = "") -> None:  # noqa: ARG002
        if self.at and done >= self.at:
            self.at = 0
            self.action()


@pytest.mark.parametrize("place", PLACES)
def test_a_program_that_dies_on_the_way_is_begun_again(scene: CopyScene, place: int) -> None:
    (scene.data / "big.bin").write_bytes(os.urandom(4 * BIG_BYTES))
    scene.copy(progress=Event(BIG_BYTES, lambda: scene.nodes[place].signal(signal.SIGKILL)))
    assert scene.is_copied()


@pytest.mark.parametrize("place", PLACES)
def test_a_node_whose_programs_all_die_holds_up_no_other(scene: CopyScene, place: int) -> None:
    (scene.data / "big.bin").write_bytes(os.urandom(4 * BIG_BYTES))
    scene.nodes[place].prelude = """
import os, threading
from gpuops.agent.files import incoming
write = incoming.Shelf.keep
def dies(self, path, *rest):
    return os._exit(9) if path == "data/big.bin" else write(self, path, *rest)
incoming.Shelf.keep = dies
"""
    with pytest.raises(ConnectionLost, match=f"node{place} did not get what node0 has: .*2 other nodes got everything"):
        scene.copy()
    assert scene.is_copied(*{1, 2, 3} - {place})
    scene.nodes[place].prelude = ""
    scene.copy()
    assert scene.is_copied()


def test_a_program_of_the_origin_that_dies_is_begun_again(scene: CopyScene) -> None:
    (scene.data / "big.bin").write_bytes(os.urandom(4 * BIG_BYTES))
    scene.copy(progress=Event(BIG_BYTES, lambda: scene.nodes[0].signal(signal.SIGKILL)))
    assert scene.is_copied()
    assert len(scene.nodes[0].programs) == 2 + 1, "one for the project's push, two for the copy"


def test_a_node_that_the_origin_does_not_reach_is_told(scene: CopyScene) -> None:
    scene.nodes[1].prelude = """
from gpuops.agent.peers import push_relay
places = [{"address": "203.0.113.7", "kind": "direct"}]
push_relay.addresses = lambda *_: {"machine": "elsewhere", "addresses": places}
"""
    with pytest.raises(ConnectionLost, match=r"node0 does not reach node1 .*2 other nodes got everything"):
        scene.copy()
    assert scene.is_copied(2, 3)


LYING = """
from gpuops.agent.peers import push_relay
class Lies(push_relay.Onward):
    count = 0
    def put(self, data):
        self.count += len(data)
        super().put(data[:-1] + bytes([data[-1] ^ 1]) if 5e6 < self.count < 6e6 else data)
push_relay.Onward = Lies
"""


def test_what_a_node_alters_on_the_way_comes_from_the_origin_itself(scene: CopyScene) -> None:
    scene.nodes[1].prelude = LYING
    scene.copy()
    assert scene.is_copied()


def test_an_origin_that_alters_what_it_has_vouched_for_harms_nobody(scene: CopyScene) -> None:
    scene.nodes[0].prelude = LYING
    with pytest.raises(ConnectionLost, match="what came through node0 was altered on the way"):
        scene.copy()
    assert not (scene.nodes[1].tree / "data" / "big.bin").exists()
    scene.nodes[0].prelude = ""
    scene.copy()
    assert scene.is_copied()


FLOOD = """
from gpuops.agent.peers import push_relay
def tell(self, sum_here):
    for offset in range(1000):
        self._client.say(sum=[offset + 1, "0" * 64])
push_relay.Source._tell = tell
"""
STANDS_STILL = """
import time
from gpuops.agent.peers import push_relay
push_relay.Source.put = lambda self, data: time.sleep(600)
"""
BOASTS = """
from gpuops.agent.peers import push_relay
push_relay.Source.received = 1 << 50
"""


@pytest.mark.parametrize(
    ("prelude", "why"),
    [
        (FLOOD, "sends sums of no stream"),
        (STANDS_STILL, "has sent nothing"),
        (BOASTS, "sends more than it has told of"),
    ],
)
def test_an_origin_that_never_comes_to_an_end_is_given_up(
    scene: CopyScene, monkeypatch: pytest.MonkeyPatch, prelude: str, why: str
) -> None:
    monkeypatch.setattr(push_chain, "SILENCE_S", 5.0)
    targets: Any = scene.nodes[1:2]
    scene.nodes[0].prelude = prelude
    with pytest.raises(ConnectionLost, match=f"node1 did not get what node0 has: node0 {why}"):
        copy_to(scene.list(), targets, overwrite=False, progress=Silent())


def test_a_stream_that_ends_where_it_is_summed(scene: CopyScene) -> None:
    heads = len(wire_format.head("0", 10_000_000)) + len(wire_format.END)
    (scene.data / "big.bin").write_bytes(bytes(2 * wire_format.SUM_INTERVAL_BYTES - heads + 1))
    scene.copy("data/big.bin")
    assert (scene.nodes[3].tree / "data" / "big.bin").exists()


def test_no_node_replaces_what_was_pushed_to_another(scene: CopyScene) -> None:
    found = scene.list()
    lying = dataclasses.replace(found, files=[dataclasses.replace(found.files[0], path="many/f1")])
    targets: Any = scene.nodes[1:]
    with pytest.raises(NodeRefused, match="'many/f1' was pushed here"):
        copy_to(lying, targets, overwrite=True, progress=Silent())


def test_a_node_that_was_asked_for_its_data_puts_no_program_on_the_others(
    scene: CopyScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lie(node: Any, args: dict[str, Any], emit: Any) -> dict[str, Any]:
        answer = copies(node, args, emit)
        return {**answer, "files": [*answer["files"], ["torch.py", 9, 1_700_000_000_000_000_001, 0o644]]}

    monkeypatch.setitem(VERBS, "copies", lie)
    with pytest.raises(MalformedAnswer, match="it names files that were not asked for"):
        scene.list("data")


def test_a_path_is_understood_as_a_shell_writes_it(scene: CopyScene) -> None:
    assert len(scene.list("./data//deep/").files) == 20
    assert len(scene.list(".").files) == len(scene.list().files) == 21
    with pytest.raises(UsageError, match="has nothing at"):
        scene.list("")


def test_what_a_node_has_passed_on_never_stands_in_for_a_file_from_here(scene: CopyScene) -> None:
    ours, target = scene.here / "module.py", scene.nodes[1]
    ours.write_text("print('ours')")
    status = ours.stat()
    entry = Entry(status.st_size, status.st_mtime_ns, status.st_mode & 0o777, None)
    plan = target.call("plan", tree="project", files=[["module.py", *entry]], adds=True)
    Incoming(target.node, "project", plan.push).write("module.py", entry, [b"print('evil')"])
    scene.push()
    assert {(node.tree / "module.py").read_text() for node in scene.nodes} == {"print('ours')"}


def test_an_older_agent_that_would_remove_all_else_is_refused(
    scene: CopyScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(node: Any, args: dict[str, Any], emit: Any) -> dict[str, Any]:
        answer = push_steps.plan(node, {**args, "adds": False}, emit)
        return {name: value for name, value in answer.items() if name != "adds"}

    monkeypatch.setitem(VERBS, "plan", plan)
    with pytest.raises(NodeRefused, match="was made by an older gpuops"):
        scene.copy()
    assert (scene.nodes[1].tree / "many" / "f1").exists()


def test_a_client_that_goes_leaves_no_program_behind(scene: CopyScene) -> None:
    (scene.data / "big.bin").write_bytes(os.urandom(4 * BIG_BYTES))
    began = threading.Event()

    def leave() -> None:
        began.set()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scene.copy(progress=Event(BIG_BYTES, leave))
    assert began.is_set()
    for node in scene.nodes:
        assert node.programs[-1].wait(30) is not None
