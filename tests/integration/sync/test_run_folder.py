"""`runs/<run>/` on this computer."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from gpuops.core.errors import GpuopsError, NodeError
from gpuops.sync.run_folder import RunHome
from gpuops.sync.run_record import RunRecord
from tests.integration.sync.node_here import RUN


def test_home_is_kept_from_git_and_a_users_gitignore_stays(tmp_path: Path) -> None:
    home = RunHome(tmp_path / "runs" / RUN)
    home.create()
    assert (tmp_path / "runs/.gitignore").read_text() == "*\n"
    (tmp_path / "runs/.gitignore").write_text("mine\n")
    home.create()
    assert (tmp_path / "runs/.gitignore").read_text() == "mine\n"
    assert home.path == tmp_path / "runs" / RUN


def test_of_several_that_claim_a_folder_one_gets_it(tmp_path: Path) -> None:
    first, second = RunHome(tmp_path / "runs" / RUN), RunHome(tmp_path / "runs" / RUN)
    assert first.claim()
    assert not second.claim()
    assert (tmp_path / "runs/.gitignore").read_text() == "*\n"


@pytest.mark.parametrize("with_runs", [True, False])
def test_an_unused_folder_goes_and_one_with_a_result_stays(tmp_path: Path, with_runs: bool) -> None:
    if with_runs:
        (tmp_path / "runs").mkdir()  # TensorBoard's
    unused, used = RunHome(tmp_path / "runs/a-1"), RunHome(tmp_path / "runs/a-2")
    for home in (unused, used):
        home.claim()
    (used.out / "model.pt").write_bytes(b"")
    for home in (unused, used):
        home.remove_unused()
    assert not unused.path.exists()
    assert (used.out / "model.pt").exists()


def test_the_record_is_replaced_whole(tmp_path: Path) -> None:
    home = RunHome(tmp_path / "runs" / RUN)
    home.write_record(RunRecord(run=RUN, kept="x" * 100_000))
    home.write_record(RunRecord(run=RUN))
    assert home.read_record() == RunRecord(run=RUN)
    assert [path.name for path in home.path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("stream", ["../../.bashrc", "/etc/passwd", "", "a/b", "..", ".hidden", "rank0.out\n"])
def test_a_stream_cannot_name_a_file_elsewhere(tmp_path: Path, stream: str) -> None:
    with pytest.raises(NodeError, match="node0 sent a log named"):
        RunHome(tmp_path / "runs" / RUN).log(0, stream)


@pytest.mark.parametrize("name", ["runs", f"runs/{RUN}", f"runs/{RUN}/out"])
def test_a_file_where_the_home_should_be_is_one_sentence(tmp_path: Path, name: str) -> None:
    home = RunHome(tmp_path / "runs" / RUN)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("in the way")
    with pytest.raises(GpuopsError, match="cannot write to"):
        home.create()


def test_a_file_where_all_homes_should_be_is_one_sentence_to_who_claims_one(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("in the way")
    with pytest.raises(GpuopsError, match="cannot write to"):
        RunHome(tmp_path / "runs" / RUN).claim()


def test_a_journal_of_many_lines_fills_no_memory(tmp_path: Path) -> None:
    home = RunHome(tmp_path / "runs" / "a-1")
    home.folder.write_at("logs/node0/events.jsonl", 0, b"xy\n" * 100_000 + b"no end")
    tracemalloc.start()
    try:
        assert sum(1 for _ in home.lines(0, "events.jsonl")) == 100_001
        assert tracemalloc.get_traced_memory()[1] < 300_000
    finally:
        tracemalloc.stop()
    assert list(home.lines(1, "events.jsonl")) == []
