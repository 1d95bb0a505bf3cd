"""What no pattern names: seen on the node, small things worth bringing, the rest named."""

from __future__ import annotations

import dataclasses
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from gpuops.agent.files import output_files
from gpuops.agent.files.output_files import compile_patterns
from gpuops.core.context import Context
from gpuops.core.errors import NodeError
from gpuops.core.models import Resource
from gpuops.core.platform import System
from gpuops.core.reporting import Silent
from gpuops.core.safe_folder import SafeFolder
from gpuops.ledger.store import ClusterRow
from gpuops.sync import pull_edits
from gpuops.sync.scan import scan
from gpuops.sync.unmatched_files import (
    MAX_UNASKED_BYTES,
    MAX_UNASKED_FILES,
    UnmatchedFile,
    choose_unasked,
    describe_unmatched_files,
    exact_patterns,
    list_unmatched_files,
    save_unmatched_files,
)
from gpuops.sync.upload import push_many
from gpuops.transport.connection import ProcessChannel
from gpuops.transport.rpc import AgentClient
from tests.fakes.inprocess import InProcessClient


@pytest.fixture
def client(tmp_path: Path) -> InProcessClient:
    """A node that a project of two files and a link was pushed to."""
    project = tmp_path / "project"
    (project / "sub").mkdir(parents=True)
    (project / "train.py").write_text("print(1)\n")
    (project / "sub" / "same.txt").write_text("same\n")
    (project / "link").symlink_to("train.py")
    one = InProcessClient(tmp_path / "root" / "c" / "n0")
    push_many([one], "project", scan(project, tmp_path / "cache"), progress=Silent())  # type: ignore[list-item]
    return one


def there(client: InProcessClient) -> Path:
    return Path(client.node.tree("project"))


class Agent(InProcessClient, AgentClient):  # type: ignore[misc]
    """One that converses, where the others stand for its programs alone."""


def seen(client: InProcessClient, patterns: list[str]) -> dict[str, tuple[int, bool]]:
    found = list_unmatched_files({0: client}, patterns, tree="project")  # type: ignore[dict-item]
    return {one.path: (one.size, one.edited) for one in found}


