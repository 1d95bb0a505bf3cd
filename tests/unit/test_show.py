"""What is shown of a run's files at home: every byte once, nodes and ranks in the order of their numbers."""

from __future__ import annotations

from pathlib import Path

from gpuops.logs import LineMerger
from gpuops.results import RunHome
from gpuops.show import HomeTail, Veil


def write(home: Path, node: int, stream: str, text: str) -> None:
    path = home / "logs" / f"node{node}" / stream
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def tail(home: Path) -> HomeTail:
    return HomeTail(RunHome(home), LineMerger(nodes=12, ranks=24, launcher=True))


def test_ranks_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for node, rank in ((10, 20), (0, 10), (0, 2), (2, 3)):
        write(tmp_path, node, f"rank{rank}.out", "here\n")
    write(tmp_path, 0, "launcher.err", "first\n")
    assert list(tail(tmp_path).rest()) == [
        "[n0] first",
        "[n0 r2] here",
        "[n0 r10] here",
        "[n2 r3] here",
        "[n10 r20] here",
    ]


def test_each_byte_is_shown_once(tmp_path: Path) -> None:
    shown = tail(tmp_path)
    assert list(shown.new()) == []
    write(tmp_path, 0, "rank0.out", "one\ntw")
    assert list(shown.new()) == ["[n0 r0] one"]
    write(tmp_path, 0, "rank0.out", "o\n")
    assert list(shown.new()) == ["[n0 r0] two"]
    assert list(shown.rest()) == []


def test_what_is_no_output_is_not_shown(tmp_path: Path) -> None:
    write(tmp_path, 0, "events.jsonl", "{}\n")
    write(tmp_path, 0, "notes.txt", "mine\n")
    (tmp_path / "logs" / "elsewhere").mkdir()
    assert list(tail(tmp_path).rest()) == []


TRACE = "Traceback (most recent call last):\n  File x\nRuntimeError: peer\n"


def veiled(home: Path, now: list[float]) -> HomeTail:
    return HomeTail(RunHome(home), LineMerger(nodes=2, ranks=4), Veil(5.0, lambda: now[0]))


def test_tracebacks_of_a_run_that_fails_stay_in_the_logs(tmp_path: Path) -> None:
    now = [0.0]
    shown = veiled(tmp_path, now)
    write(tmp_path, 0, "rank0.err", "a warning\n" + TRACE)
    write(tmp_path, 1, "rank2.out", "epoch 1\n")
    assert list(shown.new()) == ["[n0 r0] a warning", "[n1 r2] epoch 1"]
    write(tmp_path, 1, "events.jsonl", '{"at": 1.0, "event": "failed", "reason": {}}\n')
    write(tmp_path, 1, "rank2.err", TRACE)
    now[0] = 10.0
    assert list(shown.new()) == []
    assert list(shown.rest()) == []


def test_a_traceback_in_a_run_that_goes_on_is_shown_late(tmp_path: Path) -> None:
    now = [0.0]
    shown = veiled(tmp_path, now)
    write(tmp_path, 0, "rank0.err", TRACE)
    assert list(shown.new()) == []
    now[0] = 5.0
    assert len(list(shown.new())) == 3
    write(tmp_path, 0, "rank0.err", "after\n")
    assert list(shown.new()) == []
    assert list(shown.rest()) == ["[n0 r0] after"]
