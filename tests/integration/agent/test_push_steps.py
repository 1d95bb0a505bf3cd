"""The node's end of push and pull: what is refused, and what a push that was killed leaves behind."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import termios
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from gpuops.agent.files import push_steps, rsync_receiver, tar_streams
from gpuops.agent.files.incoming import MAX_AT_ONCE_BYTES, MAX_WAITING_BYTES, Shelf
from gpuops.agent.files.push_comparison import load_record, store_record
from gpuops.agent.files.tar_streams import Padded
from gpuops.agent.node import Node, Refusal
from gpuops.agent.wire_format import END, head
from gpuops.sync.project_files import read_entry
from tests.fakes.inprocess import InProcessClient

Files = dict[str, str | None]
"""A project: path to text; None for a link named like its target (`x->y`)."""


def make(folder: Path, files: Files, stamp: int) -> None:
    """Write a project; `stamp` makes its times differ from another version's."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path, text in files.items():
        name, _, target = path.partition("->")
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            (folder / name).symlink_to(target)
        else:
            (folder / name).write_text(text)
            os.utime(folder / name, ns=(stamp, stamp))


def listed(folder: Path) -> list[list[Any]]:
    paths = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    return [found.wire for path in paths if (found := read_entry(folder, path))]


def stream_of(folder: Path, files: list[list[Any]], need: Iterable[int]) -> bytes:
    contents = {index: (folder / files[index][0]).read_bytes() for index in need}
    return b"".join(head(str(index), len(data)) + data for index, data in contents.items()) + END


def ignore(item: dict[str, Any]) -> None:
    del item


def plan(node: Node, folder: Path, **options: Any) -> dict[str, Any]:
    files = listed(folder)
    answer = push_steps.plan(node, {"tree": "project", "files": files, **options}, ignore)
    if answer["ask"]:
        sums = {str(index): sha256(folder / files[index][0]) for index in answer["ask"]}
        answer = push_steps.plan(node, {"tree": "project", "files": files, "sums": sums, **options}, ignore)
    return answer


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def receive(node: Node, push: str, data: bytes) -> None:
    if push:
        push_steps.receive(node, ["--tree", "project", "--push", push], io.BytesIO(data), io.BytesIO())


def commit(node: Node, push: str) -> dict[str, Any]:
    if not push:
        return {"written": 0, "removed": 0}  # the plan had nothing to do
    return push_steps.commit(node, {"tree": "project", "push": push}, ignore)


def push(node: Node, folder: Path, **options: Any) -> dict[str, Any]:
    answer = plan(node, folder, **options)
    assert answer["conflicts"] == []
    receive(node, answer["push"], stream_of(folder, listed(folder), answer["need"]))
    return {**answer, **commit(node, answer["push"])}


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_text()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


@pytest.fixture
def node(tmp_path: Path) -> Node:
    (tmp_path / "n0").mkdir()
    return Node(str(tmp_path / "n0"))


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return tmp_path / "here"


BIG_BYTES = 2 * MAX_AT_ONCE_BYTES
"""Of a file that is not written at once."""
HOSTILE = ["../x", "/etc/x", "a/../../x", "a//b", "", ".", "a/.", "..", "a/\0"]


@pytest.mark.parametrize("path", HOSTILE)
def test_paths_that_lead_outside_are_refused(node: Node, path: str) -> None:
    with pytest.raises(Refusal) as refused:
        push_steps.plan(node, {"tree": "project", "files": [[path, 1, 1, 0o644, None]]}, ignore)
    assert refused.value.kind == "bad-path"
    assert os.listdir(node.dir) == ["trees"], "the lock alone"


@pytest.mark.parametrize("path", HOSTILE)
def test_such_paths_are_not_sent_either(node: Node, path: str) -> None:
    with pytest.raises(Refusal) as refused:
        tar_streams.send(node, ["--tree", "project"], io.BytesIO(json.dumps([path]).encode()), io.BytesIO())
    assert refused.value.kind == "bad-path"


@pytest.mark.parametrize("name", ["../x", "a/b", "", "Project", "runs2"])
def test_names_of_trees(node: Node, name: str) -> None:
    with pytest.raises(Refusal):
        push_steps.plan(node, {"tree": name, "files": []}, ignore)


@pytest.mark.parametrize("paths", [["a", "a"], ["a", "a/b"]])
def test_a_list_that_no_folder_can_hold(node: Node, paths: list[str]) -> None:
    with pytest.raises(Refusal) as refused:
        push_steps.plan(node, {"tree": "project", "files": [[path, 1, 1, 0o644, None] for path in paths]}, ignore)
    assert refused.value.kind == "bad-path"


