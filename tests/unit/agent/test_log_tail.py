"""A run's streams by offset, from a real folder."""

from __future__ import annotations

import base64
import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuops.agent import run_files
from gpuops.agent.node import Cancelled, Node, Refusal
from gpuops.agent.run import log_tail, run_verbs
from tests.conftest import HANG_S


@pytest.fixture
def node(tmp_path: Path) -> Node:
    (tmp_path / "runs/r-1/ranks").mkdir(parents=True)
    return Node(str(tmp_path))


def collect(node: Node, offsets: dict[str, int]) -> dict[str, bytes]:
    """What `tail` sends from these offsets, checked to be gapless."""
    got: dict[str, bytes] = {}

    def emit(item: dict[str, Any]) -> None:
        assert item["o"] == offsets.get(item["s"], 0) + len(got.get(item["s"], b""))
        got[item["s"]] = got.get(item["s"], b"") + base64.b64decode(item["b64"])

    log_tail.tail(node, {"run": "r-1", "offsets": offsets}, emit)
    return got


def test_streams_are_named_and_ordered(node: Node) -> None:
    for name in ["launcher.out", "ranks/10.err", "ranks/2.out", "ranks/2.json", "ranks/x.out", "events.jsonl", "stop"]:
        Path(node.run("r-1"), name).write_bytes(b"x")
    assert list(run_files.list_streams(node.run("r-1"))) == ["launcher.out", "events.jsonl", "rank2.out", "rank10.err"]


@settings(max_examples=30, deadline=None)
@given(content=st.binary(max_size=300), cut=st.integers(0, 400))
def test_from_any_offset_exactly_the_rest(tmp_path_factory: pytest.TempPathFactory, content: bytes, cut: int) -> None:
    node = Node(str(tmp_path_factory.mktemp("node")))
    os.makedirs(node.run("r-1"))
    Path(node.run("r-1"), "launcher.out").write_bytes(content)
    assert collect(node, {"launcher.out": cut}).get("launcher.out", b"") == content[cut:]


def test_long_files_come_in_pieces(node: Node) -> None:
    content = os.urandom(3 * log_tail.CHUNK_BYTES + 1)
    Path(node.run("r-1"), "ranks", "0.out").write_bytes(content)
    assert collect(node, {}) == {"rank0.out": content}
    assert len(list(log_tail.read_pieces(node.run("r-1"), {}))) == 4


def test_the_result_is_the_last_word(node: Node) -> None:
    Path(node.run("r-1"), "result.json").write_text(json.dumps({"outcome": "done"}))
    answer = log_tail.tail(node, {"run": "r-1", "offsets": {}, "follow": True}, lambda _item: None)
    assert answer == {"result": {"outcome": "done"}}


def test_who_follows_hears_of_the_end_at_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not at the next look at the files."""
    monkeypatch.setattr(log_tail, "MIN_POLL_INTERVAL_S", 2 * HANG_S)
    monkeypatch.setattr(log_tail, "MAX_POLL_INTERVAL_S", 2 * HANG_S)
    run = SimpleNamespace(name="r-1", result=None, ended=threading.Event(), done=threading.Event())
    monkeypatch.setattr(run_verbs, "_latest", run)
    answers: list[dict[str, Any]] = []
    follows = threading.Event()

    def look(folder: str, offsets: dict[str, int]) -> list[dict[str, Any]]:  # noqa: ARG001
        follows.set()
        return []

    def follow() -> None:
        answers.append(log_tail.tail(node, {"run": "r-1", "follow": True}, lambda _item: None))

    monkeypatch.setattr(log_tail, "read_pieces", look)
    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    assert follows.wait(HANG_S)
    run.result = {"outcome": "done"}
    run.ended.set()
    thread.join(HANG_S)
    assert answers == [{"result": {"outcome": "done"}}]


def test_who_is_gone_is_not_followed(node: Node) -> None:
    Path(node.run("r-1"), "launcher.out").write_bytes(b"x")

    def emit(_item: dict[str, Any]) -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        log_tail.tail(node, {"run": "r-1", "offsets": {}, "follow": True}, emit)


def test_a_run_that_never_was_is_refused(node: Node) -> None:
    with pytest.raises(Refusal) as refused:
        log_tail.tail(node, {"run": "r-2"}, lambda _item: None)
    assert refused.value.kind == "no-run"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", ""),
        (b"no end", "no end"),
        (b"".join(b"%d\n" % i for i in range(100)), "".join(f"{i}\n" for i in range(60, 100))),
        (b"x" * 9000, "x" * 8192),
        (b"\xff\n", "�\n"),
    ],
)
def test_last_lines_are_bounded(tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "f").write_bytes(content)
    assert run_files.read_last_lines(str(tmp_path / "f")) == expected
