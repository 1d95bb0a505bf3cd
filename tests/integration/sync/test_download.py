"""Results on their way home: real files, the agent's own verbs and its real `send` as a process.

The client here is a stand-in only for the wire: verbs are called in this process, `send` is started
as a program, and `tail` serves real files and can be cut at a chosen byte.
"""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuops.agent.files import output_files
from gpuops.agent.node import Node, Refusal, write_json
from gpuops.core.errors import ConnectionLost, GpuopsError, LocalDisk, MalformedAnswer, NodeError, NodeRefused
from gpuops.core.safe_folder import DISK_RESERVE_BYTES, SafeFolder
from gpuops.sync import download_plan as outplan
from gpuops.sync.download import DEFAULT_OUTS, FetchReport, fetch
from gpuops.sync.log_mirror import mirror
from gpuops.sync.merged_outputs import MEMORY_FILE, OutFolder
from gpuops.sync.merged_outputs_record import Arrival, Memory, choose_places
from gpuops.sync.run_folder import RunHome
from gpuops.sync.run_record import RunRecord
from gpuops.transport.connection import ProcessChannel
from gpuops.transport.rpc import Items, Stream
from tests.fakes.inprocess import heard

RUN = "digits-1"
A_PT_NEW = ("out/a.pt.new lies beside a file that was changed here",)
REPOSITORY = Path(__file__).parents[3]
SEND = "import sys, gpuops.agent.__main__ as agent; sys.exit(agent.main(sys.argv))"


class NodeHere:
    """A node's folder in tmp_path and the client that talks to it."""

    def __init__(self, folder: Path, index: int) -> None:
        self.label = f"node{index}"
        self.node = Node(str(folder / f"n{index}"))
        self.tree = Path(self.node.tree("project"))
        self.run = Path(self.node.run(RUN))
        self.tree.mkdir(parents=True)
        (self.run / "ranks").mkdir(parents=True)
        write_json(str(self.run / "spec.json"), {"tree": "project"})
        write_json(str(self.run / "inventory.json"), {})
        self.sent: list[list[str]] = []
        self.before: dict[str, Callable[[], None]] = {}
        """Something that happens on the node when a verb (or `send`) is asked for, once."""
        self.cut_after: int | None = None
        self.result: dict[str, Any] | None = None

    def put(self, path: str, data: bytes, mtime_ns: int | None = None) -> Path:
        file = self.tree / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        if mtime_ns is not None:
            os.utime(file, ns=(mtime_ns, mtime_ns))
        return file

    def call(self, verb: str, timeout: float = 60.0, **args: Any) -> Any:
        stream = self.stream(verb, timeout, **args)
        for _ in stream:
            pass
        return stream.answer

    def stream(self, verb: str, timeout: float | None = None, within: float = 0.0, **args: Any) -> Stream:
        assert (within > 0) is (verb == "sums"), "what may say for long that it is busy has an end"
        return Stream(self._items(verb, timeout, args))

    def _items(self, verb: str, timeout: float | None, args: dict[str, Any]) -> Items:
        self.before.pop(verb, lambda: None)()
        if verb == "tail":
            assert timeout
            assert (args["run"], args["follow"]) == (RUN, True)
            for piece in self._tail(args["offsets"]):
                yield heard(self.label, verb, "item", piece)
            return heard(self.label, verb, "ok", {"result": self.result})
        items: list[dict[str, Any]] = []
        try:
            answer: dict[str, Any] = {"outs": output_files.outs, "sums": output_files.sums}[verb](
                self.node, args, items.append
            )
        except Refusal as refusal:
            raise NodeRefused(refusal.say, refusal.hint, refusal.kind) from None
        for item in items:
            yield heard(self.label, verb, "item", item)
        return heard(self.label, verb, "ok", answer)

    def _tail(self, offsets: dict[str, int]) -> Iterator[dict[str, Any]]:
        """Streams in slices of odd sizes, from the client's offsets, until the cut."""
        left = self.cut_after
        for stream in sorted(path.name for path in (self.run / "ranks").iterdir()):
            data = (self.run / "ranks" / stream).read_bytes()
            offset = offsets.get(stream, 0)
            while offset < len(data):
                piece = data[offset : offset + 37]
                if left is not None and len(piece) > left:
                    raise ConnectionLost(f"the connection to {self.label} ended")
                left = None if left is None else left - len(piece)
                yield {"s": stream, "o": offset, "b64": base64.b64encode(piece).decode()}
                offset += len(piece)

    def bulk(self, mode: str, *arguments: str) -> ProcessChannel:
        self.before.pop(mode, lambda: None)()
        assert mode == "send"
        channel = ProcessChannel(self.send_argv(*arguments))
        wrapped = channel.stdin.write
        channel.stdin.write = lambda data: self._note(data, wrapped)  # type: ignore[method-assign]
        return channel

    def send_argv(self, *arguments: str) -> list[str]:
        return [
            "env",
            f"PYTHONPATH={REPOSITORY}",
            sys.executable,
            "-c",
            SEND,
            "send",
            "--node",
            self.node.dir,
            *arguments,
        ]

    def _note(self, data: Any, write: Callable[[Any], int]) -> int:
        self.sent.append(json.loads(bytes(data)))
        return write(data)


