"""train/digits.py in worlds of 1, 2 and 4 real processes: it learns, keeps what it learnt, and stops when told."""

from __future__ import annotations

import hashlib
import re
import signal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from learnt import last_snapshot, module_of

DIGITS = Path(__file__).parents[3] / "train" / "digits.py"
LAST = re.compile(r"test accuracy (0\.\d{4}|1\.0000) \((\d+) of 297\), (\d+) epochs in \d+\.\d s on (.*)")


@pytest.fixture(scope="module")
def program() -> ModuleType:
    """digits.py as a module, to judge a snapshot with its own model."""
    return module_of("digits")


@pytest.mark.parametrize(
    ("ranks", "where"),
    [
        (1, "1 rank (1 node x 1), gloo"),
        pytest.param(2, "2 ranks (1 node x 2), gloo", marks=pytest.mark.proof),
        (4, "4 ranks (1 node x 4), gloo"),
    ],
)
def test_learns_to_read(world, tmp_path: Path, program: ModuleType, ranks: int, where: str) -> None:
    out = world("digits.py", "20", "5", ranks=ranks).succeed().out()
    accuracy, correct, epochs, on = LAST.fullmatch(out[-1]).groups()
    assert float(accuracy) >= 0.95
    assert (epochs, on) == ("20", where)
    assert [line.partition(":")[0] for line in out[:-1]] == [f"epoch {epoch}" for epoch in range(1, 21)]
    assert [path.name for path in tmp_path.iterdir()] == ["snapshots"]
    assert int(correct) == count_by_one_process(program, last_snapshot(tmp_path, "digits"))


def count_by_one_process(program: ModuleType, state: dict[str, Any]) -> int:
    """The ranks share 297 images unevenly, so that only exact sums agree with this."""
    model = program.build_model()
    model.load_state_dict(state["model"])
    images, labels = program.load_data(program.DATA / "digits.csv.gz")[1].tensors
    return int((model(images).argmax(1) == labels).sum())


def test_by_plain_python(launch) -> None:
    code, out, err = launch("digits.py", "2")
    assert code == 0
    assert err == "training on 1 rank (1 node x 1), gloo, 1 thread of the processor\n"
    assert LAST.fullmatch(out[-1]).group(3, 4) == ("2", "1 rank (1 node x 1), gloo")


def test_two_nodes_of_which_one_has_no_snapshot_follow_the_first(launch, start, tmp_path: Path, free_port: int) -> None:
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
    assert out0[0] == "resumed from snapshots/digits/step-00000094.pt, written after epoch 2"
    assert LAST.fullmatch(out0[-1]).group(3, 4) == ("1", "2 ranks (2 nodes x 1), gloo")
    assert out1 == []
    assert list(nodes[1].iterdir()) == []


def test_asked_to_stop_all_ranks_stop_with_a_snapshot(start, tmp_path: Path, program: ModuleType) -> None:
    """By torchrun, as gpuops asks: one rank alone, with the signal it handles."""
    launched = start("digits.py", "100000", "100000", ranks=2)
    launched.wait_for_output()
    launched.tell_rank(1, signal.SIGUSR1)
    code, out, err = launched.finish()
    assert code == 0, err
    kept = last_snapshot(tmp_path, "digits")
    assert out[-2].startswith("stopped ")
    assert out[-2].endswith("; the same command goes on from snapshots/digits")
    _, correct, epochs, _ = LAST.fullmatch(out[-1]).groups()
    assert epochs == str(kept["epoch"])
    assert int(correct) == count_by_one_process(program, kept), "of the test images alone, also in mid-epoch"


def test_missing_data_is_one_sentence(world, tmp_path: Path) -> None:
    refused = world("digits.py", "1", "--data", str(tmp_path), ranks=2).refusal()
    assert refused == f"error: {tmp_path}/digits.csv.gz is missing; --data names the folder that has digits.csv.gz"


def test_data_missing_on_the_second_node_only_is_said_by_the_first(world, tmp_path: Path) -> None:
    nodes = [tmp_path / "node0", tmp_path / "node1"]
    for node in nodes:
        node.mkdir()
    (nodes[0] / "digits.csv.gz").symlink_to(DIGITS.parent / "data" / "digits.csv.gz")
    refused = world("digits.py", "1", "--data", ".", ranks=2, cwds=nodes).refusal()
    assert refused == "error: digits.csv.gz is missing; --data names the folder that has digits.csv.gz (rank 1)"


@pytest.mark.proof  # test_bad_input.py has one by torchrun
def test_under_torchrun_a_refusal_is_said_once(launch, tmp_path: Path) -> None:
    code, out, err = launch("digits.py", "1", "--data", str(tmp_path), ranks=2)
    assert (code, out) == (1, [])
    assert err.count("digits.csv.gz is missing") == 1
    assert set(re.findall(r"exitcode *: (-?\d+)", err)) == {"1"}


def test_help_teaches(launch) -> None:
    code, out, _ = launch("digits.py", "--help")
    assert code == 0
    assert any("torchrun --standalone" in line for line in out)


@pytest.mark.parametrize("wrong", [("0",), ("1", "1", "--batch_size", "-3"), ("1", "1", "--amp", "int4")])
def test_wrong_arguments_are_refused_once(world, wrong: tuple[str, ...]) -> None:
    ran = world("digits.py", *wrong, ranks=2).finish()
    assert ran.codes == [2, 2]
    assert ran.err().count("error: ") == 1
    assert ran.err(1) == ""


def test_data_are_the_named_copy() -> None:
    folder = DIGITS.parent / "data"
    digest = hashlib.sha256((folder / "digits.csv.gz").read_bytes()).hexdigest()
    source = (folder / "SOURCE.txt").read_text()
    assert digest in source
    assert "CC BY 4.0" in source
