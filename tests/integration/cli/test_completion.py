"""The key that completes a line, in a real bash: names of commands, flags, clusters, runs, providers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpuops.cli import completion
from gpuops.core.models import Lease
from gpuops.core.processes import myself
from gpuops.ledger import FILE
from gpuops.ledger.store import Ledger
from tests.conftest import HANG_S

BASH = shutil.which("bash") or ""
DRIVE = """
source <(_GPUOPS_COMPLETE=source_bash gpuops) || exit 9
while IFS= read -r line; do
    read -ra COMP_WORDS <<<"$line"
    [[ "$line" == *" " ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    COMPREPLY=()
    _gpuops_completion gpuops
    echo "${COMPREPLY[*]}"
done
"""
"""Each line of stdin is what was typed before the key; what bash was offered is printed."""

pytestmark = pytest.mark.skipif(not BASH, reason="bash is not installed")


def offered(home: Path, *lines: str) -> list[list[str]]:
    """What is offered after each of these lines."""
    environment = {
        **os.environ,
        "GPUOPS_HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    done = subprocess.run([BASH, "--norc", "-c", DRIVE], input="".join(f"{line}\n" for line in lines),
                          capture_output=True, text=True, env=environment, timeout=HANG_S, check=True)  # fmt: skip
    assert done.stderr == ""
    return [line.split() for line in done.stdout.splitlines()]


def fill(home: Path) -> None:
    """Two live clusters, one that is gone, and a run."""
    home.mkdir()
    book = Ledger.open(home)
    for name in ("lab", "lake", "gone-1"):
        row = book.intend(provider="local", name=name, folder=home, ephemeral=False, token=name, request={},
                          boot_deadline=9e9, lease=Lease(), owner_process=myself(), now=1.0)  # fmt: skip
        if name == "gone-1":
            book.mark_gone(row.id, 2.0, "over")
    book.add_run(stem="toy", cluster=1, folder=home, tree="project", request={}, facts={}, owner_process=None, now=1.0)
    book.close()


def test_what_is_offered(tmp_path: Path) -> None:
    fill(tmp_path / "home")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    lines = {
        "gpuops logs --gr": ["--grep"],
        "gpuops logs ": ["toy-1"],
        "gpuops down la": ["lab", "lake"],
        "gpuops up ": ["aws", "local", "pbs", "runpod", "slurm", "ssh", "vast", "cheapest"],
        "gpuops train mult": ["multigpu", "multinode"],
        "gpuops train multinode --workload t": ["toy"],
        "gpuops train multinode --workload ": ["first", "toy", "digits", "mnist", "cifar10", "movielens", "gpt"],
        "gpuops run --cluster lak": ["lake"],
    }
    assert dict(zip(lines, offered(tmp_path / "home", *lines), strict=True)) == lines
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before, "a look changes nothing"


def test_where_nothing_can_be_read_nothing_is_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("GPUOPS_HOME", str(home))
    assert offered(home, "gpuops down ", "gpuops logs d") == [[], []]
    assert not home.exists()
    home.mkdir()
    assert completion.clusters("") == []
    assert not list(home.iterdir())
    (home / FILE).write_bytes(b"no database")
    assert completion.runs("") == completion.live_runs("") == []
    monkeypatch.setenv("GPUOPS_HOME", "not absolute")
    assert completion.clusters("") == []