class Words:
    """A Progress that remembers."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.done = 0

    def phase(self, text: str) -> None:
        self.phases.append(text)

    def advance(self, done_bytes: int, total_bytes: int, label: str) -> None:
        assert 0 < done_bytes <= total_bytes
        assert label
        self.done = done_bytes

    def say(self, text: str) -> None:
        assert text

    def close(self) -> None:
        pass


class Scene:
    """Two nodes and a home."""

    def __init__(self, tmp_path: Path) -> None:
        self.nodes = [NodeHere(tmp_path, 0), NodeHere(tmp_path, 1)]
        self.home = RunHome(tmp_path / "laptop" / "runs" / RUN)
        self.words = Words()

    def fetch(self, *, final: bool = False, patterns: tuple[str, ...] = DEFAULT_OUTS) -> FetchReport:
        clients: Any = dict(enumerate(self.nodes))
        return fetch(clients, RUN, "project", patterns, self.home, final=final, progress=self.words)

    def out(self) -> dict[str, bytes]:
        """Every file in out/ but our memory, and incoming/ may not be left."""
        assert not self.home.incoming.exists()
        files = [path for path in self.home.out.rglob("*") if path.is_file() and path.name != MEMORY_FILE]
        return {path.relative_to(self.home.out).as_posix(): path.read_bytes() for path in files}


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


# --- the folder ------------------------------------------------------------------------------


def test_home_is_kept_from_git_and_a_users_gitignore_stays(tmp_path: Path) -> None:
    home = RunHome(tmp_path / "runs" / RUN)
    home.create()
    assert (tmp_path / "runs/.gitignore").read_text() == "*\n"
    (tmp_path / "runs/.gitignore").write_text("mine\n")
    home.create()
    assert (tmp_path / "runs/.gitignore").read_text() == "mine\n"
    assert home.path == tmp_path / "runs" / RUN


def test_the_record_is_replaced_whole(tmp_path: Path) -> None:
    home = RunHome(tmp_path / "runs" / RUN)
    home.write_record(RunRecord(run=RUN, kept="x" * 100_000))
    home.write_record(RunRecord(run=RUN))
    assert home.read_record() == RunRecord(run=RUN)
    assert [path.name for path in home.path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("stream", ["../../.bashrc", "/etc/passwd", "", "a/b", "..", ".hidden", "rank0.out\n"])
def test_a_stream_cannot_name_a_file_elsewhere(tmp_path: Path, stream: str) -> None:
    with pytest.raises(NodeError, match="node0 sent a log named"):
        RunHome(tmp_path / "runs" / RUN).log(0, stream)


# --- logs ------------------------------------------------------------------------------------


def write_logs(node: NodeHere, size: int) -> dict[str, bytes]:
    streams = {name: random.Random(name).randbytes(size) for name in ("rank0.out", "rank0.err", "rank1.out")}
    streams["events.jsonl"] = b""
    for name, data in streams.items():
        (node.run / "ranks" / name).write_bytes(data)
    return streams


def home_logs(home: RunHome, node: int) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (home.path / "logs" / f"node{node}").iterdir()}


def ignore(*_: Any) -> None:
    pass


def follow(node: Any, home: RunHome, on_bytes: Any = ignore) -> dict[str, Any] | None:
    return mirror(node, RUN, 1, home, True, on_bytes)


def test_a_mirror_is_the_same_bytes_and_gives_the_result(scene: Scene) -> None:
    node = scene.nodes[1]
    logs = write_logs(node, 1000)
    del logs["events.jsonl"]  # not a byte was written to it
    node.result = {"outcome": "done", "reason": {"kind": "launcher"}, "ranks": []}
    heard: dict[str, bytes] = {}

    def on_bytes(index: int, stream: str, offset: int, data: bytes) -> None:
        assert index == 1
        assert offset == len(heard.get(stream, b""))
        heard[stream] = heard.get(stream, b"") + data

    assert follow(node, scene.home, on_bytes) == node.result
    assert home_logs(scene.home, 1) == heard == logs


def test_a_run_that_lives_has_no_result(scene: Scene) -> None:
    assert follow(scene.nodes[1], scene.home) is None


def test_cut_at_any_byte_and_resumed_nothing_is_lost_or_doubled(scene: Scene) -> None:
    node = scene.nodes[1]
    logs = write_logs(node, 2000)
    del logs["events.jsonl"]
    heard: list[tuple[str, int, int]] = []
    chance, cuts = random.Random(7), 0
    while True:
        node.cut_after = chance.randrange(400)
        try:
            follow(node, scene.home, lambda _n, s, o, d: heard.append((s, o, o + len(d))))
            break
        except ConnectionLost:
            cuts += 1
    assert cuts > 10
    assert home_logs(scene.home, 1) == logs
    for stream in logs:
        spans = [(start, end) for name, start, end in heard if name == stream]
        assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])]


def test_mirrors_at_once_write_the_same_file(scene: Scene) -> None:
    node = scene.nodes[1]
    logs = write_logs(node, 20_000)
    del logs["events.jsonl"]
    errors: list[BaseException] = []

    def one(seed: int) -> None:
        mine, chance = NodeHereAgain(node), random.Random(seed)
        for _ in range(5000):
            mine.cut_after = chance.randrange(3000)
            try:
                follow(mine, scene.home)
                return
            except ConnectionLost:
                pass
            except BaseException as error:
                errors.append(error)
                return

    threads = [threading.Thread(target=one, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert errors == []
    assert home_logs(scene.home, 1) == logs


class NodeHereAgain(NodeHere):
    """A second client of the same node."""

    def __init__(self, other: NodeHere) -> None:
        self.__dict__.update(other.__dict__)


def test_a_log_that_became_shorter_at_home_gets_no_hole(scene: Scene) -> None:
    node = scene.nodes[1]
    logs = write_logs(node, 1000)
    log = scene.home.log(1, "rank0.out")

    def truncate(_node: int, stream: str, offset: int, _data: bytes) -> None:
        if stream == "rank0.out" and offset == 370:
            os.truncate(log, 5)

    with pytest.raises(ConnectionLost, match=r"rank0\.out of node1 became shorter"):
        follow(node, scene.home, truncate)
    follow(node, scene.home)
    assert log.read_bytes() == logs["rank0.out"]


# --- what the run made -----------------------------------------------------------------------


def test_new_files_come_home_with_their_time_and_only_once(scene: Scene) -> None:
    scene.nodes[0].put("snapshot.pt", b"epoch 5", mtime_ns=1_700_000_000_123_456_789)
    scene.nodes[1].put("deep/checkpoints/note.txt", b"n")
    scene.nodes[1].put("train.py", b"not a result")

    report = scene.fetch()

    assert report == FetchReport(files=2, bytes=8, conflicts=())
    assert scene.out() == {"snapshot.pt": b"epoch 5", "deep/checkpoints/note.txt": b"n"}
    assert (scene.home.out / "snapshot.pt").stat().st_mtime_ns == 1_700_000_000_123_456_789
    assert scene.words.done == 8
    assert scene.fetch() == FetchReport(0, 0, ())


def test_a_changed_file_replaces_its_old_version(scene: Scene) -> None:
    scene.nodes[0].put("snapshot.pt", b"epoch 5")
    scene.fetch()
    scene.nodes[0].put("snapshot.pt", b"epoch 6", mtime_ns=5)
    assert scene.fetch().files == 1
    assert scene.out() == {"snapshot.pt": b"epoch 6"}


def test_names_come_home_byte_for_byte(scene: Scene) -> None:
    names = [b"sp ace.pt", b"quote'\".pt", b"new\nline.pt", "ü.pt".encode(), b"bad\xff.pt", b"$(x)`y`.pt", b"-rf.pt"]
    for name in names:
        Path(os.fsdecode(os.path.join(os.fsencode(scene.nodes[0].tree), name))).write_bytes(name)
    scene.fetch(final=True)
    assert {os.fsencode(name): data for name, data in scene.out().items()} == {name: name for name in names}
    assert scene.fetch(final=True).files == 0


def test_what_links_lead_to_comes_home_as_files(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch/model.bin").write_bytes(b"big")
    (scene.nodes[0].tree / "outputs").symlink_to(tmp_path / "scratch")
    scene.nodes[0].put("step-9.pt", b"nine")
    (scene.nodes[0].tree / "last.pt").symlink_to("step-9.pt")
    scene.fetch(final=True)
    assert scene.out() == {"outputs/model.bin": b"big", "step-9.pt": b"nine", "last.pt": b"nine"}
    assert not (scene.home.out / "last.pt").is_symlink()


def test_equal_files_of_several_nodes_are_one_and_travel_once(scene: Scene) -> None:
    for node in scene.nodes:
        node.put("snapshot.pt", b"same bytes")
    assert scene.fetch(final=True).bytes == len(b"same bytes")
    assert scene.out() == {"snapshot.pt": b"same bytes"}
    assert (scene.nodes[0].sent, scene.nodes[1].sent) == ([["snapshot.pt"]], [])


def test_a_later_equal_file_does_not_travel_either(scene: Scene) -> None:
    scene.nodes[0].put("snapshot.pt", b"same bytes")
    scene.fetch()
    scene.nodes[1].put("snapshot.pt", b"same bytes")
    assert scene.fetch() == FetchReport(0, 0, ())
    assert scene.fetch(final=True) == FetchReport(0, 0, ())
    assert scene.nodes[1].sent == []


def test_other_bytes_on_a_higher_node_lie_in_its_folder(scene: Scene) -> None:
    scene.nodes[0].put("log/a.pt", b"zero!")
    scene.nodes[1].put("log/a.pt", b"one!!")
    scene.fetch(final=True)
    assert scene.out() == {"log/a.pt": b"zero!", "node1/log/a.pt": b"one!!"}


def test_node0_takes_the_place_when_it_comes_later(scene: Scene) -> None:
    scene.nodes[1].put("a.pt", b"one")
    scene.fetch()
    assert scene.out() == {"a.pt": b"one"}
    scene.nodes[0].put("a.pt", b"zero")
    scene.fetch()
    assert scene.out() == {"a.pt": b"zero", "node1/a.pt": b"one"}


def test_nodes_part_and_meet_again(scene: Scene) -> None:
    for node in scene.nodes:
        node.put("a.pt", b"epoch 1", mtime_ns=1)
    scene.fetch()
    scene.nodes[0].put("a.pt", b"epoch 2", mtime_ns=2)
    scene.fetch()
    assert scene.out() == {"a.pt": b"epoch 2", "node1/a.pt": b"epoch 1"}
    scene.nodes[1].put("a.pt", b"epoch 2", mtime_ns=3)
    scene.fetch()
    assert scene.out() == {"a.pt": b"epoch 2"}
    assert not (scene.home.out / "node1").exists()
    assert scene.fetch(final=True).files == 0


def test_a_run_that_makes_a_folder_called_node1_loses_nothing(scene: Scene) -> None:
    scene.nodes[0].put("a.pt", b"zero")
    scene.nodes[0].put("node1/a.pt", b"zero's own")
    scene.nodes[1].put("a.pt", b"one")
    scene.fetch()
    assert sorted(scene.out().values()) == [b"one", b"zero", b"zero's own"]
    assert scene.fetch(final=True).files == 0


def test_a_file_where_another_node_has_a_folder(scene: Scene) -> None:
    scene.nodes[0].put("a.pt", b"file")
    scene.nodes[1].put("a.pt/shard.bin", b"in a folder")
    scene.fetch(final=True)
    assert scene.out() == {"a.pt": b"file", "node1/a.pt/shard.bin": b"in a folder"}


def test_a_file_that_changes_while_it_travels_stays_away_until_it_rests(scene: Scene) -> None:
    scene.nodes[0].put("snapshot.pt", b"epoch 5", mtime_ns=1)
    scene.nodes[0].put("steady.pt", b"steady")
    scene.fetch()
    scene.nodes[0].put("snapshot.pt", b"epoch 6, half", mtime_ns=2)
    scene.nodes[0].put("steady.pt", b"steady 2")
    scene.nodes[0].before["send"] = lambda: scene.nodes[0].put("snapshot.pt", b"epoch 6, more", mtime_ns=3) and None

    scene.fetch()

    assert scene.out() == {"snapshot.pt": b"epoch 5", "steady.pt": b"steady 2"}
    scene.fetch()
    assert scene.out() == {"snapshot.pt": b"epoch 6, more", "steady.pt": b"steady 2"}


def test_a_file_just_opened_for_writing_does_not_replace_a_good_one(scene: Scene) -> None:
    scene.nodes[0].put("snapshot.pt", b"epoch 5")
    scene.fetch()
    scene.nodes[0].put("snapshot.pt", b"")
    scene.fetch()
    assert scene.out() == {"snapshot.pt": b"epoch 5"}
    scene.fetch(final=True)
    assert scene.out() == {"snapshot.pt": b""}


def test_a_file_that_vanishes_on_the_way_is_no_error(scene: Scene) -> None:
    scene.nodes[0].put("old.pt", b"old")
    scene.nodes[0].put("new.pt", b"new")
    scene.nodes[0].before["send"] = (scene.nodes[0].tree / "old.pt").unlink
    scene.fetch(final=True)
    assert scene.out() == {"new.pt": b"new"}


# --- what a person changed -------------------------------------------------------------------


def test_a_persons_change_is_never_overwritten(scene: Scene) -> None:
    scene.nodes[0].put("results/notes.txt", b"from the node")
    scene.fetch()
    (scene.home.out / "results/notes.txt").write_bytes(b"mine")
    scene.nodes[0].put("results/notes.txt", b"newer from the node")

    report = scene.fetch()

    assert report.conflicts == ("out/results/notes.txt.new lies beside a file that was changed here",)
    assert scene.out() == {"results/notes.txt": b"mine", "results/notes.txt.new": b"newer from the node"}


def test_a_second_version_replaces_the_first_one_beside(scene: Scene) -> None:
    test_a_persons_change_is_never_overwritten(scene)
    scene.nodes[0].put("results/notes.txt", b"newest")
    scene.fetch()
    assert scene.out() == {"results/notes.txt": b"mine", "results/notes.txt.new": b"newest"}
    (scene.home.out / "results/notes.txt.new").write_bytes(b"mine too")
    scene.nodes[0].put("results/notes.txt", b"newest of all")
    scene.fetch(final=True)
    assert scene.out() == {
        "results/notes.txt": b"mine",
        "results/notes.txt.new": b"mine too",
        "results/notes.txt.new.new": b"newest of all",
    }


def test_before_the_end_the_nodes_bytes_are_home_even_beside_a_persons(scene: Scene) -> None:
    scene.nodes[0].put("a.pt", b"from the node")
    scene.fetch()
    (scene.home.out / "a.pt").write_bytes(b"mine")
    assert scene.fetch().conflicts == ()
    assert scene.fetch(final=True).conflicts == A_PT_NEW
    assert scene.out() == {"a.pt": b"mine", "a.pt.new": b"from the node"}
    assert scene.fetch(final=True) == FetchReport(0, 0, ())


def test_a_file_that_was_there_before_us_is_a_persons(scene: Scene) -> None:
    scene.home.create()
    (scene.home.out / "a.pt").write_bytes(b"mine")
    (scene.home.out / "b.pt").write_bytes(b"the same")
    scene.nodes[0].put("a.pt", b"theirs")
    scene.nodes[0].put("b.pt", b"the same")
    assert scene.fetch(final=True).conflicts == A_PT_NEW
    assert scene.out() == {"a.pt": b"mine", "a.pt.new": b"theirs", "b.pt": b"the same"}


def test_a_deleted_file_comes_back_before_the_end(scene: Scene) -> None:
    scene.nodes[0].put("a.pt", b"one")
    scene.fetch()
    (scene.home.out / "a.pt").unlink()
    scene.fetch(final=True)
    assert scene.out() == {"a.pt": b"one"}


def test_a_damaged_memory_makes_every_file_a_persons(scene: Scene) -> None:
    scene.nodes[0].put("a.pt", b"one")
    scene.fetch()
    (scene.home.out / MEMORY_FILE).write_text('{"held": 5}')
    scene.nodes[0].put("a.pt", b"two")
    assert scene.fetch(final=True).conflicts == A_PT_NEW
    assert scene.out() == {"a.pt": b"one", "a.pt.new": b"two"}


# --- checksums, cuts, other processes ---------------------------------------------------------


def test_bytes_damaged_at_home_are_found_by_their_sum(scene: Scene) -> None:
    scene.nodes[0].put("a.pt", b"right bytes")
    scene.fetch()
    damaged = scene.home.out / "a.pt"
    time = damaged.stat().st_mtime_ns
    damaged.write_bytes(b"wrong bytes")
    os.utime(damaged, ns=(time, time))

    assert scene.fetch(final=True).files == 1
    assert scene.out() == {"a.pt": b"right bytes"}
    assert "comparing checksums" in scene.words.phases


def test_what_cannot_be_verified_is_named(scene: Scene) -> None:
    node = scene.nodes[1]
    node.put("a.pt", b"0")

    def keep_changing() -> None:
        node.put("a.pt", os.urandom(8), mtime_ns=9)
        node.before["sums"] = keep_changing

    keep_changing()
    with pytest.raises(NodeError, match=r"1 file could not be verified: a\.pt \(node1\)$"):
        scene.fetch(final=True)


def test_a_lost_node_does_not_keep_the_others_files_away(scene: Scene) -> None:
    scene.nodes[0].put("a.pt", b"zero")
    scene.nodes[1].put("b.pt", b"one")

    def lose() -> None:
        raise ConnectionLost("the connection to node0 ended")

    scene.nodes[0].before["send"] = lose
    with pytest.raises(ConnectionLost, match="node0 ended"):
        scene.fetch(final=True)
    assert scene.out() == {"b.pt": b"one"}
    scene.fetch(final=True)
    assert scene.out() == {"a.pt": b"zero", "b.pt": b"one"}


def test_a_lost_twin_does_not_cost_the_version_that_was_home(scene: Scene) -> None:
    scene.nodes[1].put("a.pt", b"epoch 1")
    scene.fetch()
    for node in scene.nodes:
        node.put("a.pt", b"epoch 2", mtime_ns=2)

    def lose() -> None:
        raise ConnectionLost("the connection to node0 ended")

    scene.nodes[0].before["send"] = lose
    with pytest.raises(ConnectionLost):
        scene.fetch()
    assert scene.out() == {"a.pt": b"epoch 1"}


@pytest.mark.parametrize("size", [0, 1, 511, 512, 1500, 300_000])
def test_a_stream_cut_at_any_byte_publishes_nothing_torn(scene: Scene, size: int) -> None:
    data = os.urandom(400_000)
    scene.nodes[0].put("a.pt", data)
    whole = scene.nodes[0].bulk

    def cut(mode: str, *arguments: str) -> ProcessChannel:
        return ProcessChannel(
            ["sh", "-c", f'"$@" | head -c {size}; kill -9 $$', mode, *scene.nodes[0].send_argv(*arguments)]
        )

    scene.nodes[0].bulk = cut  # type: ignore[method-assign]
    with pytest.raises(ConnectionLost, match="the transfer with node0 was cut"):
        scene.fetch(final=True)
    assert scene.out() == {}
    scene.nodes[0].bulk = whole  # type: ignore[method-assign]
    scene.fetch(final=True)
    assert scene.out() == {"a.pt": data}


def test_a_refusal_travels_as_its_sentence(scene: Scene) -> None:
    scene.nodes[0].put("a.pt", b"x")
    scene.nodes[0].before["send"] = (scene.nodes[0].run / "spec.json").unlink
    with pytest.raises(NodeError, match="node0: no run 'digits-1' was started on this node"):
        scene.fetch()


@pytest.mark.parametrize("path", ["../evil.pt", "/etc/evil.pt", "a/../../evil.pt", "a//b", "a/.git/config", ".GIT/x"])
def test_a_node_cannot_write_elsewhere(scene: Scene, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.nodes[0].put("good.pt", b"x", mtime_ns=1)
    good = ["good.pt", 1, 1]
    monkeypatch.setattr(output_files, "outs", lambda node, *_: {"files": [[path, 1, 1], good] * (node.dir[-1] == "0")})
    report = scene.fetch(final=True)
    assert report.conflicts == (f"node0 offers {path}: not brought home",)
    assert scene.out() == {"good.pt": b"x"}


@pytest.mark.parametrize(
    "files",
    [
        None, 3, {"a.pt": 1}, [None], [[]], [["a"]], [[1, 2, 3]], [["a", "1", 1]], [["a", 1, None]], [["a", -1, 1]],
        [["a", 1 << 2000, 1]],
    ],
)  # fmt: skip
def test_a_node_that_talks_nonsense_is_one_sentence(scene: Scene, files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_files, "outs", lambda *_: {"files": files})
    with pytest.raises(MalformedAnswer, match="to 'outs': Expected"):
        scene.fetch()


@pytest.mark.parametrize("odd", [{"path": ["a.pt"], "sha256": "x"}, {"path": "a.pt"}, {"path": "a.pt", "sha256": 1}])
def test_a_node_that_talks_nonsense_of_checksums(scene: Scene, odd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.nodes[0].put("a.pt", b"x")
    monkeypatch.setattr(output_files, "sums", lambda _node, _args, emit: emit(odd) or {})
    with pytest.raises(MalformedAnswer, match="to 'sums': "):
        scene.fetch(final=True)


def test_checksums_that_nobody_asked_for(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one more of a file that was asked for: such a stream need not end."""
    scene.nodes[0].put("a.pt", b"x")
    for path in ("b.pt", "a.pt"):
        row = {"path": path, "sha256": "0" * 64}
        monkeypatch.setattr(
            output_files, "sums", lambda _node, _args, emit, row=row: [emit(row) for _ in range(2)] and {}
        )
        with pytest.raises(MalformedAnswer, match="not asked for, or twice"):
            scene.fetch(final=True)


