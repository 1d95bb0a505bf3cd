"""Which TensorBoard is started, and on what."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuops.commands.tensorboard import board_argv, find_program
from gpuops.core.errors import UsageError


def run(folder: Path, name: str, *, wrote: str = "outputs/digits") -> Any:
    home = folder / "runs" / name
    if wrote:
        (home / "out" / wrote).mkdir(parents=True)
        (home / "out" / wrote / "events.out.tfevents.1").touch()
    return SimpleNamespace(name=name, home=home)


def test_one_run_and_several(tmp_path: Path) -> None:
    first, second = run(tmp_path, "a-1"), run(tmp_path, "a-2", wrote="tb")
    assert board_argv("tb", [first], 6007, is_live=False) == [
        "tb", "--port=6007", "--logdir", f"{first.home}/out/outputs/digits",
    ]  # fmt: skip
    assert board_argv("tb", [first, second], None, is_live=True) == [
        "tb", "--load_fast=false", "--logdir_spec", f"a-1:{first.home}/out/outputs/digits,a-2:{second.home}/out/tb",
    ]  # fmt: skip


def test_a_live_run_may_not_have_written_yet(tmp_path: Path) -> None:
    row = run(tmp_path, "a-1", wrote="")
    assert board_argv("tb", [row], None, is_live=True)[-1] == str(row.home / "out")
    with pytest.raises(UsageError) as refused:
        board_argv("tb", [row], None, is_live=False)
    assert "gpuops report a-1" in refused.value.hint


def test_folders_that_tensorboard_would_take_apart(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is a , or :"):
        board_argv("tb", [run(tmp_path / "x,y", "a-1"), run(tmp_path, "a-2")], None, is_live=False)


def test_where_it_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(UsageError) as refused:
        find_program({"PATH": str(tmp_path)})
    assert "pip install 'gpuops[tensorboard]'" in refused.value.hint
    (tmp_path / "tensorboard").touch(mode=0o755)
    assert find_program({"PATH": "/nowhere"}) == str(tmp_path / "tensorboard")