@pytest.mark.parametrize("overwrite", [False, True])
def test_nothing_is_written_through_a_link(node: Node, here: Path, tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "n0" / "project").mkdir()
    (tmp_path / "n0" / "project" / "data").symlink_to(tmp_path / "outside")
    make(here, {"data/x": "1", "data/deep/y": "2"}, 10**18)
    with pytest.raises(Refusal) as refused:
        plan(node, here, overwrite=overwrite)
    assert refused.value.kind == "outside"
    assert "'data' on this node is not a folder" in refused.value.say
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_link_put_there_during_the_push_is_seen(node: Node, here: Path, tmp_path: Path) -> None:
    make(here, {"data/x": "1"}, 10**18)
    answer = plan(node, here)
    receive(node, answer["push"], stream_of(here, listed(here), answer["need"]))
    (tmp_path / "outside").mkdir()
    (tmp_path / "n0" / "project").mkdir()
    (tmp_path / "n0" / "project" / "data").symlink_to(tmp_path / "outside")
    with pytest.raises(Refusal):
        commit(node, answer["push"])
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_stale_file_behind_a_link_is_not_removed(node: Node, here: Path, tmp_path: Path) -> None:
    make(here, {"data/x": "1"}, 10**18)
    push(node, here)
    shutil.move(tmp_path / "n0" / "project" / "data", tmp_path / "moved")
    (tmp_path / "n0" / "project" / "data").symlink_to(tmp_path / "moved")
    make(here, {"other": "1"}, 10**18)
    push(node, here)
    assert (tmp_path / "moved" / "x").read_text() == "1"


def test_a_tree_that_is_a_link_is_refused(node: Node, here: Path, tmp_path: Path) -> None:
    (tmp_path / "n0" / "project").symlink_to(tmp_path)
    make(here, {"x": "1"}, 10**18)
    with pytest.raises(Refusal) as refused:
        plan(node, here)
    assert refused.value.kind == "outside"


def test_a_folder_with_files_of_its_own_is_never_replaced(node: Node, here: Path, tmp_path: Path) -> None:
    make(here, {"out/seed": "1"}, 10**18)
    push(node, here)
    (tmp_path / "n0" / "project" / "out" / "model.pt").write_text("weights")
    make(here, {"out": "a file now"}, 10**18)
    with pytest.raises(Refusal) as refused:
        plan(node, here, overwrite=True)
    assert refused.value.kind == "in-the-way"
    assert (tmp_path / "n0" / "project" / "out" / "model.pt").read_text() == "weights"


def test_a_push_larger_than_the_disk_is_refused_at_once(node: Node) -> None:
    with pytest.raises(Refusal, match=r"the push needs .* MB and the disk has") as refused:
        push_steps.plan(node, {"tree": "project", "files": [["x", 1 << 60, 1, 0o644, None]]}, ignore)
    assert refused.value.kind == "disk"


@pytest.mark.parametrize("cut", [0, 5, 100, 612, 620, 1200])
def test_a_torn_transfer_is_no_push(node: Node, here: Path, cut: int) -> None:
    make(here, {"a": "a" * 600, "b": "b" * 600}, 10**18)
    answer = plan(node, here)
    data = stream_of(here, listed(here), answer["need"])
    with pytest.raises(Refusal) as refused:
        receive(node, answer["push"], data[:cut])
    assert refused.value.kind == "torn"
    with pytest.raises(Refusal) as refused:
        commit(node, answer["push"])
    assert refused.value.kind == "incomplete"
    push(node, here)
    assert contents(Path(node.tree("project"))) == contents(here)


def test_what_does_not_fit_the_plan_is_refused(node: Node, here: Path) -> None:
    make(here, {"a": "a" * 600}, 10**18)
    answer = plan(node, here)
    for name, size in (("0", 5), ("1", 600), ("../x", 600), ("-9", 600)):
        with pytest.raises(Refusal) as refused:
            receive(node, answer["push"], head(name, size) + bytes(size) + END)
        assert refused.value.kind == "torn"


@pytest.mark.parametrize(
    "data",
    [b"", b"[", b"x\n", b"7\n", b"{}\n", b"[0, 600]\n", b'["0"]\n', b'["0", -1]\n', b'["0", "600"]\n', b"[" * 200_000],
)
def test_what_is_no_stream_of_files_is_refused(node: Node, here: Path, data: bytes) -> None:
    make(here, {"a": "a" * 600}, 10**18)
    answer = plan(node, here)
    with pytest.raises(Refusal) as refused:
        receive(node, answer["push"], data)
    assert refused.value.kind == "torn"