def test_a_node_that_talks_nonsense_hides_nothing_of_another(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another try may bring is the error; what no try brings is one only where there is nothing else."""
    scene.nodes[1].put("a.pt", b"x")
    real = output_files.outs
    monkeypatch.setattr(output_files, "outs", lambda node, *more: {} if node.dir[-1] == "0" else real(node, *more))
    monkeypatch.setattr(output_files, "sums", lambda *_: {})
    with pytest.raises(NodeError, match=r"1 file could not be verified: a.pt \(node1\)"):
        scene.fetch(final=True)
    monkeypatch.undo()
    monkeypatch.setattr(output_files, "outs", lambda node, *more: {} if node.dir[-1] == "0" else real(node, *more))
    with pytest.raises(MalformedAnswer, match="node0"):
        scene.fetch(final=True)
    assert scene.out() == {"a.pt": b"x"}


def test_a_time_that_no_file_can_have(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.nodes[0].put("a.pt", b"x")
    monkeypatch.setattr(
        output_files, "outs", lambda node, *_: {"files": [["a.pt", 1, (1 << 63) - 1]] if node.dir[-1] == "0" else []}
    )
    scene.fetch()
    assert scene.out() == {"a.pt": b"x"}


@pytest.mark.parametrize("name", [".\\model.pt", "..\\evil.pt", "a\\..\\..\\b.pt"])
def test_a_backslash_is_part_of_a_name(scene: Scene, name: str) -> None:
    scene.nodes[0].put(name, b"weights")
    scene.nodes[0].put("other.pt", b"more")
    scene.fetch(final=True)
    assert scene.out() == {name: b"weights", "other.pt": b"more"}


@pytest.mark.parametrize("name", ["runs", f"runs/{RUN}", f"runs/{RUN}/out"])
def test_a_file_where_the_home_should_be_is_one_sentence(tmp_path: Path, name: str) -> None:
    home = RunHome(tmp_path / "runs" / RUN)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("in the way")
    with pytest.raises(GpuopsError, match="cannot write to"):
        home.create()


def test_a_disk_that_cannot_be_written_is_one_sentence(scene: Scene) -> None:
    scene.nodes[0].put("a.pt", b"x")
    scene.home.create()
    scene.home.incoming.write_text("in the way")
    with pytest.raises(GpuopsError, match=r"cannot write to .*incoming"):
        scene.fetch()


def test_a_full_disk_here_is_said_and_no_nodes_failure(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    write_logs(scene.nodes[1], 100)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=DISK_RESERVE_BYTES + 30))
    with pytest.raises(LocalDisk, match="this computer's disk is full: cannot write to") as caught:
        follow(scene.nodes[1], scene.home)
    assert not isinstance(caught.value, NodeError)
    assert caught.value.exit_code == 4


def test_fetches_at_once_leave_each_file_once(scene: Scene) -> None:
    for index in range(30):
        scene.nodes[index % 2].put(f"outputs/{index}.bin", bytes([index]) * 1000)
        scene.nodes[(index + 1) % 2].put(f"outputs/{index}.bin", bytes([index]) * 1000)
    errors: list[BaseException] = []

    def one() -> None:
        try:
            scene.fetch(final=True)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert errors == []
    assert scene.out() == {f"outputs/{index}.bin": bytes([index]) * 1000 for index in range(30)}


KILLED = """
import io, os, sys
from pathlib import Path
from gpuops.sync.merged_outputs import OutFolder
from gpuops.sync.merged_outputs_record import Arrival
from gpuops.sync.run_folder import RunHome
home, count = RunHome(Path(sys.argv[1])), int(sys.argv[2])
out, real, calls = OutFolder(home), os.replace, 0
def replace(source, target, **where):
    global calls
    if calls == count:
        os.kill(os.getpid(), 9)
    calls += 1
    real(source, target, **where)
os.replace = replace
with out.staging() as staging:
    arrivals = []
    for name in ("a.pt", "b.pt"):
        staging.create(name, io.BytesIO(b"second"), 6, mtime_ns=2)
        arrivals.append(Arrival(0, name, (6, 2), sys.argv[3], name))
    out.publish(arrivals, staging)
"""


@pytest.mark.parametrize("count", range(5))
def test_killed_between_any_two_renames_nothing_looks_like_a_persons(scene: Scene, count: int) -> None:
    import hashlib

    for name in ("a.pt", "b.pt"):
        scene.nodes[0].put(name, b"first", mtime_ns=1)
    scene.fetch()
    for name in ("a.pt", "b.pt"):
        scene.nodes[0].put(name, b"second", mtime_ns=2)
    sha256 = hashlib.sha256(b"second").hexdigest()
    killed = subprocess.run([sys.executable, "-c", KILLED, str(scene.home.path), str(count), sha256], cwd=REPOSITORY)
    assert killed.returncode == (-9 if count < 4 else 0)

    report = scene.fetch()

    assert scene.out() == {"a.pt": b"second", "b.pt": b"second"}
    assert report.conflicts == ()
    for name in ("a.pt", "b.pt"):
        scene.nodes[0].put(name, b"third")
    assert scene.fetch(final=True).conflicts == ()
    assert scene.out() == {"a.pt": b"third", "b.pt": b"third"}


# --- what is decided without a disk -----------------------------------------------------------


@pytest.mark.parametrize(
    ("sums", "expected"),
    [
        ({0: "A"}, {"A": "p"}),
        ({2: "A"}, {"A": "p"}),
        ({0: "A", 1: "A", 2: "A"}, {"A": "p"}),
        ({0: "A", 1: "B"}, {"A": "p", "B": "node1/p"}),
        ({1: "B", 2: "B", 0: "A"}, {"A": "p", "B": "node1/p"}),
        ({0: "A", 1: "B", 2: "A", 3: "C"}, {"A": "p", "B": "node1/p", "C": "node3/p"}),
    ],
)
def test_which_bytes_have_which_place(sums: dict[int, str], expected: dict[str, str]) -> None:
    assert choose_places("p", sums) == expected


def test_batches_are_bounded_and_keep_a_path_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outplan, "MAX_BATCH_BYTES", 10)
    todo: outplan.Todo = {"a": {0: (6, 1), 1: (6, 1)}, "b": {0: (4, 1)}, "c": {0: (4, 1)}, "d": {0: (4, 1)}}
    assert [sorted(batch) for batch in outplan.batches(todo)] == [["a"], ["b", "c"], ["d"]]
    monkeypatch.setattr(outplan, "MAX_BATCH_FILES", 1)
    assert [sorted(batch) for batch in outplan.batches(todo)] == [["a"], ["b"], ["c"], ["d"]]


def test_only_what_may_be_equal_is_summed_on_the_node() -> None:
    batch: outplan.Todo = {"alone": {0: (5, 1)}, "other": {0: (5, 1), 1: (6, 1)}, "same": {0: (5, 1), 1: (5, 2)}}
    assert outplan.possible_duplicates(batch, Memory()) == {0: ["same"], 1: ["same"]}


def test_memory_survives_its_file(scene: Scene) -> None:
    scene.nodes[0].put("a.pt", b"zero")
    scene.nodes[1].put("a.pt", b"one")
    scene.fetch()
    memory = OutFolder(scene.home).memory()
    assert Memory.parse(json.loads(json.dumps(memory.dump()))) == memory
    assert memory.held["a.pt"][1].place == "node1/a.pt"


def test_nothing_to_publish_touches_nothing(tmp_path: Path) -> None:
    home = RunHome(tmp_path / "run")
    arrivals: list[Arrival] = []
    assert OutFolder(home).publish(arrivals, SafeFolder(tmp_path)) == []
    assert not home.path.exists()
    shutil.rmtree(tmp_path)
