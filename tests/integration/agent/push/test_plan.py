"""A node's end of a push, the comparison: what is refused, what is needed, what was edited there."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuops.agent.files import push_steps
from gpuops.agent.files.push_comparison import load_record, store_record
from gpuops.agent.node import Node, Refusal
from tests.integration.agent.push.tree import (
    HOSTILE,
    contents,
    ignore,
    listed,
    make,
    plan,
    push,
    with_part,
)


@pytest.mark.parametrize("path", HOSTILE)
def test_paths_that_lead_outside_are_refused(node: Node, path: str) -> None:
    with pytest.raises(Refusal) as refused:
        push_steps.plan(node, {"tree": "project", "files": [[path, 1, 1, 0o644, None]]}, ignore)
    assert refused.value.kind == "bad-path"
    assert os.listdir(node.dir) == ["trees"], "the lock alone"


@pytest.mark.parametrize("name", ["../x", "a/b", "", "Project", "runs2"])
def test_names_of_trees(node: Node, name: str) -> None:
    with pytest.raises(Refusal):
        push_steps.plan(node, {"tree": name, "files": []}, ignore)


@pytest.mark.parametrize("paths", [["a", "a"], ["a", "a/b"]])
def test_a_list_that_no_folder_can_hold(node: Node, paths: list[str]) -> None:
    with pytest.raises(Refusal) as refused:
        push_steps.plan(node, {"tree": "project", "files": [[path, 1, 1, 0o644, None] for path in paths]}, ignore)
    assert refused.value.kind == "bad-path"


def test_a_list_with_a_path_twice_is_refused_for_an_unchanged_tree_too(node: Node, here: Path) -> None:
    make(here, {"a": "1", "b": "2"}, 10**18)
    push(node, here)
    with pytest.raises(Refusal, match="listed twice"):
        push_steps.plan(node, {"tree": "project", "files": [*listed(here), listed(here)[1]]}, ignore)


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


def test_a_plan_changes_nothing(node: Node, here: Path) -> None:
    make(here, {"a": "1"}, 10**18)
    push(node, here)
    before = contents(Path(node.tree("project")))
    make(here, {"b": "2"}, 10**18)
    assert plan(node, here)["stale"] == ["a"]
    assert contents(Path(node.tree("project"))) == before


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