def test_what_arrived_whole_is_not_asked_for_again(node: Node, here: Path) -> None:
    make(here, {"a": "a" * 600, "b": "b" * 600}, 10**18)
    answer = plan(node, here)
    receive(node, answer["push"], stream_of(here, listed(here), [0]))
    assert plan(node, here)["need"] == [1]
    make(here, {"a": "A" * 600, "b": "b" * 600}, 10**18 + 1)
    assert plan(node, here)["need"] == [0, 1]


def staging(node: Node, push: str) -> Path:
    return Path(node.path("incoming", "project", f"files-{push}"))


def test_an_older_push_writes_nothing_into_a_newer_one(node: Node, here: Path) -> None:
    make(here, {"a": "a" * 600, "b": "b" * 600}, 10**18)
    older = plan(node, here)
    data = stream_of(here, listed(here), older["need"])
    newer: dict[str, Any] = {}

    class Overtaken(io.BytesIO):
        """A newer push begins once half of the older one's first file has come."""

        def read(self, count: int | None = -1) -> bytes:
            half = super().read(min(count or 0, 300))
            if not newer:
                make(here, {"a": "A" * 600, "b": "B" * 600}, 10**18)
                newer.update(plan(node, here))
            return half

    with pytest.raises(Refusal) as refused:
        push_steps.receive(node, ["--tree", "project", "--push", older["push"]], Overtaken(data), io.BytesIO())
    assert refused.value.kind == "superseded"
    assert list(staging(node, newer["push"]).iterdir()) == []
    receive(node, newer["push"], stream_of(here, listed(here), newer["need"]))
    with pytest.raises(Refusal):
        commit(node, older["push"])
    commit(node, newer["push"])
    assert contents(Path(node.tree("project"))) == {"a": "A" * 600, "b": "B" * 600}


@pytest.mark.parametrize("change", ["size", "time", "link", "gone"])
def test_a_staged_file_that_is_not_the_plans_is_refused(node: Node, here: Path, change: str) -> None:
    make(here, {"a": "a" * 600, "b": "b" * 600}, 10**18)
    answer = plan(node, here)
    receive(node, answer["push"], stream_of(here, listed(here), answer["need"]))
    staged = staging(node, answer["push"]) / "b"
    if change == "size":
        staged.write_text("b" * 599)
        os.utime(staged, ns=(10**18, 10**18))
    elif change == "time":
        os.utime(staged, ns=(10**18, 10**18 + 1))
    else:
        staged.unlink()
        if change == "link":
            staged.symlink_to(here / "b")
    with pytest.raises(Refusal) as refused:
        commit(node, answer["push"])
    assert (refused.value.kind, refused.value.say) == ("incomplete", "'b' has not arrived")
    assert contents(Path(node.tree("project"))) == {}


def test_a_file_gets_its_mode_whatever_the_mask_of_the_program_that_receives_it(node: Node, here: Path) -> None:
    make(here, {"a": "a" * 600}, 10**18)
    (here / "a").chmod(0o775)
    answer = plan(node, here)
    before = os.umask(0o077)
    try:
        receive(node, answer["push"], stream_of(here, listed(here), [0]))
    finally:
        os.umask(before)
    commit(node, answer["push"])
    assert os.stat(node.path("project", "a")).st_mode & 0o777 == 0o775


