"""What `run` decides before it acts: a run's name, its set-up, data that cannot travel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuops.equip import setup_command
from gpuops.models import RunRequest
from gpuops.run import stem

TRAIN = RunRequest(kind="torchrun", mode="multinode", nodes=2, gpus=None, script="train.py")


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({}, "train"),
        ({"script": "src/My Script.py"}, "my-script"),
        ({"script": None, "module": "pkg.deep.main"}, "main"),
        ({"script": None, "workload": "digits"}, "digits"),
        ({"script": None, "argv": ["/usr/bin/env", "x"]}, "env"),
        ({"script": "2fast.py"}, "run-2fast"),
        ({"script": "ünïcode.py"}, "n-code"),
        ({"script": "....py"}, "run"),
        ({"script": "a" * 60 + ".py"}, "a" * 18),
    ],
)
def test_a_run_is_named_after_what_it_runs(changed: dict[str, object], name: str) -> None:
    assert stem(replace(TRAIN, **changed)) == name  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("files", "asked", "rented", "command"),
    [
        (["requirements.txt"], None, True, "python -m pip install -r requirements.txt"),
        (["requirements.txt"], None, False, ""),
        (["requirements.txt", "pyproject.toml"], None, True, "python -m pip install -r requirements.txt"),
        (["pyproject.toml"], None, True, "python -m pip install ."),
        ([], None, True, ""),
        (["requirements.txt"], "", True, ""),
        (["requirements.txt"], "make deps", True, "make deps"),
        ([], "make deps", False, "make deps"),
    ],
)
def test_set_up_is_what_the_project_asks_for_on_rented_nodes(
    tmp_path: Path, files: list[str], asked: str | None, rented: bool, command: str
) -> None:
    for name in files:
        (tmp_path / name).write_text("")
    assert setup_command(replace(TRAIN, setup=asked), tmp_path, rented=rented) == command


def test_our_workloads_need_no_set_up(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("")
    assert setup_command(replace(TRAIN, script=None, workload="digits"), tmp_path, rented=True) == ""
