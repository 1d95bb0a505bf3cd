"""train/digits.py in worlds of 1, 2 and 4 real processes: it learns, keeps what it learnt, and stops when told."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import signal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

DIGITS = Path(__file__).parents[2] / "train" / "digits.py"
LAST = re.compile(r"test accuracy (0\.\d{4}|1\.0000) \((\d+) of 297\), (\d+) epochs in \d+\.\d s on (.*)")


@pytest.fixture(scope="module")
def program() -> ModuleType:
    """digits.py as a module, to judge a snapshot with its own model."""
    spec = importlib.util.spec_from_file_location("digits", DIGITS)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def snapshot(folder: Path) -> dict[str, Any]:
    return torch.load(folder / "digits.pt", weights_only=True)


@pytest.mark.parametrize(
    ("ranks", "world"),
    [
        (0, "1 rank (1 node x 1), gloo"),
        (2, "2 ranks (1 node x 2), gloo"),
        (4, "4 ranks (1 node x 4), gloo"),
    ],
)
def test_learns_to_read(launch, tmp_path: Path, program: ModuleType, ranks: int, world: str) -> None:
    code, out, err = launch("digits.py", "20", "5", ranks=ranks)
    assert code == 0, err
    accuracy, correct, epochs, where = LAST.fullmatch(out[-1]).groups()
    assert float(accuracy) >= 0.95
    assert (epochs, where) == ("20", world)
    assert [line.partition(":")[0] for line in out[:-1]] == [f"epoch {epoch}" for epoch in range(1, 21)]
    assert [path.name for path in tmp_path.iterdir()] == ["digits.pt"]
    assert int(correct) == count_by_one_process(program, snapshot(tmp_path))


def count_by_one_process(program: ModuleType, state: dict[str, Any]) -> int:
    """The ranks share 297 images unevenly, so that only exact sums agree with this."""
    model = program.build_model()
    model.load_state_dict(state["model"])
    images, labels = program.load_data()[1].tensors
    return int((model(images).argmax(1) == labels).sum())


def test_resumed_training_equals_uninterrupted_training(launch, tmp_path: Path) -> None:
    for name, all_epochs in (("straight", ["4"]), ("resumed", ["2", "4"])):
        (tmp_path / name).mkdir()
        for epochs in all_epochs:
            code, out, err = launch("digits.py", epochs, cwd=tmp_path / name)
            assert code == 0, err
    assert out[0] == "resumed from digits.pt, written after epoch 2"
    assert LAST.fullmatch(out[-1])[3] == "2"
    straight, resumed = snapshot(tmp_path / "straight"), snapshot(tmp_path / "resumed")
    assert straight["epochs_done"] == resumed["epochs_done"] == 4
    for name, weights in straight["model"].items():
        assert torch.equal(weights, resumed["model"][name]), name


def test_a_node_without_the_snapshot_follows_the_first(launch, start, tmp_path: Path, free_port: int) -> None:
    nodes = [tmp_path / "node0", tmp_path / "node1"]
    for node in nodes:
        node.mkdir()
    assert launch("digits.py", "2", cwd=nodes[0])[0] == 0
    launched = [
        start(
            *("digits.py", "3"),
            ranks=1,
            cwd=node,
            options=["--nnodes=2", f"--node-rank={i}", "--master-addr=127.0.0.1", f"--master-port={free_port}"],
        )
        for i, node in enumerate(nodes)
    ]
    (code0, out0, err0), (code1, out1, err1) = (node.finish() for node in launched)
    assert (code0, code1) == (0, 0), err0 + err1
    assert out0[0] == "resumed from digits.pt, written after epoch 2"
    assert LAST.fullmatch(out0[-1]).group(3, 4) == ("1", "2 ranks (2 nodes x 1), gloo")
    assert out1 == []
    assert list(nodes[1].iterdir()) == []


def test_asked_to_stop_all_ranks_stop_with_a_snapshot(start, tmp_path: Path) -> None:
    launched = start("digits.py", "100000", "100000", ranks=2)
    launched.wait_for_output()
    launched.tell_rank(1, signal.SIGUSR1)
    code, out, err = launched.finish()
    assert code == 0, err
    done = snapshot(tmp_path)["epochs_done"]
    assert out[-2] == f"stopped after epoch {done} of 100000; the same command goes on from digits.pt"
    assert LAST.fullmatch(out[-1])[3] == str(done)


@pytest.mark.parametrize("content", ["torn", "foreign"])
def test_a_snapshot_that_cannot_be_used_is_refused(launch, tmp_path: Path, content: str) -> None:
    path = tmp_path / "digits.pt"
    torch.save({"model": torch.zeros(1000)}, path)
    if content == "torn":
        path.write_bytes(path.read_bytes()[:1000])
    before = path.read_bytes()
    code, _, err = launch("digits.py", "1")
    assert code == 1
    assert re.fullmatch(
        r"error: digits\.pt (cannot be read \(\w+\)|is not a snapshot of this program); "
        r"move it away to start from epoch 0",
        err.strip(),
    )
    assert path.read_bytes() == before


def test_help_teaches(launch) -> None:
    code, out, _ = launch("digits.py", "--help")
    assert code == 0
    assert any("torchrun --standalone" in line for line in out)


def test_wrong_arguments_are_refused(launch) -> None:
    code, _, err = launch("digits.py", "0")
    assert code == 2
    assert "0 is not a number above 0" in err


def test_data_are_the_named_copy() -> None:
    folder = DIGITS.parent / "data"
    digest = hashlib.sha256((folder / "digits.csv.gz").read_bytes()).hexdigest()
    source = (folder / "SOURCE.txt").read_text()
    assert digest in source
    assert "CC BY 4.0" in source