@pytest.mark.parametrize("unit", [1_000, 1_000_000_000])
def test_a_time_that_rsync_has_rounded_is_made_exact(node: Node, here: Path, unit: int) -> None:
    stamp = 1_600_000_000_123_456_789
    make(here, {"a": "a" * 600}, stamp)
    answer = plan(node, here)
    staged = staging(node, answer["push"]) / "a"
    staged.write_text("a" * 600)
    os.utime(staged, ns=(stamp // unit * unit, stamp // unit * unit))
    commit(node, answer["push"])
    assert os.stat(node.path("project", "a")).st_mtime_ns == stamp
    assert plan(node, here)["push"] == ""


def test_a_disk_with_coarse_times_keeps_what_arrived(node: Node, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    utime = os.utime
    monkeypatch.setattr(os, "utime", lambda path, ns: utime(path, ns=tuple(one // 10**9 * 10**9 for one in ns)))
    make(here, {}, 0)
    (here / "a").write_text("a" * 600)
    utime(here / "a", ns=(10**18 + 5, 10**18 + 5))
    answer = plan(node, here)
    receive(node, answer["push"], stream_of(here, listed(here), answer["need"]))
    assert os.stat(staging(node, answer["push"]) / "a").st_mtime_ns == 10**18
    again = plan(node, here)
    assert again["need"] == []
    commit(node, again["push"])
    assert contents(Path(node.tree("project"))) == contents(here)


def test_a_new_folder_is_moved_at_once_with_what_the_push_has_in_it_alone(
    node: Node, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(here, {f"{folder}/{name}": name for folder in ("new", "new/in", "there", "odd") for name in "abc"}, 10**18)
    os.symlink("a", here / "new" / "in" / "link")
    answer = plan(node, here)
    receive(node, answer["push"], stream_of(here, listed(here), answer["need"]))
    there = Path(node.tree("project"))
    (there / "there").mkdir(parents=True)
    (there / "there" / "mine").write_text("a run's")
    (staging(node, answer["push"]) / "odd" / "stranger").write_text("of no push")
    moved, replace = [], os.replace
    monkeypatch.setattr(os, "replace", lambda old, new: (moved.append(os.fsdecode(new)), replace(old, new)))
    commit(node, answer["push"])
    assert contents(there) == {**contents(here), "there/mine": "a run's"}
    one_by_one = sorted(Path(path).parent.name for path in moved if str(there) in path)
    assert one_by_one == ["in", *["odd"] * 3, *["there"] * 3], "the link, and what stands beside others"


def test_what_streams_that_were_cut_left_is_removed(node: Node, here: Path) -> None:
    make(here, {"a": "a" * 600}, 10**18)
    answer = plan(node, here)
    with pytest.raises(Refusal):
        receive(node, answer["push"], stream_of(here, listed(here), [0])[:300])
    incoming = Path(node.path("incoming", "project"))
    assert sorted(os.listdir(incoming)) == [f"files-{answer['push']}", "links", "plan.json"]
    (incoming / "part-4711").write_text("of a killed one")
    (incoming / "part.4711").write_text("of an earlier version's")
    (incoming / "files").mkdir()
    answer = plan(node, here)
    assert sorted(os.listdir(incoming)) == [f"files-{answer['push']}", "links", "plan.json"]


@pytest.mark.parametrize("size", [600, BIG_BYTES])
def test_what_another_node_passed_on_counts_for_nothing_until_the_client_vouches_for_it(
    node: Node, here: Path, size: int
) -> None:
    """Not for the next push, either, whatever a file is called there."""
    make(here, {"0": "a" * size}, 10**18)
    incoming, files = push_steps.open_push(node, ["--tree", "project", "--push", plan(node, here)["push"]])
    shelf = Shelf(incoming)
    shelf.put(size, 0, shelf.keep(*files[0], [b"x" * size]), *files[0])
    shelf.settle(size - 1)
    assert os.listdir(incoming.files) == []
    assert os.listdir(shelf.folder) == ["0"] * (size == BIG_BYTES)
    assert plan(node, here)["need"] == [0]
    assert not os.path.exists(shelf.folder)
    shelf.settle(size)
    assert shelf.last is None
    assert shelf.refusal
    assert shelf.refusal.kind == "superseded"


@pytest.mark.parametrize("size", [600, BIG_BYTES])
def test_a_file_that_another_node_sends_twice_does_not_take_the_proof_of_the_first(
    node: Node, here: Path, size: int
) -> None:
    make(here, {"a": "a" * size}, 10**18)
    incoming, files = push_steps.open_push(node, ["--tree", "project", "--push", (push := plan(node, here)["push"])])
    shelf = Shelf(incoming)
    shelf.put(size, 0, shelf.keep(*files[0], [b"a" * size]), *files[0])
    shelf.put(2 * size, 0, shelf.keep(*files[0], [b"x" * size]), *files[0])
    shelf.settle(size)
    commit(node, push)
    assert contents(Path(node.tree("project"))) == contents(here)


def test_files_that_wait_for_the_client_are_held_in_memory_up_to_a_limit(node: Node, here: Path) -> None:
    count = MAX_WAITING_BYTES // MAX_AT_ONCE_BYTES
    make(here, {f"{number:03}": "a" * MAX_AT_ONCE_BYTES for number in range(count + 2)}, 10**18)
    incoming, files = push_steps.open_push(node, ["--tree", "project", "--push", (push := plan(node, here)["push"])])
    shelf = Shelf(incoming)
    for number, file in enumerate(files):
        shelf.put(number + 1, number, shelf.keep(*file, [b"a" * MAX_AT_ONCE_BYTES]), *file)
        if number == count:
            assert os.listdir(shelf.folder) == [str(0)]
            shelf.settle(number)
    assert len(os.listdir(shelf.folder)) == 1, "what was settled made room"
    shelf.settle(len(files))
    commit(node, push)
    assert contents(Path(node.tree("project"))) == contents(here)


@pytest.mark.parametrize("left", ["", "a" * 400, "b" * 600])
def test_a_small_file_takes_the_place_of_what_lies_there(node: Node, here: Path, left: str) -> None:
    """What another stream of the same push was about to write, or rsync has begun."""
    make(here, {"a": "a" * 600}, 10**18)
    push = plan(node, here)["push"]
    place = staging(node, push) / "a"
    place.write_text(left)
    place.chmod(0o444)
    with place.open("rb") as before:
        incoming, files = push_steps.open_push(node, ["--tree", "project", "--push", push])
        incoming.write(*files[0], [b"a" * 600])
        assert before.read() == left.encode(), "whoever else writes it writes another file"
    commit(node, push)
    assert contents(Path(node.tree("project"))) == contents(here)


def test_a_small_file_that_was_cut_is_no_whole_one(node: Node, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before the file has its time, and before anything was written."""
    make(here, {"a": "a" * 600, "b": "b" * 600}, 10**18)
    push = plan(node, here)["push"]
    incoming, files = push_steps.open_push(node, ["--tree", "project", "--push", push])
    with monkeypatch.context() as patch:
        patch.setattr(os, "utime", lambda *_, **__: os._exit(9))
        if (child := os.fork()) == 0:
            incoming.write(*files[0], [b"a" * 600])
        os.waitpid(child, 0)
        patch.setattr(os, "write", lambda *_, **__: os._exit(9))
        if (child := os.fork()) == 0:
            incoming.write(*files[1], [b"b" * 600])
        os.waitpid(child, 0)
    assert [(path.name, path.stat().st_size) for path in sorted(staging(node, push).iterdir())] == [
        ("a", 600),
        ("b", 0),
    ]
    answer = plan(node, here)
    assert answer["need"] == [0, 1]
    assert list(staging(node, answer["push"]).iterdir()) == []


def with_part(node: Node, push: str, size: int) -> Path:
    part = staging(node, push) / "a"
    part.write_bytes(bytes(size))
    return part


def test_the_part_of_a_file_that_is_there_needs_no_room(
    node: Node, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(here, {"a": "a" * 600, "b": "b" * 600}, 10**18)
    with_part(node, plan(node, here)["push"], 400)
    monkeypatch.setattr("gpuops.agent.files.folder.free_bytes", lambda _: 800)
    answer = plan(node, here)
    assert answer["replaces"] == 400, "rsync goes on from it"
    monkeypatch.setattr("gpuops.agent.files.folder.free_bytes", lambda _: 799)
    with pytest.raises(Refusal, match="the disk has"):
        plan(node, here)
    assert answer["need"] == [0, 1]


@pytest.mark.parametrize(("size", "stays"), [(400, True), (800, True), (600, False)])
def test_a_part_of_an_older_push_whose_size_does_not_tell_that_it_is_one_is_left(
    node: Node, here: Path, size: int, stays: bool
) -> None:
    make(here, {"a": "a" * 600}, 10**18)
    with_part(node, plan(node, here)["push"], size)
    answer = plan(node, here)
    assert answer["need"] == [0]
    assert (staging(node, answer["push"]) / "a").exists() is stays


def test_a_stream_removes_the_part_that_rsync_left_before_it_takes_room(node: Node, here: Path) -> None:
    make(here, {"a": "a" * BIG_BYTES}, 10**18)
    part = with_part(node, (push := plan(node, here)["push"]), 400)
    incoming, files = push_steps.open_push(node, ["--tree", "project", "--push", push])
    found: list[bool] = []
    incoming.write(*files[0], (found.append(part.exists()) or b"a" * (BIG_BYTES // 2) for _ in range(2)))
    assert found == [False, False]
    assert part.read_text() == "a" * BIG_BYTES


def test_a_file_with_the_name_of_the_folder_where_older_clients_leave_parts(node: Node, here: Path) -> None:
    make(here, {"a": "a" * 600}, 10**18)
    older = staging(node, plan(node, here)["push"]) / ".gpuops-partial"
    older.mkdir()
    (older / "a").write_text("a" * 400)
    make(here, {"a": "a" * 600, ".gpuops-partial": "mine"}, 10**18)
    receive(node, (answer := plan(node, here))["push"], stream_of(here, listed(here), answer["need"]))
    commit(node, answer["push"])
    assert contents(Path(node.tree("project"))) == contents(here)


def by_rsync(node: Node, here: Path, push: str) -> None:  # noqa: ARG001
    asked = ["--server", "-tIRe.LsfxCIvu", ".", "files"]
    channel = InProcessClient(Path(node.dir)).bulk("rsync-receive", "--tree", "project", "--push", push, *asked)
    channel.stdin.close()
    channel.wait(60)
    channel.close()


def commit_unfinished(node: Node, here: Path, push: str) -> None:  # noqa: ARG001
    with pytest.raises(Refusal, match="has not arrived"):
        commit(node, push)


ENDING: dict[str, Callable[[Node, Path, str], object]] = {
    "plan": lambda node, here, _: plan(node, here),
    "receive": lambda node, here, push: receive(node, push, stream_of(here, listed(here), [0])),
    "rsync-receive": by_rsync,
    "commit": commit_unfinished,
}


@pytest.mark.parametrize("who", [*ENDING, "one that is not polite"])
def test_an_rsync_that_still_writes_is_ended(node: Node, here: Path, monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    polite = who in ENDING
    monkeypatch.setattr(rsync_receiver, "END_S", 60.0 if polite else 0.2)
    make(here, {"a": "a" * 600}, 10**18)
    answer = plan(node, here)
    script = f"trap {'exit 0' if polite else ''!r} TERM; echo up; while :; do sleep 0.05; done"
    with open(node.path("trees", "project.rsync"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        writer = subprocess.Popen(
            ["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True, pass_fds=[lock.fileno()]
        )
        lock.write(str(writer.pid))
    assert writer.stdout
    writer.stdout.readline()
    ENDING.get(who, ENDING["receive"])(node, here, answer["push"])
    assert writer.wait(60) == (0 if polite else -signal.SIGKILL)
    writer.stdout.close()


def test_edits_are_told_with_what_was_pushed(node: Node, here: Path) -> None:
    make(here, {"a": "1", "b": "2", "c": "3", "l->a": None}, 10**18)
    push(node, here)
    there = Path(node.tree("project"))
    (there / "a").write_text("edited")
    (there / "b").unlink()
    os.utime(there / "c", ns=(5, 5))
    (there / "mine").write_text("a run's")
    answer = push_steps.edits(node, {"tree": "project"}, ignore)["files"]
    assert [(file["path"], file["state"]) for file in answer] == [("a", "changed"), ("b", "deleted"), ("c", "changed")]
    assert answer[0]["pushed"] == listed(here)[0][1:]


def sent(node: Node, paths: list[str], *arguments: str) -> dict[str, tarfile.TarInfo]:
    out = io.BytesIO()
    assert tar_streams.send(node, list(arguments), io.BytesIO(json.dumps(paths).encode()), out) == 0
    with tarfile.open(fileobj=io.BytesIO(out.getvalue()), encoding="utf-8", errors="surrogateescape") as tar:
        return {member.name: member for member in tar}


def test_send_leaves_out_what_is_gone_and_names_arrive(node: Node, here: Path) -> None:
    odd = ["two\nlines", "q'\"", "ünï", "raw\udcff", "n" * 200, "deep/" * 40 + "x"]
    make(here, {**dict.fromkeys(odd, "text"), "link->q'\"": None}, 10**18)
    push(node, here)
    os.mkfifo(node.path("project", "pipe"))
    members = sent(node, [*odd, "link", "gone", "pipe", "deep"], "--tree", "project")
    assert list(members) == [*odd, "link"]
    assert members["link"].issym()


def test_a_run_sends_what_its_links_lead_to(node: Node, here: Path) -> None:
    make(here, {"a": "12345", "latest->a": None}, 10**18)
    push(node, here)
    os.makedirs(node.run("digits-1"))
    Path(node.run("digits-1"), "spec.json").write_text(json.dumps({"tree": "project"}))
    assert sent(node, ["latest"], "--run", "digits-1")["latest"].size == 5
    with pytest.raises(Refusal) as refused:
        sent(node, [], "--run", "none")
    assert refused.value.kind == "no-run"


@pytest.mark.parametrize("now", [b"", b"short", b"x" * 20])
def test_a_member_is_as_long_as_announced(now: bytes) -> None:
    padded = Padded(io.BytesIO(now), 10)
    data = b"".join(iter(lambda: padded.read(4), b""))
    assert data == (now + bytes(10))[:10]


# A push that is killed. Version one lies on the node, version two is on its way.

ONE: Files = {
    "train.py": "one", "same": "same", "lib/a": "a1", "lib/b": "b1", "old/deep/x": "x", "turns": "file",
    "folder/in": "in", "link->train.py": None, "was->same": None,
}  # fmt: skip
TWO: Files = {
    "train.py": "two!", "same": "same", "lib/a": "a2", "lib/c": "c2", "new/deep/y": "y", "turns/into": "folder",
    "folder": "file", "link->lib": None, "was": "no link",
}  # fmt: skip
RUN: Files = {"model.pt": "weights", "lib/log": "epoch 1"}
EFFECTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.chmod", "os.utime", "shutil.rmtree"}


@pytest.fixture
def versions(tmp_path: Path) -> tuple[Path, Path]:
    make(tmp_path / "one", ONE, 10**18)
    make(tmp_path / "two", TWO, 10**18 + 7)
    os.utime(tmp_path / "two" / "same", ns=(10**18, 10**18))
    return tmp_path / "one", tmp_path / "two"


def killed_at(effect: int, work: Callable[[], object]) -> bool:
    """Do `work` in a process that dies by SIGKILL just before its n-th change to the disk; whether it died."""
    pid = os.fork()
    if pid == 0:
        left = [effect]

        def hook(event: str, _: object) -> None:
            if event in EFFECTS:
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert status in (0, signal.SIGKILL)
    return status != 0


def test_a_commit_killed_before_any_of_its_steps_heals(tmp_path: Path, versions: tuple[Path, Path]) -> None:
    one, two = versions
    base = Node(str(tmp_path / "base"))
    os.makedirs(base.dir)
    push(base, one)
    for path, text in RUN.items():
        assert text is not None
        Path(base.tree("project"), path).write_text(text)
    answer = plan(base, two)
    receive(base, answer["push"], stream_of(two, listed(two), answer["need"]))
    effect = 0
    while True:
        results = []
        for name, again in (("forth", two), ("back", one))[: 1 + (effect % 3 == 0)]:
            node = Node(str(tmp_path / f"{name}{effect}"))
            shutil.copytree(base.dir, node.dir, symlinks=True)
            died = killed_at(effect, lambda node=node: commit(node, answer["push"]))  # type: ignore[misc]
            results.append(died)
            changed = push_steps.edits(node, {"tree": "project"}, ignore)["files"]
            assert changed == [], f"after {effect} effects our own push looks like an edit"
            healed = push(node, again)
            assert healed["kept"] == []
            assert contents(Path(node.tree("project"))) == {**contents(again), **RUN}, f"killed after {effect}"
            assert os.listdir(node.path("incoming")) == []
            assert push_steps.edits(node, {"tree": "project"}, ignore)["files"] == []
            shutil.rmtree(node.dir)
        if not any(results):
            break
        effect += 1
    assert effect > 20


def test_an_edit_after_a_killed_commit_is_not_lost(versions: tuple[Path, Path], node: Node) -> None:
    one, two = versions
    push(node, one)
    answer = plan(node, two)
    receive(node, answer["push"], stream_of(two, listed(two), answer["need"]))
    assert killed_at(24, lambda: commit(node, answer["push"]))  # all is placed, and not yet recorded
    Path(node.tree("project"), "train.py").write_text("edited after")
    assert plan(node, two)["conflicts"] == ["train.py"]
    assert Path(node.tree("project"), "train.py").read_text() == "edited after"


def drained(stream: Any) -> bool:
    """Whether the other end has read everything from this pipe."""
    waiting = fcntl.ioctl(stream.fileno(), termios.FIONREAD, b"\0" * 4)
    return bool(struct.unpack("i", waiting)[0] == 0)


def test_a_transfer_killed_anywhere_heals(tmp_path: Path) -> None:
    chance = random.Random(1)
    here = tmp_path / "here"
    make(here, {f"f{index}": "x" * chance.randrange(40_000) for index in range(30)}, 10**18)
    client = InProcessClient(tmp_path / "n0")
    files = listed(here)
    for _ in range(20):
        answer = plan(client.node, here)
        data = stream_of(here, files, answer["need"])
        cut = chance.randrange(min(len(data), 60_000))
        channel = client.bulk("receive", "--tree", "project", "--push", answer["push"])
        channel.stdin.write(data[:cut])
        until = time.monotonic() + 600
        while not drained(channel.stdin) and time.monotonic() < until:
            time.sleep(0.002)
        channel.close()  # SIGKILL
        if not answer["need"]:
            break
    push(client.node, here)
    assert contents(Path(client.node.tree("project"))) == contents(here)


@pytest.mark.parametrize("seed", range(4))
def test_no_edit_is_ever_lost(tmp_path: Path, node: Node, seed: int) -> None:
    """Pushes, edits on both sides and kills in any order: what somebody wrote on the node stays there."""
    chance = random.Random(seed)
    here, there = tmp_path / "here", Path(node.tree("project"))
    here.mkdir()
    paths = ["a", "b", "d/c", "d/e"]
    theirs: dict[str, str] = {}
    unsure: set[str] = set()  # the same on both sides, in a push that was killed: still theirs, or ours now
    for step in range(80):
        path = chance.choice(paths)
        action = chance.choice(["local", "local", "delete", "node", "push", "push", "push", "killed"])
        if action == "local":
            (here / path).parent.mkdir(exist_ok=True)
            (here / path).write_text(f"here {step:03d}")
        elif action == "delete":
            (here / path).unlink(missing_ok=True)
        elif action == "node":
            (there / path).parent.mkdir(parents=True, exist_ok=True)
            (there / path).write_text(f"node {step:03d}")
            theirs[path] = f"node {step:03d}"
            unsure.discard(path)
        else:
            answer = plan(node, here)
            if answer["conflicts"]:
                assert set(answer["conflicts"]) <= set(theirs) | unsure
                if chance.random() < 0.5:  # as after `pull --edits`
                    for conflict in answer["conflicts"]:
                        shutil.copyfile(there / conflict, here / conflict)
                continue
            receive(node, answer["push"], stream_of(here, listed(here), answer["need"]))
            if action == "killed":
                killed_at(chance.randrange(12), lambda answer=answer: commit(node, answer["push"]))  # type: ignore[misc]
            else:
                commit(node, answer["push"])
                ours = contents(here)
                left = {at: text for at, text in contents(there).items() if at in ours or at not in unsure}
                assert left == {**ours, **theirs}
            same = {edited for edited, text in theirs.items() if text == _text(here / edited)}
            unsure = unsure | same if action == "killed" else unsure - set(ours)
            theirs = {edited: text for edited, text in theirs.items() if edited not in same}
        for edited, text in theirs.items():
            assert (there / edited).read_text() == text, f"step {step}, {action} {path}"


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _replace_by_link(folder: Path) -> None:
    folder.rename(folder.parent.parent / "elsewhere")
    folder.symlink_to(folder.parent.parent / "elsewhere")


MEANWHILE: dict[str, tuple[bool, Callable[[Path], object]]] = {
    "nothing": (True, lambda _: None),
    "edited": (False, lambda there: (there / "d" / "a").write_text("2")),
    "same bytes, other time": (False, lambda there: os.utime(there / "d" / "a", ns=(5, 5))),
    "mode": (False, lambda there: (there / "d" / "a").chmod(0o700)),
    "gone": (False, lambda there: (there / "d" / "a").unlink()),
    "folder gone": (False, lambda there: shutil.rmtree(there)),
    "other link": (False, lambda there: ((there / "l").unlink(), (there / "l").symlink_to("b"))),
    "no link": (False, lambda there: ((there / "l").unlink(), (there / "l").mkdir())),
    "folder is a link": (False, lambda there: _replace_by_link(there / "d")),
    "of a run": (True, lambda there: (there / "model.pt").write_text("weights")),
}


def test_a_list_with_a_path_twice_is_refused_for_an_unchanged_tree_too(node: Node, here: Path) -> None:
    make(here, {"a": "1", "b": "2"}, 10**18)
    push(node, here)
    with pytest.raises(Refusal, match="listed twice"):
        push_steps.plan(node, {"tree": "project", "files": [*listed(here), listed(here)[1]]}, ignore)


@pytest.mark.parametrize("left", ["pending", "leaving"])
def test_what_a_killed_commit_was_about_to_do_is_cleared_though_nothing_changed(
    node: Node, here: Path, left: str
) -> None:
    make(here, {"a": "1"}, 10**18)
    push(node, here)
    record = load_record(node, "project")
    store_record(node, "project", record._replace(**{left: record.files if left == "pending" else ["b"]}))
    assert push(node, here)["push"]
    assert load_record(node, "project") == record


@pytest.mark.parametrize("what", MEANWHILE)
def test_an_unchanged_tree_is_seen_soon_and_any_other_looked_at_closely(
    node: Node, here: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    make(here, {"d/a": "1", "b": "2", "l->d/a": None}, 10**18)
    push(node, here)
    is_same, change = MEANWHILE[what]
    change(Path(node.tree("project")))
    looks: list[object] = []
    survey = push_steps.survey
    monkeypatch.setattr(push_steps, "survey", lambda *args: (looks.append(args), survey(*args))[1])
    with contextlib.suppress(Refusal):
        plan(node, here)
    assert bool(looks) is not is_same


def test_a_plan_changes_nothing(node: Node, here: Path) -> None:
    make(here, {"a": "1"}, 10**18)
    push(node, here)
    before = contents(Path(node.tree("project")))
    make(here, {"b": "2"}, 10**18)
    assert plan(node, here)["stale"] == ["a"]
    assert contents(Path(node.tree("project"))) == before
