"""`runs/<run>/` on this computer."""

from __future__ import annotations

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
