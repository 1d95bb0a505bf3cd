"""Which run made what lies in a tree, as the node sees it: inventories, pushes, and files that were put back."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any

import pytest

from gpuops.agent import wire_format
from gpuops.agent.files import earlier_outputs, output_files, push_steps, transfer_modes
from gpuops.agent.files.earlier_outputs import restore
from gpuops.agent.files.folder import stat_entry
from gpuops.agent.files.push_comparison import Record, store_record
from gpuops.agent.files.push_decision import Written
from gpuops.agent.node import Node, Refusal, write_json


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(str(tmp_path / "n0"))
    os.makedirs(node.tree("project"))
    return node


def put(node: Node, path: str, text: str = "x") -> Path:
    file = Path(node.tree("project"), path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def push(node: Node, path: str) -> None:
    entry = stat_entry(os.fsencode(put(node, path))).entry
    store_record(node, "project", Record({path: Written(entry, entry)}, {}, []))


def start(node: Node, run: str, tree: str = "project") -> None:
    """What the agent's `start` leaves in the run's folder."""
    os.makedirs(node.run(run))
    write_json(node.path("runs", run, "inventory.json"), output_files.take_inventory(node, tree, ["*.pt"]))
    write_json(node.path("runs", run, "spec.json"), {"tree": tree})


def made(node: Node, *runs: str) -> dict[str, tuple[str, bool]]:
    answer = earlier_outputs.made(node, {"tree": "project", "patterns": ["*.pt"], "runs": runs}, lambda _item: None)
    assert all(os.stat(node.path("project", row[0])).st_mtime_ns == row[2] for row in answer["files"])
    return {path: (run, restored) for path, _size, _mtime_ns, run, restored in answer["files"]}


def test_a_file_is_of_the_latest_run_that_did_not_find_it(node: Node) -> None:
    put(node, "by-hand.pt")
    start(node, "a-1")
    put(node, "of-a.pt")
    put(node, "both.pt", "a")
    put(node, "notes.txt")
    start(node, "b-1")
    put(node, "both.pt", "b")
    os.utime(put(node, "old.pt"), ns=(1, 1))

    assert made(node, "a-1", "gone-1", "b-1") == {
        "by-hand.pt": ("", False), "of-a.pt": ("a-1", False), "both.pt": ("b-1", False), "old.pt": ("b-1", False),
    }  # fmt: skip


def test_what_was_pushed_counts_once_a_run_has_changed_it(node: Node) -> None:
    push(node, "snapshot.pt")
    start(node, "a-1")
    assert made(node, "a-1") == {}
    put(node, "snapshot.pt", "of a")
    assert made(node, "a-1") == {"snapshot.pt": ("a-1", False)}


def test_a_file_that_was_put_back_is_of_its_run_until_it_changes(node: Node) -> None:
    start(node, "a-1")
    put(node, "snapshot.pt")
    stream = wire_format.head("snapshot.pt", 5) + b"of 40" + wire_format.END
    assert restore(node, ["--tree", "project", "--of", "old-7"], io.BytesIO(stream), io.BytesIO()) == 0
    assert made(node, "a-1") == {"snapshot.pt": ("old-7", True)}
    start(node, "b-1")
    put(node, "snapshot.pt", "of b")
    assert made(node, "a-1", "b-1") == {"snapshot.pt": ("b-1", False)}


def put_back(node: Node, path: str, content: bytes) -> None:
    stream = wire_format.head(path, len(content)) + content + wire_format.END
    assert restore(node, ["--tree", "project", "--of", "old-7"], io.BytesIO(stream), io.BytesIO()) == 0


def test_a_linked_folder_takes_files_and_loses_none_that_is_not_known(node: Node, tmp_path: Path) -> None:
    """`outputs` may be on a larger disk, and there are files of no run of ours there."""
    disk = tmp_path / "disk"
    disk.mkdir()
    (disk / "theirs.pt").write_text("theirs")
    Path(node.tree("project"), "outputs").symlink_to(disk)
    for content in (b"of 40", b"of 50"):
        put_back(node, "outputs/deep/a.pt", content)
        assert (disk / "deep/a.pt").read_bytes() == content
    (disk / "same.pt").write_text("same")
    put_back(node, "outputs/same.pt", b"same")
    (disk / "deep/a.pt").write_text("by a run")
    for path in ("outputs/theirs.pt", "outputs/deep/a.pt"):
        with pytest.raises(Refusal, match="'outputs' on this node is not a folder"):
            put_back(node, path, b"other")
    assert sorted(path.name for path in disk.rglob("*")) == ["a.pt", "deep", "same.pt", "theirs.pt"]
    assert (disk / "theirs.pt").read_text() == "theirs"
    assert os.listdir(node.path("incoming")) == []
    disk.rename(tmp_path / "away")
    with pytest.raises(Refusal, match="'outputs' on this node is not a folder"):
        put_back(node, "outputs/new.pt", b"new")


def test_what_a_cut_stream_had_put_back_is_of_its_run_as_well(node: Node) -> None:
    start(node, "a-1")
    stream = wire_format.head("snapshot.pt", 5) + b"of 40" + wire_format.head("next.pt", 5) + b"of"
    with pytest.raises(Refusal, match="ended early"):
        restore(node, ["--tree", "project", "--of", "old-7"], io.BytesIO(stream), io.BytesIO())
    assert made(node, "a-1") == {"snapshot.pt": ("old-7", True)}
    assert os.listdir(node.path("incoming")) == [], "a snapshot's size would be lost each time"


def test_a_disk_that_is_full_is_told_as_such(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(earlier_outputs, "restore", fill)
    monkeypatch.setattr(push_steps, "receive", fill)
    for mode in ("restore", "receive"):
        with pytest.raises(Refusal, match="the disk is full"):
            transfer_modes.main(mode, ["--node", node.dir])


def test_a_run_in_another_tree_made_nothing_in_this_one(node: Node) -> None:
    put(node, "snapshot.pt")
    start(node, "digits-1", tree="train")
    assert made(node, "digits-1") == {"snapshot.pt": ("", False)}


def test_what_is_home_is_removed_and_what_changed_since_stays(node: Node) -> None:
    status = os.stat(put(node, "deep/snapshot.pt"))
    changed = put(node, "changed.pt")
    files = [
        ["deep/snapshot.pt", status.st_size, status.st_mtime_ns],
        ["changed.pt", 1, os.stat(changed).st_mtime_ns - 1],
        ["gone.pt", 1, 1],
    ]
    assert earlier_outputs.remove_unchanged(node, "project", files) == 1
    assert os.listdir(node.tree("project")) == ["changed.pt"]


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", ""])
def test_nothing_outside_the_tree_is_removed(node: Node, path: str) -> None:
    files: list[Any] = [[path, 1, 1]]
    with pytest.raises(Refusal, match="not a path inside the tree"):
        earlier_outputs.remove_unchanged(node, "project", files)