def test_an_agent_says_what_is_left_and_a_program_where_it_refuses(
    client: InProcessClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent(Path(client.node.dir))
    (there(client) / "notes.txt").write_text("precious")
    assert seen(agent, []) == {"notes.txt": (8, False)}
    assert agent.asked == ["left"]
    monkeypatch.setattr(output_files, "MAX_LISTED_FILES", 0)
    assert seen(agent, []) == {"notes.txt": (8, False)}
    assert agent.asked == ["left", "left", "left"], "the second one is refused"


def test_what_was_pushed_is_not_left(client: InProcessClient) -> None:
    assert seen(client, []) == {}


def test_edits_and_new_files_are_left_unless_a_pattern_names_them(client: InProcessClient, tmp_path: Path) -> None:
    outside = tmp_path / "dataset"
    outside.mkdir()
    (outside / "huge.bin").write_text("not ours")
    (there(client) / "data").symlink_to(outside)
    (there(client) / "train.py").write_text("print(22)\n")
    (there(client) / "metrics [1].json").write_text("{}")
    (there(client) / "model.pt").write_text("weights")
    assert seen(client, ["*.pt"]) == {"train.py": (10, True), "metrics [1].json": (2, False)}
    assert exact_patterns([UnmatchedFile(0, "metrics [1].json", 2, 0, False)]) == ["./metrics [[]1].json"]


def test_what_the_user_gives_up_is_not_left(client: InProcessClient) -> None:
    (there(client) / "data").mkdir()
    for name in ("data/a.bin", "data/keep.bin", "!odd", "x.json"):
        (there(client) / name).write_text("1")
    assert set(seen(client, ["!data/*"])) == {"!odd", "x.json"}
    everything = list_unmatched_files({0: client}, [], tree="project")  # type: ignore[dict-item]
    matches = compile_patterns([*exact_patterns(everything), "!data/a*"])
    assert [one.path for one in everything if matches(one.path)] == ["!odd", "data/keep.bin", "x.json"]


def test_small_things_are_worth_it_and_large_ones_are_named() -> None:
    small, large = UnmatchedFile(0, "a.json", 10, 0, False), UnmatchedFile(1, "b.bin", MAX_UNASKED_BYTES + 1, 0, False)
    assert choose_unasked([small, large]) == ([small], [large])
    assert describe_unmatched_files([large]) == "b.bin (100.0 MB, node1)"
    many = [UnmatchedFile(0, f"{index}", 1, 0, index == 0) for index in range(MAX_UNASKED_FILES + 1)]
    assert choose_unasked(many) == (many[:1], many[1:])


def test_saving_copies_byte_for_byte(client: InProcessClient, tmp_path: Path) -> None:
    data = os.urandom(300_000)
    (there(client) / "deep").mkdir()
    (there(client) / "deep" / "x y.npy").write_bytes(data)
    found = list_unmatched_files({0: client}, [], tree="project")  # type: ignore[dict-item]
    saved = save_unmatched_files(client, "project", found, SafeFolder(tmp_path / "saved"))  # type: ignore[arg-type]
    assert (tmp_path / "saved" / "deep" / "x y.npy").read_bytes() == data
    assert (saved.renamed, saved.missing) == ({}, [])


def test_a_name_with_a_backslash_is_left_and_lies_nowhere_else_on_windows(
    client: InProcessClient, tmp_path: Path
) -> None:
    (there(client) / "..\\evil.pt").write_text("x")
    found = list_unmatched_files({0: client}, [], tree="project")  # type: ignore[dict-item]
    saved = save_unmatched_files(client, "project", found, SafeFolder(tmp_path / "saved"), System("windows"))  # type: ignore[arg-type]
    assert saved.renamed == {"..\\evil.pt": ".._evil.pt"}
    assert (tmp_path / "saved" / ".._evil.pt").read_text() == "x"


def row(folder: Path, token: str) -> ClusterRow:
    return cast(ClusterRow, SimpleNamespace(id=1, name="lab", token=token, folder=folder, provider="aws"))


@pytest.fixture
def nobodys(client: InProcessClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    """A cluster without runs, on whose one node something was made."""
    client.connection = SimpleNamespace(close=lambda: None)  # type: ignore[attr-defined]
    monkeypatch.setattr(pull_edits, "nodes_of", lambda *_: [None])
    monkeypatch.setattr(pull_edits, "open_programs", lambda *_: client)
    (there(client) / "notes.txt").write_text("precious")
    nobody = SimpleNamespace(capabilities={})
    ledger = SimpleNamespace(runs=lambda **_: [])
    return cast(
        Context,
        SimpleNamespace(ledger=ledger, folder=tmp_path, provisioner=lambda _: nobody, provisioner_of=lambda _: nobody),
    )


def test_what_is_saved_of_one_cluster_is_not_overwritten_by_the_next(
    nobodys: Context, client: InProcessClient, tmp_path: Path
) -> None:
    def saves(token: str, text: str) -> str:
        (there(client) / "notes.txt").write_text(text)
        (said,) = pull_edits.save_cluster_edits(nobodys, row(tmp_path, token), Silent())
        return said

    runs = tmp_path / "runs"
    assert f"saved in {runs / 'lab-left' / 'node0'}:" in saves("one", "first")
    assert f"saved in {runs / 'lab-left-2' / 'node0'}:" in saves("two", "second")
    assert f"saved in {runs / 'lab-left-2' / 'node0'}:" in saves("two", "second, once more")
    saves("three", "third")
    saves("one", "first, once more")
    assert {path.parent.parent.name: path.read_text() for path in runs.glob("*/node0/notes.txt")} == {
        "lab-left": "first, once more", "lab-left-2": "second, once more", "lab-left-3": "third",
    }  # fmt: skip


def test_what_is_saved_is_on_the_disk_before_its_node_may_go(
    nobodys: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file's bytes, and the folder in which it was renamed, which was flushed after that."""
    on_disk: list[tuple[int, list[str]]] = []

    def fsync(handle: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(handle).st_mode)
        on_disk.append((os.fstat(handle).st_ino, os.listdir(handle) if is_folder else []))

    monkeypatch.setattr("gpuops.core.safe_folder.os.fsync", fsync)
    list(pull_edits.save_cluster_edits(nobodys, row(tmp_path, "one"), Silent()))
    folder = tmp_path / "runs" / "lab-left" / "node0"
    assert (folder / "notes.txt").stat().st_ino in [inode for inode, _ in on_disk]
    assert (folder.stat().st_ino, ["notes.txt"]) in on_disk


def test_what_a_node_copied_to_others_is_saved_once(
    nobodys: Context, client: InProcessClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy has its origin's time to the nanosecond; files that only look alike are each saved."""
    other = InProcessClient(tmp_path / "host1" / "lab" / "n1", "node1")
    other.connection = SimpleNamespace(close=lambda: None)
    nodes = {0: client, 1: other}
    monkeypatch.setattr(pull_edits, "nodes_of", lambda *_: [None, None])
    monkeypatch.setattr(pull_edits, "open_programs", lambda _row, _machine, index: nodes[index])
    for number, node in nodes.items():
        there(node).mkdir(exist_ok=True)
        for name, mtime_ns in (("copied.bin", 1_700_000_000_123_456_789), ("unpacked.bin", 1_700_000_000_000_000_000)):
            (there(node) / name).write_text(f"{name} {number}" if name == "unpacked.bin" else name)
            os.utime(there(node) / name, ns=(mtime_ns, mtime_ns))
    list(pull_edits.save_cluster_edits(nobodys, row(tmp_path, "one"), Silent()))
    saved = {str(path.relative_to(tmp_path / "runs" / "lab-left")) for path in tmp_path.glob("runs/lab-left/*/*")}
    assert saved == {"node0/notes.txt", "node0/copied.bin", "node0/unpacked.bin", "node1/unpacked.bin"}


def test_what_lies_in_the_project_already_is_not_saved_again(nobodys: Context, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("precious")
    assert list(pull_edits.save_cluster_edits(nobodys, row(tmp_path, "one"), Silent())) == []
    assert not (tmp_path / "runs").exists()
    (tmp_path / "notes.txt").write_text("precio0s")  # as long, and another
    (said,) = pull_edits.save_cluster_edits(nobodys, row(tmp_path, "one"), Silent())
    assert said.endswith("notes.txt (8 B, node0)")


@pytest.mark.parametrize(("rented", "ended"), [(True, True), (True, False), (False, True)])
def test_a_rented_machine_that_is_no_more_keeps_no_other_waiting(
    nobodys: Context,
    client: InProcessClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rented: bool,
    ended: bool,
) -> None:
    """node0 answers, and node1 does not; its provider says what has become of it."""

    def programs(_row: ClusterRow, machine: Resource, _index: int) -> InProcessClient:
        if machine.id == "m1":
            raise NodeError("m1 does not answer")
        return client

    machines = [Resource("machine", f"m{index}", "r", f"gpuops-0a1b2c3d-lab-{index}", True) for index in range(2)]
    monkeypatch.setattr(pull_edits, "nodes_of", lambda *_: machines)
    monkeypatch.setattr(pull_edits, "open_programs", programs)
    provider = SimpleNamespace(
        capabilities={"rented": rented},
        describe=lambda machine: dataclasses.replace(machine, state="ended" if ended else "running"),
    )
    nobodys.provisioner_of = lambda _: provider  # type: ignore[method-assign, assignment, return-value]
    saves = pull_edits.save_cluster_edits(nobodys, row(tmp_path, "one"), Silent())
    assert "saved in" in next(saves)
    if rented and ended:
        assert list(saves) == ["node1 has ended: what was edited or made there outside of runs is gone with it"]
    else:
        with pytest.raises(NodeError, match="m1 does not answer"):
            next(saves)


def test_what_a_node_does_not_send_is_not_said_to_be_saved(
    nobodys: Context, client: InProcessClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (there(client) / "secret.bin").write_text("roots")
    real = client.bulk

    def bulk(mode: str, *arguments: str) -> ProcessChannel:
        if mode == "send":  # to the login, a file that it may not read; tests may run as root, who reads all
            (there(client) / "secret.bin").unlink()
        return real(mode, *arguments)

    monkeypatch.setattr(client, "bulk", bulk)
    with pytest.raises(NodeError, match=r"^node0 does not give secret.bin \(5 B, node0\); what else .* is in "):
        list(pull_edits.save_cluster_edits(nobodys, row(tmp_path, "one"), Silent()))
    saved = tmp_path / "runs" / "lab-left" / "node0"
    assert {path.name: path.read_text() for path in saved.iterdir()} == {"notes.txt": "precious"}
