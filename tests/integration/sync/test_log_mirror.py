"""Logs that are copied while they grow: not a byte lost or doubled, wherever the connection is cut."""

from __future__ import annotations

import os
import random
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from gpuops.core.errors import ConnectionLost, LocalDisk, NodeError
from gpuops.core.safe_folder import DISK_RESERVE_BYTES
from gpuops.sync.log_mirror import mirror
from gpuops.sync.run_folder import RunHome
from tests.integration.sync.node_here import RUN, NodeHere, Scene


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


def test_a_full_disk_here_is_said_and_no_nodes_failure(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    write_logs(scene.nodes[1], 100)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=DISK_RESERVE_BYTES + 30))
    with pytest.raises(LocalDisk, match="this computer's disk is full: cannot write to") as caught:
        follow(scene.nodes[1], scene.home)
    assert not isinstance(caught.value, NodeError)
    assert caught.value.exit_code == 4
