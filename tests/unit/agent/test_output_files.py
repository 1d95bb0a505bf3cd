"""Which files a run made, as the node sees it: real folders, real links, real bytes."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.agent.files import output_files
from gpuops.agent.node import Node, Refusal, write_json


@pytest.fixture
def node(tmp_path: Path) -> Node:
    node = Node(str(tmp_path / "n0"))
    os.makedirs(node.path("runs", "digits-1"))
    os.makedirs(node.tree("project"))
    return node


def put(node: Node, path: str, data: bytes = b"x") -> Path:
    file = Path(node.tree("project"), path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file


def start(node: Node, patterns: list[str]) -> None:
    """What the agent's `start` leaves in the run's folder."""
    write_json(node.path("runs", "digits-1", "spec.json"), {"tree": "project", "outs": patterns})
    write_json(node.path("runs", "digits-1", "inventory.json"), output_files.take_inventory(node, "project", patterns))


def ask(verb: Any, node: Node, **args: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    items: list[dict[str, Any]] = []
    return verb(node, args, items.append), items


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("*.pt", "snapshot.pt", True),
        ("*.pt", "deep/er/snapshot.pt", True),
        ("*.pt", "snapshot.pth", False),
        ("*.pt", "snapshot.pt.tmp", False),
        ("*.ckpt", "epoch=3.ckpt/shard/0.bin", True),
        ("./*.pt", "snapshot.pt", True),
        ("./*.pt", "deep/snapshot.pt", False),
        (".metadata", "dcp/step-5/.metadata", True),
        (".metadata", "dcp/xmetadata", False),
        ("outputs", "outputs/a/b.txt", True),
        ("outputs/", "deep/outputs/a.txt", True),
        ("outputs", "outputs2/a.txt", False),
        ("**/checkpoints/**", "checkpoints/1", True),
        ("**/checkpoints/**", "a/b/checkpoints/c/1", True),
        ("**/checkpoints/**", "my-checkpoints/1", False),
        ("out/*.txt", "out/a.txt", True),
        ("out/*.txt", "out/deep/a.txt", False),
        ("out/*.txt", "deep/out/a.txt", False),
        ("out/**/*.txt", "out/a.txt", True),
        ("out/**/*.txt", "out/b/c/a.txt", True),
        ("out/a?.txt", "out/ab.txt", True),
        ("out/a?b", "out/a/b", False),
        ("**/events.out.tfevents*", "runs/x/events.out.tfevents.1.host", True),
        ("[ab].txt", "a.txt", True),
        ("[!ab].txt", "a.txt", False),
        ("[!ab].txt", "c.txt", True),
        ("a[!b]c/x", "a/c/x", False),
        ("[]].txt", "].txt", True),
        ("[z-a].txt", "[z-a].txt", True),
        ("[a-c-e].txt", "b.txt", True),
        ("[a-c-e].txt", "d.txt", False),
        ("[a-c-e].txt", "-.txt", True),
        ("[+--].txt", ",.txt", True),
        ("[a-].txt", "-.txt", True),
        ("[open", "[open", True),
        ("a.b+c(1)$", "a.b+c(1)$", True),
        ("a.b", "aXb", False),
        ("*.pt", "new\nline.pt", True),
        ("a*z", "a\n/z", False),
        ("naïve *.pt", "naïve file.pt", True),
        ("", "a", False),
        ("/", "a", False),
        ("**", "any/thing", True),
    ],
)
def test_a_pattern_says_which_paths(pattern: str, path: str, expected: bool) -> None:
    assert output_files.compile_patterns([pattern])(path) is expected


@pytest.mark.parametrize("pattern", ["/etc/*", "../x", "a/../../b", "~/x"])
def test_a_pattern_that_leads_out_is_refused(pattern: str) -> None:
    with pytest.raises(Refusal, match="leads out of the run's folder"):
        output_files.compile_patterns([pattern])


@given(st.text(alphabet=st.characters(exclude_characters="/*?[\0", exclude_categories=("Cs",)), min_size=1))
def test_a_plain_name_matches_itself_and_nothing_longer(name: str) -> None:
    if name in (".", "..") or name.startswith(("~", "!")):
        return
    matches = output_files.compile_patterns([name])
    assert matches(name)
    assert matches("folder/" + name)
    assert not matches(name + "x")


@pytest.mark.parametrize("inner", ["a-c--e", "a&&b", "[a"])
def test_no_set_warns_on_the_users_terminal(inner: str, recwarn: pytest.WarningsRecorder) -> None:
    output_files.compile_patterns([f"[{inner}].txt"])
    assert not recwarn.list


@given(st.lists(st.text(alphabet="ab*?[]!-^\\.&|", min_size=1), min_size=1, max_size=3))
def test_any_pattern_can_be_read(parts: list[str]) -> None:
    if ".." not in parts and not parts[0].startswith("!"):
        output_files.compile_patterns(["/".join(parts)])("a/b")


def test_only_what_is_new_or_changed_since_the_start(node: Node) -> None:
    put(node, "pushed.pt")
    put(node, "resumed.pt", b"old")
    start(node, ["*.pt"])
    put(node, "resumed.pt", b"newer")
    put(node, "made/first.pt", b"12")
    put(node, "made/first.txt")

    answer, _ = ask(output_files.outs, node, run="digits-1", patterns=["*.pt"])

    assert [(path, size) for path, size, _ in answer["files"]] == [("made/first.pt", 2), ("resumed.pt", 5)]
    assert answer["files"][0][2] == os.stat(node.path("project", "made/first.pt")).st_mtime_ns


def test_a_file_rewritten_with_the_same_size_is_new(node: Node) -> None:
    file = put(node, "snapshot.pt", b"old")
    start(node, ["*.pt"])
    file.write_bytes(b"new")
    os.utime(file, ns=(1, 1))

    answer, _ = ask(output_files.outs, node, run="digits-1", patterns=["*.pt"])

    assert answer["files"] == [["snapshot.pt", 3, 1]]


def test_a_file_rewritten_with_the_same_size_and_time_is_new(node: Node) -> None:
    file = put(node, "snapshot.pt", b"old")
    os.utime(file, ns=(1, 1))
    start(node, ["*.pt"])
    other = put(node, "draft", b"new")
    os.utime(other, ns=(1, 1))
    other.replace(file)

    answer, _ = ask(output_files.outs, node, run="digits-1", patterns=["*.pt"])

    assert answer["files"] == [["snapshot.pt", 3, 1]]


def test_files_with_an_old_time_are_not_left_behind(node: Node) -> None:
    put(node, "train.py")
    put(node, "data/cache.bin")
    start(node, ["*.pt"])
    for path in ("report/metrics.csv", "model_final.bin", "model.pt"):  # out of an archive; `os.utime`d
        os.utime(put(node, path), ns=(1, 1))

    unnamed = output_files.list_unnamed(node, {"run": "digits-1", "patterns": ["*.pt"]})

    assert unnamed == {"files": [["model_final.bin", 1, 1, False], ["report/metrics.csv", 1, 1, False]]}


def test_a_run_of_an_older_agent_is_judged_by_times_and_its_own_inventory(node: Node) -> None:
    snapshot = os.stat(put(node, "old.pt"))
    start(node, ["*.pt"])
    write_json(node.path("runs", "digits-1", "inventory.json"), {"old.pt": [snapshot.st_size, snapshot.st_mtime_ns]})
    started = os.stat(node.path("runs", "digits-1", "spec.json")).st_mtime_ns
    os.utime(put(node, "before.txt"), ns=(1, started - 1))
    os.utime(put(node, "after.txt"), ns=(1, started))
    os.utime(put(node, "new.pt"), ns=(1, started))
    question = {"run": "digits-1", "patterns": ["*.pt"]}

    assert [row[0] for row in output_files.list_unnamed(node, question)["files"]] == ["after.txt"]
    assert [row[0] for row in ask(output_files.outs, node, **question)[0]["files"]] == ["new.pt"]


def test_git_caches_and_environments_are_not_results(node: Node) -> None:
    put(node, ".git/x.pt")
    put(node, "a/__pycache__/x.pt")
    put(node, "venv/pyvenv.cfg")
    put(node, "venv/lib/x.pt")
    put(node, "conda/conda-meta/history")
    put(node, "conda/x.pt")
    put(node, "a/x.pt")

    assert list(output_files.list_outputs(node, "project", ["*.pt"])) == ["a/x.pt"]


def test_a_linked_folder_is_followed_when_it_was_asked_for(node: Node, tmp_path: Path) -> None:
    tree = Path(node.tree("project"))
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch/model.bin").write_bytes(b"12345")
    (tmp_path / "scratch/again").symlink_to(tmp_path / "scratch")
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset/huge.pt").write_bytes(b"1")
    (tree / "outputs").symlink_to(tmp_path / "scratch")
    (tree / "data").symlink_to(tmp_path / "dataset")
    put(node, "checkpoints/step-1/w.pt")
    (tree / "checkpoints/latest").symlink_to("step-1")
    (tree / "last.pt").symlink_to("checkpoints/step-1/w.pt")
    (tree / "broken.pt").symlink_to("nowhere")
    os.mkfifo(tree / "pipe.pt")

    found = output_files.list_outputs(node, "project", ["outputs/", "checkpoints/", "*.pt"])

    assert sorted(found) == ["checkpoints/step-1/w.pt", "last.pt", "outputs/model.bin"]
    assert found["outputs/model.bin"][0] == 5


def test_names_arrive_byte_for_byte(node: Node) -> None:
    start(node, [])
    tree = os.fsencode(node.tree("project"))
    names = [b"sp ace.pt", b"quote'\".pt", b"new\nline.pt", "ü.pt".encode(), b"bad\xff.pt", b"$(x)`y`.pt"]
    for name in names:
        with open(os.path.join(tree, name), "wb"):
            pass

    answer, _ = ask(output_files.outs, node, run="digits-1", patterns=["*.pt"])
    files = json.loads(json.dumps(answer))["files"]

    assert sorted(os.fsencode(path) for path, _, _ in files) == sorted(names)


def test_a_tree_that_is_not_there_has_no_files(node: Node) -> None:
    assert output_files.list_outputs(node, "absent", ["*"]) == {}


def test_an_unknown_run_is_refused(node: Node) -> None:
    with pytest.raises(Refusal, match="no run 'nope' was started on this node"):
        ask(output_files.outs, node, run="nope", patterns=["*"])


def test_sums_are_sha256_and_what_vanished_is_left_out(node: Node) -> None:
    big = os.urandom(3 * output_files.HASH_CHUNK_BYTES + 7)
    put(node, "big.pt", big)
    put(node, "a/empty.pt", b"")

    answer, items = ask(output_files.sums, node, tree="project", paths=["big.pt", "gone.pt", "a/empty.pt"])

    assert answer == {}
    assert items == [
        {"path": "big.pt", "sha256": hashlib.sha256(big).hexdigest(), "size": len(big)},
        {"path": "a/empty.pt", "sha256": hashlib.sha256(b"").hexdigest(), "size": 0},
    ]


def test_a_long_sum_says_that_it_is_alive(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    put(node, "big.pt", b"x" * (2 * output_files.HASH_CHUNK_BYTES))
    monkeypatch.setattr(output_files, "BEAT_INTERVAL_S", -1.0)

    _, items = ask(output_files.sums, node, tree="project", paths=["big.pt"])

    assert [sorted(item) for item in items] == [["beat"], ["beat"], ["path", "sha256", "size"]]


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "nul\0"])
def test_sums_of_paths_outside_the_tree_are_refused(node: Node, path: str) -> None:
    with pytest.raises(Refusal, match="not a path inside the tree"):
        ask(output_files.sums, node, tree="project", paths=[path])
