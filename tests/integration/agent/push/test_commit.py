"""A node's end of a push, the commit: what was staged comes to its place, and one that was killed heals."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuops.agent.files import push_steps
from gpuops.agent.node import Node, Refusal
from tests.integration.agent.push.tree import (
    Files,
    commit,
    contents,
    ignore,
    listed,
    make,
    plan,
    push,
    receive,
    staging,
    stream_of,
)


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
