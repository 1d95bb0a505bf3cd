"""Results on their way home: real files, the agent's own verbs and its real `send` as a process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from gpuops.agent.files import output_files
from gpuops.core.errors import ConnectionLost, GpuopsError, LocalDisk, MalformedAnswer, NodeError
from gpuops.core.safe_folder import SafeFolder
from gpuops.sync import download_plan
from gpuops.sync.download import FetchReport, UnreadableFiles
from gpuops.sync.merged_outputs import OutFolder
from gpuops.sync.merged_outputs_journal import JOURNAL_FILE
from gpuops.sync.merged_outputs_record import Arrival, Memory
from gpuops.sync.run_folder import RunHome
from gpuops.transport.connection import ProcessChannel
from tests.integration.sync.node_here import REPOSITORY, Scene

A_PT_NEW = ("out/a.pt.new lies beside a file that was changed here",)


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


def test_a_snapshot_made_while_the_one_before_travels_leaves_no_stale_pointer_home(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow line every fetch takes longer than it is to the next snapshot: `last` had changed each time."""
    monkeypatch.setattr(download_plan, "MAX_SMALL_BYTES", 10)
    node = scene.nodes[0]

    def save(step: int) -> None:
        node.put(f"snapshots/step-{step}.pt", b"a large file")
        node.put("snapshots/last", b"step-%d" % step, mtime_ns=step)

    save(10)
    scene.fetch()
    for step in (20, 30):
        save(step)
        node.before["send"] = lambda step=step: save(step + 1)
        scene.fetch()
    assert scene.out() == {
        **{f"snapshots/step-{step}.pt": b"a large file" for step in (10, 20, 21, 30)}, "snapshots/last": b"step-31",
    }  # fmt: skip


def home_bytes(scene: Scene) -> list[bytes]:
    return [path.read_bytes() for path in scene.home.out.rglob("*.pt")]


def test_a_large_file_takes_no_room_from_the_small_ones(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_plan, "MAX_SMALL_BYTES", 10)
    monkeypatch.setattr(SafeFolder, "room", lambda _: 100 - sum(map(len, home_bytes(scene))))
    scene.nodes[0].put("a.pt", b"x" * 97)
    scene.nodes[0].put("b.pt", b"small")
    with pytest.raises(LocalDisk, match=r"no room for 1 file of digits-1 \(97 B; the largest is a\.pt, 97 B\)"):
        scene.fetch(final=True)
    assert scene.out() == {"b.pt": b"small"}


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
    (scene.home.out / JOURNAL_FILE).write_text('{"held": 5}')
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


