"""How a run ended, and what a result tells of it: the last that was said, the room that is left."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from gpuops.agent import run_files
from gpuops.agent.node import Node
from gpuops.agent.run import result
from gpuops.agent.run.result import (
    MAX_OUT_CHARACTERS,
    RunEnd,
    decide_outcome,
    rank_document,
    read_last_output,
    result_document,
    settle_lost_runs,
)
from gpuops.agent.run.stopping import StopRequest
from gpuops.agent.run_documents import LaunchSpec, Outcome, RankRecord, Reason, RunKind

SPEC = LaunchSpec("r-1")
ENDED = RunEnd(Outcome.DONE, Reason("command"), 1.0, 0, 2.0)


def lines(count: int) -> str:
    return "".join(f"{number}\n" for number in range(count))


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        ("hello\n", "hello\n"),
        (lines(30), lines(30)[-30:]),
        ("no end", "no end"),
        ("x" * 5000, "x" * MAX_OUT_CHARACTERS),
        ("", ""),
    ],
)
def test_the_last_of_what_was_printed(tmp_path: Path, printed: str, told: str) -> None:
    (tmp_path / "0.out").write_text(printed)
    assert read_last_output(str(tmp_path / "0.out")) == told


def test_nothing_was_printed_where_there_is_no_file(tmp_path: Path) -> None:
    assert read_last_output(str(tmp_path / "0.out")) == ""


def test_a_rank_is_told_with_both_its_streams(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks/3.out").write_text("epoch 1\n")
    (tmp_path / "ranks/3.err").write_text("a warning\n")
    told = rank_document(str(tmp_path), RankRecord(3, 1), 0.0, None)
    assert (told["out"], told["tail"]) == ("epoch 1\n", "a warning\n")


def test_a_run_is_told_with_the_room_that_is_left(tmp_path: Path) -> None:
    (tmp_path / "launcher.out").write_text("done\n")
    told = result_document(SPEC, str(tmp_path), ENDED, lambda _rank: None)
    assert told["out"] == "done\n"
    assert told["disk_free"] > 0
    gone = result_document(SPEC, str(tmp_path / "gone"), ENDED, lambda _rank: None)
    assert gone["disk_free"] is None


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ('{"step": 120, "epoch": 3, "saved": 100}', {"step": 120, "epoch": 3, "saved": 100}),
        ('{"step": 7, "loss": 0.25, "saved": null, "done": true, "name": "x"}', {"step": 7, "loss": 0.25}),
        ('{"step": NaN, "saved": Infinity}', None),
        ('{"step": 12', None),
        ('{"step": 1' + "0" * 400 + "}", None),
        ("120", None),
        ("{}", None),
        (f'{{"step": 1, "x": "{"x" * run_files.MAX_PROGRESS_BYTES}"}}', None),
        ("", None),
    ],
)
def test_how_far_a_program_says_it_is(tmp_path: Path, written: str, told: dict[str, float] | None) -> None:
    """Any script may write it, and anything may be in it."""
    (tmp_path / "progress.json").write_text(written)
    ended = result_document(SPEC, str(tmp_path), ENDED, lambda _rank: None)
    assert ended["progress"] == told
    (tmp_path / "progress.json").unlink()
    ended = result_document(SPEC, str(tmp_path), ENDED, lambda _rank: None)
    assert ended["progress"] is None


def test_a_record_that_cannot_be_read_hides_no_end(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks/0.json").write_text('{"local": 0}')
    told = result_document(SPEC, str(tmp_path), ENDED, lambda _rank: None)
    assert (told["outcome"], told["ranks"]) == (Outcome.DONE, [])


def test_a_run_that_cannot_be_settled_keeps_no_other_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result.processes, "end_all", lambda _find: 0)
    node = Node(str(tmp_path))
    for name, spec in (("strange", '["of another version"]'), ("r-1", '{"cluster": "lab", "node": 0}')):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "spec.json").write_text(spec)
    (tmp_path / "live.json").write_text("{}")
    settle_lost_runs(node)
    ended = run_files.read_result(node.run("r-1"))
    assert ended is not None
    assert ended["outcome"] == Outcome.LOST
    assert not (tmp_path / "live.json").exists()


STOP = StopRequest(Reason("stop", "enough"))


def record(rank: int, ended: float | None, code: int | None = 0, signal: int | None = None) -> RankRecord:
    return RankRecord(rank, ended=ended, code=code, signal=signal)


@pytest.mark.parametrize(
    ("kind", "returncode", "records", "stop", "expected"),
    [
        ("torchrun", 0, [record(0, 50), record(1, 51)], None, ("done", "launcher", "it ended by itself")),
        ("command", 0, [], None, ("done", "command", "it ended by itself")),
        ("command", 3, [], None, ("failed", "command", "the command failed with exit code 3")),
        ("command", -9, [], None, ("failed", "command", "the command was ended by SIGKILL")),
        ("torchrun", 1, [], None, ("failed", "launcher", "torchrun failed with exit code 1")),
        ("torchrun", -9, [record(0, None)], None, ("failed", "launcher", "torchrun was ended by SIGKILL")),
        (
            "torchrun",
            1,
            [record(0, 52, 1), record(1, 51, 3)],
            None,
            ("failed", "rank", "rank 1 failed with exit code 3"),
        ),
        ("torchrun", 1, [record(0, 52, None, 11)], None, ("failed", "rank", "rank 0 was ended by SIGSEGV")),
        ("torchrun", 1, [record(0, 101, 1)], STOP, ("stopped", "stop", "enough")),
        ("torchrun", 0, [record(0, 101)], STOP, ("stopped", "stop", "enough")),
        ("torchrun", None, [record(0, None)], STOP, ("stopped", "stop", "enough")),
        ("torchrun", 1, [record(0, 99, 1)], STOP, ("failed", "rank", "rank 0 failed with exit code 1")),
        ("command", -15, [], STOP._replace(outcome=Outcome.LOST), ("lost", "stop", "enough")),
    ],
)
def test_how_a_run_ended(
    kind: str,
    returncode: int | None,
    records: list[RankRecord],
    stop: StopRequest | None,
    expected: tuple[str, str, str],
) -> None:
    found, reason = decide_outcome(RunKind(kind), returncode, records, stop, 100.0 if stop else math.inf)
    assert (found, reason.kind, reason.say) == expected


def test_signals_have_names_where_they_do() -> None:
    assert result.signal_name(9) == "SIGKILL"
    assert result.signal_name(63) == "signal 63"
