"""From a folder here to a folder on a node and back, by real processes."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuops.core.errors import ConnectionLost, NodeRefused, UsageError
from gpuops.sync.project_files import FileEntry
from gpuops.sync.scan import Tree, scan, summary
from gpuops.sync.secret_scan import MAX_WHOLE_BYTES
from gpuops.sync.upload import PushReport
from gpuops.transport.file_schemas import NodeEdit, NodeEdits
from tests.conftest import open_folder, without_root
from tests.fakes.inprocess import InProcessClient
from tests.integration.sync.push_world import World, contents

TOKEN = "hf_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF3hJ6"


@pytest.fixture
def world(project: Path, node: InProcessClient, tmp_path: Path) -> World:
    return World(project, node, tmp_path / "cache")


def test_stale_files_go_and_what_a_run_made_stays(world: World) -> None:
    world.push()
    (world.there / "model.pt").write_bytes(b"weights")
    (world.there / "out").mkdir()
    (world.there / "out" / "log").write_text("epoch 1")
    shutil.rmtree(world.here / "lib")
    assert world.push().removed == 1
    assert not (world.there / "lib").exists()
    assert (world.there / "model.pt").read_bytes() == b"weights"
    assert (world.there / "out" / "log").exists()


def test_a_stale_file_that_was_edited_there_stays(world: World) -> None:
    world.push()
    (world.there / "lib" / "util.py").write_text("edited on the node")
    (world.here / "lib" / "util.py").unlink()
    report = world.push()
    assert report.removed == 0
    assert report.kept == ["lib/util.py"]
    assert (world.there / "lib" / "util.py").read_text() == "edited on the node"


def test_an_edit_there_is_kept_while_ours_is_unchanged(world: World) -> None:
    world.push()
    (world.there / "train.py").write_text("edited on the node")
    assert world.push().kept == ["train.py"]
    assert world.push().kept == ["train.py"]
    assert (world.there / "train.py").read_text() == "edited on the node"


def test_edits_on_both_sides_stop_the_push(world: World) -> None:
    world.push()
    (world.there / "train.py").write_text("edited on the node")
    (world.here / "train.py").write_text("edited here")
    (world.here / "other.py").write_text("new")
    with pytest.raises(UsageError) as refused:
        world.push()
    assert refused.value.message == "train.py was edited on node0 since the last push and differs here"
    assert refused.value.hint == "`gpuops pull --edits` brings it home, beside yours; `--overwrite` sends yours"
    assert (world.there / "train.py").read_text() == "edited on the node"
    assert not (world.there / "other.py").exists()

    world.push(overwrite=True)
    assert contents(world.there) == contents(world.here)


def test_the_same_edit_on_both_sides_is_no_conflict(world: World) -> None:
    world.push()
    (world.there / "train.py").write_text("same edit\n")
    (world.here / "train.py").write_text("same edit\n")
    assert world.push() == PushReport("node0", 0, 0, 0, [])
    assert contents(world.there) == contents(world.here)
    assert world.node.call("edits", tree="project").files == []


def test_a_file_of_the_same_size_made_by_a_run_is_not_overwritten(world: World) -> None:
    world.push()
    (world.there / "result.txt").write_text("theirs")
    (world.here / "result.txt").write_text("ours!!")
    with pytest.raises(UsageError, match=r"result\.txt was edited on node0"):
        world.push()
    assert (world.there / "result.txt").read_text() == "theirs"


def test_a_newer_push_makes_an_older_one_void(world: World) -> None:
    answer = world.node.call("plan", tree="project", files=[file.wire for file in world.scan().files])
    world.push()
    with pytest.raises(NodeRefused) as refused:
        world.node.call("commit", tree="project", push=answer.push)
    assert refused.value.kind == "superseded"
    channel = world.node.bulk("receive", "--tree", "project", "--push", answer.push)
    channel.stdin.close()
    assert channel.wait(600) == 1
    assert "another push has begun" in channel.errors()
    channel.close()


def test_edits_come_home(world: World) -> None:
    world.push()
    (world.there / "train.py").write_text("better\n")
    (world.there / "lib" / "util.py").write_text("theirs\n")
    (world.here / "lib" / "util.py").write_text("ours\n")
    (world.there / "run.sh").unlink()

    brought = world.edits()

    assert [item.say for item in brought] == [
        "lib/util.py changed here and on node0: the node's lies beside it as util.py.node0",
        "train.py came home from node0",
    ]
    assert (world.here / "train.py").read_text() == "better\n"
    assert (world.here / "lib" / "util.py").read_text() == "ours\n"
    assert (world.here / "lib" / "util.py.node0").read_text() == "theirs\n"
    assert (world.here / "run.sh").exists()
    assert not list(world.here.rglob("*.part"))
    assert world.edits() == []


def test_two_nodes_with_different_edits_both_come_home(world: World, tmp_path: Path) -> None:
    nodes = [InProcessClient(tmp_path / f"m{index}", f"node{index}") for index in range(2)]
    world.push_to(nodes)
    for index, node in enumerate(nodes):
        (Path(node.node.dir) / "project" / "train.py").write_text(f"edit {index}")
        world.pull(node)
    assert (world.here / "train.py").read_text() == "edit 0"
    assert (world.here / "train.py.node1").read_text() == "edit 1"


def test_what_lies_below_a_link_by_now_stays_there(world: World) -> None:
    world.push()
    (world.there / "lib" / "util.py").write_text("theirs\n")
    (world.there / "train.py").write_text("better\n")
    shutil.move(world.here / "lib", world.here.parent / "elsewhere")
    (world.here / "lib").symlink_to("../elsewhere")
    brought, refused = world.pull()
    assert [one.path for one in brought] == ["train.py"]
    assert refused == "lib/util.py lies below a link here"
    assert (world.here.parent / "elsewhere" / "util.py").read_text() == "x = 1\n"
    assert len(list((world.here.parent / "elsewhere").iterdir())) == 1


def test_what_was_kept_on_a_node_is_still_known_to_be_ours(world: World) -> None:
    """A file that is no more here, and was edited there before the push that would have removed it."""
    world.push()
    (world.there / "lib" / "util.py").write_text("edited on the node")
    (world.here / "lib" / "util.py").unlink()
    world.push()
    assert [one.say for one in world.edits()] == ["lib/util.py came home from node0"]
    assert len(list((world.cache.parent / "home" / "pushed").glob("*/*"))) == 2, "one list, and which node has it"


def test_a_push_that_was_cut_is_in_the_record(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is committed, and both until the next one is."""
    world.push()
    (world.here / "train.py").write_text("print('two')\n")
    call = world.node.call

    def cut(verb: str, timeout: float = 60.0, **args: Any) -> dict[str, Any]:
        answer = call(verb, timeout, **args)
        if verb == "commit":
            raise ConnectionLost("the answer is lost")
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(world.node, "call", cut)
        with pytest.raises(ConnectionLost):
            world.push()
    assert len(world.record.files("node0")["train.py"]) == 2
    (world.there / "train.py").write_text("better\n")
    assert [one.beside for one in world.edits()] == [False], "it is as it was when it was pushed"
    world.push()
    assert len(world.record.files("node0")["train.py"]) == 1