def test_what_its_node_cannot_read_is_named(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is listed, and sends no checksum: a retry alone brings nothing."""
    scene.nodes[0].put("a.pt", b"0")
    scene.nodes[1].put("raw data.pt", b"1")
    read = output_files._hash_file
    monkeypatch.setattr(
        output_files, "_hash_file", lambda path, emit: None if path.endswith(b"raw data.pt") else read(path, emit)
    )
    with pytest.raises(UnreadableFiles, match=r"1 file cannot be read on the nodes: raw data\.pt \(node1\)$") as caught:
        scene.fetch(final=True)
    assert caught.value.files == [(1, "raw data.pt")]
    assert scene.out()["a.pt"] == b"0"


def test_what_cannot_be_verified_is_named(scene: Scene) -> None:
    node = scene.nodes[1]
    node.put("a.pt", b"0")

    def keep_changing() -> None:
        node.put("a.pt", os.urandom(8), mtime_ns=9)
        node.before["sums"] = keep_changing

    keep_changing()
    with pytest.raises(NodeError, match=r"1 file could not be verified: a\.pt \(node1\)$"):
        scene.fetch(final=True)


def test_a_name_forges_no_line(scene: Scene) -> None:
    forged = "a\nerror: all is lost.pt"
    scene.nodes[0].put(forged, b"from the node")
    scene.fetch()
    (scene.home.out / forged).write_bytes(b"mine")
    scene.nodes[0].put(forged, b"newer")
    assert scene.fetch().conflicts == (r"'out/a\nerror: all is lost.pt.new' lies beside a file that was changed here",)

    def keep_changing() -> None:
        scene.nodes[0].put(forged, os.urandom(8), mtime_ns=9)
        scene.nodes[0].before["sums"] = keep_changing

    keep_changing()
    with pytest.raises(NodeError, match=r"^1 file could not be verified: 'a\\nerror: all is lost\.pt' \(node0\)$"):
        scene.fetch(final=True)


def test_a_lost_node_does_not_keep_the_others_files_away(scene: Scene) -> None:
    """Nor what is said of them: the next fetch has nothing to say."""
    scene.nodes[0].put("a.pt", b"zero")
    scene.nodes[1].put("b.pt", b"one")
    (scene.home.out).mkdir(parents=True)
    (scene.home.out / "b.pt").write_bytes(b"mine")

    def lose() -> None:
        raise ConnectionLost("the connection to node0 ended")

    scene.nodes[0].before["send"] = lose
    with pytest.raises(ConnectionLost, match="node0 ended"):
        scene.fetch(final=True)
    assert scene.words.said == ["out/b.pt.new lies beside a file that was changed here"]
    assert scene.out() == {"b.pt": b"mine", "b.pt.new": b"one"}
    scene.fetch(final=True)
    assert scene.out() == {"a.pt": b"zero", "b.pt": b"mine", "b.pt.new": b"one"}


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
    with pytest.raises(NodeError, match=r"1 file cannot be read on the nodes: a.pt \(node1\)"):
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


def test_a_disk_that_cannot_be_written_is_one_sentence(scene: Scene) -> None:
    scene.nodes[0].put("a.pt", b"x")
    scene.home.create()
    (scene.home.path / "incoming").write_text("in the way")
    with pytest.raises(GpuopsError, match=r"cannot write to .*incoming"):
        scene.fetch()


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
out, calls = OutFolder(home), 0
def killed_before(real):
    def act(*args, **where):
        global calls
        if calls == count:
            os.kill(os.getpid(), 9)
        calls += 1
        return real(*args, **where)
    return act
os.replace, os.fsync = killed_before(os.replace), killed_before(os.fsync)
with out.staging() as staging:
    arrivals = []
    for name in ("a.pt", "b.pt"):
        staging.create(name, io.BytesIO(b"second"), 6, mtime_ns=2)
        arrivals.append(Arrival(0, name, (6, 2), sys.argv[3], name))
    out.publish(arrivals, staging)
"""


@pytest.mark.parametrize("count", range(7))
def test_killed_between_any_two_renames_nothing_looks_like_a_persons(scene: Scene, count: int) -> None:
    import hashlib

    for name in ("a.pt", "b.pt"):
        scene.nodes[0].put(name, b"first", mtime_ns=1)
    scene.fetch()
    for name in ("a.pt", "b.pt"):
        scene.nodes[0].put(name, b"second", mtime_ns=2)
    sha256 = hashlib.sha256(b"second").hexdigest()
    killed = subprocess.run([sys.executable, "-c", KILLED, str(scene.home.path), str(count), sha256], cwd=REPOSITORY)
    assert killed.returncode == (-9 if count < 6 else 0), (
        "two files received, two lines before and two after two renames"
    )

    report = scene.fetch()

    assert scene.out() == {"a.pt": b"second", "b.pt": b"second"}
    assert report.conflicts == ()
    for name in ("a.pt", "b.pt"):
        scene.nodes[0].put(name, b"third")
    assert scene.fetch(final=True).conflicts == ()
    assert scene.out() == {"a.pt": b"third", "b.pt": b"third"}


def test_memory_survives_its_file(scene: Scene) -> None:
    scene.nodes[0].put("a.pt", b"zero")
    scene.nodes[1].put("a.pt", b"one")
    scene.fetch()
    memory = OutFolder(scene.home).memory()
    again = Memory()
    for path in memory.paths():
        again.apply(json.loads(json.dumps(memory.describe(path))))
    assert again == memory
    assert memory.held["a.pt"][1].place == "node1/a.pt"


def test_nothing_to_publish_touches_nothing(tmp_path: Path) -> None:
    home = RunHome(tmp_path / "run")
    arrivals: list[Arrival] = []
    assert OutFolder(home).publish(arrivals, SafeFolder(tmp_path)) == []
    assert not home.path.exists()
    shutil.rmtree(tmp_path)