@pytest.mark.parametrize("path", ["../escaped", "/tmp/escaped", ".git/hooks/post-checkout", "out/escaped", "a/../../b"])
def test_a_node_cannot_write_elsewhere_at_home(world: World, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (world.here.parent / "outside").mkdir()
    (world.here / "out").symlink_to("../outside")
    lie = NodeEdits([NodeEdit(path, "changed")])
    monkeypatch.setattr(world.node, "call", lambda *_, **__: lie)
    before = contents(world.here.parent)
    assert world.pull() == ([], f"{path} was not pushed there from this computer")
    assert contents(world.here.parent) == before


@pytest.fixture
def repository(world: World) -> Callable[..., None]:
    if shutil.which("git") is None:
        pytest.skip("needs git")

    def git(*command: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", *identity, *command], cwd=world.here, check=True, capture_output=True)

    git("init", "-q")
    return git


def test_keys_are_held_back(world: World, repository: Callable[..., None]) -> None:
    (world.here / "notes.txt").write_text(TOKEN)
    (world.here / ".env").write_text("A=1")
    repository("add", "train.py")
    tree = world.scan()
    assert {held.path: held.why for held in tree.held} == {
        "notes.txt": "a secret of the kind huggingface-access-token",
        ".env": "a file of secrets by its name",
    }
    assert {file.path for file in tree.files} == {"train.py", "run.sh", "lib/util.py"}
    assert summary(tree)[-1] == "held back: notes.txt (a secret of the kind huggingface-access-token)"
    world.push()
    assert not any(TOKEN.encode() in path.read_bytes() for path in world.there.parent.rglob("*") if path.is_file())
    assert "notes.txt" in {file.path for file in world.scan("notes.*").files}


def test_what_is_not_searched_whole_is_said(tmp_path: Path) -> None:
    tree = Tree(
        tmp_path, [FileEntry(f"{size}.bin", size, 0, 0o644) for size in (1, MAX_WHOLE_BYTES, MAX_WHOLE_BYTES + 1)]
    )
    assert summary(tree)[-1] == "1 file above 256.0 MB searched for keys at the beginning and the end only"


@pytest.mark.parametrize(
    ("name", "why"), [("train.py", "a secret of the kind huggingface-access-token"), (".env", "a file of secrets")]
)
def test_a_key_that_git_tracks_stops_the_push(
    world: World, repository: Callable[..., None], name: str, why: str
) -> None:
    (world.here / name).write_text(f"token = '{TOKEN}'")
    repository("add", name)
    with pytest.raises(UsageError) as refused:
        world.scan()
    assert name in refused.value.message
    assert why in refused.value.message
    assert TOKEN not in refused.value.message
    assert f"--send-anyway {name}" in refused.value.hint
    assert name in {file.path for file in world.scan(name).files}


def test_the_commit_is_told(world: World, repository: Callable[..., None]) -> None:
    assert (world.scan().commit, world.scan().dirty) == (None, False)
    repository("add", ".")
    repository("commit", "-qm", "one")
    tree = world.scan()
    assert tree.commit is not None
    assert not tree.dirty
    (world.here / "train.py").write_text("other")
    assert world.scan().dirty


def test_the_five_biggest_are_named(world: World) -> None:
    for index in range(7):
        (world.here / f"d{index}").write_bytes(bytes((index + 1) * 1_000_000))
    lines = summary(world.scan())
    assert lines == [
        "10 files, 28.0 MB",
        "biggest: d6 (7.0 MB), d5 (6.0 MB), d4 (5.0 MB), d3 (4.0 MB), d2 (3.0 MB)",
    ]


def test_an_unreadable_file_is_named() -> None:
    with open_folder() as folder:
        (folder / "secret").write_text("x")
        (folder / "secret").chmod(0)
        with without_root(), pytest.raises(UsageError, match="secret cannot be read"):
            scan(folder, folder / "cache")


@pytest.mark.parametrize(("number", "why"), [(errno.EIO, "Input/output error"), (errno.ELOOP, "Too many levels")])
def test_a_folder_that_cannot_be_read_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch, number: int, why: str
) -> None:
    look = os.scandir

    def scandir(path: Path) -> Any:
        if str(path).endswith("src"):
            raise OSError(number, os.strerror(number), str(path))
        return look(path)

    (world.here / "src").mkdir(exist_ok=True)
    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(UsageError, match=f"src cannot be read: {why}") as refused:
        world.scan()
    assert refused.value.hint == "list it in .gpuopsignore"


def test_a_folder_that_vanishes_meanwhile_is_not_missed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    look = os.scandir

    def scandir(path: Path) -> Any:
        if str(path).endswith("brief"):
            (world.here / "brief").rmdir()
        return look(path)

    (world.here / "brief").mkdir()
    monkeypatch.setattr(os, "scandir", scandir)
    assert "train.py" in {file.path for file in world.scan().files}
