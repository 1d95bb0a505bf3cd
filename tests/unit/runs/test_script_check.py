"""What is said of a script before anything is rented, by its text alone."""

from __future__ import annotations

import ast
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from gpuops.core.errors import UsageError
from gpuops.core.run_models import RunRequest
from gpuops.runs.script_check import check_script, starts_its_ranks
from gpuops.sync.project_files import file_entry
from gpuops.sync.scan import Tree

SPAWNS = """
import os
import torch.multiprocessing as mp
from torch.distributed import init_process_group

def ddp_setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    init_process_group(backend="nccl", rank=rank, world_size=world_size)

def main(rank, world_size):
    ddp_setup(rank, world_size)

if __name__ == "__main__":
    mp.spawn(main, args=(2,), nprocs=2)
"""
FORKS = """
import torch.distributed as dist
import torch.multiprocessing as mp

def init_process(rank, size, fn, backend="gloo"):
    dist.init_process_group(backend, rank=rank, world_size=size)

for rank in range(2):
    process = mp.Process(target=init_process, args=(rank, 2, print))
    process.start()
"""
CALLS = """
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp

def run_worker(rank, world_size):
    rpc.init_rpc("trainer" if rank else "ps", rank=rank, world_size=world_size)

mp.spawn(run_worker, args=(2,), nprocs=2, join=True)
"""
DEMOS = (
    SPAWNS.partition("if __name__")[0]
    + """
def run_demo(demo, world_size):
    mp.spawn(demo, args=(world_size,), nprocs=world_size, join=True)

run_demo(main, 2)
"""
)
JOINS = """
import torch.distributed as dist
from torch.multiprocessing import Process, spawn

def write_log(queue):
    queue.get()

dist.init_process_group("nccl")
Process(target=write_log, args=(1,)).start()
"""


def check(folder: Path, text: str | bytes, *argv: str, allow: tuple[str, ...] = (), **changed: object) -> None:
    """What `gpuops train multigpu my.py -- ARGV` checks, or with -m my."""
    path = folder / "my.py"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    given = {"mode": "multigpu", "nodes": 1, "gpus": None, "script": "my.py", "argv": argv, **changed}
    request = RunRequest(kind="torchrun", **given)  # type: ignore[arg-type]
    check_script(request, Tree(folder, [file_entry(path)]), allow)


@pytest.mark.parametrize(
    ("how", "line"),
    [({}, "gpuops run -- python my.py 50 10"), ({"script": None, "module": "my"}, "gpuops run -- python -m my 50 10")],
)
@pytest.mark.parametrize("text", [SPAWNS, FORKS])
def test_a_script_that_starts_its_ranks_itself_is_refused_with_the_line_to_type(
    tmp_path: Path, text: str, how: dict[str, object], line: str
) -> None:
    with pytest.raises(UsageError) as refused:
        check(tmp_path, text, "50", "10", **how)
    assert refused.value.message == (
        "my.py starts its own processes, and torchrun would start it once for each rank: they would never meet"
    )
    assert refused.value.hint.startswith(f"start it once: {line} (")
    check(tmp_path, text, allow=("my.py",), **how)  # as the hint says


@pytest.mark.parametrize("alone", [{"mode": "single", "gpus": 1}, {"gpus": 1}])
def test_one_rank_may_start_its_own_world(tmp_path: Path, alone: dict[str, object]) -> None:
    check(tmp_path, SPAWNS, **alone)


@pytest.mark.parametrize(
    "text",
    [
        SPAWNS.replace("import os\n", "import os\nimport torch\n")
        .replace("import torch.multiprocessing as mp\n", "import torch.multiprocessing\n")
        .replace("mp.spawn(", "torch.multiprocessing.spawn("),
        SPAWNS.replace("import torch.multiprocessing as mp", "from torch import multiprocessing as mp"),
        SPAWNS.replace("mp.spawn(main, ", "mp.start_processes(fn=main, "),
        SPAWNS.replace("mp.spawn(main, ", "mp.spawn(partial(main, 3), "),
        SPAWNS.replace("rank=rank, world_size=world_size", "None, None, world_size, rank").replace("backend=", ""),
        SPAWNS.replace("rank=rank, ", "").replace('os.environ["MASTER_PORT"]', 'os.environ["RANK"]'),
        FORKS.replace("mp.Process(", "mp.get_context('spawn').Process("),
        FORKS.replace("(backend, rank", "('nccl', init_method='env://', rank"),
        "WORLD_SIZE = 2\n" + FORKS,
        CALLS,
        CALLS.replace(", rank=rank, world_size=", ", None, rank, "),
        DEMOS,
        DEMOS.replace("run_demo(main, 2", "run_demo(world_size=2, demo=main"),
    ],
)
def test_so_it_is_in_other_words(text: str) -> None:
    assert starts_its_ranks(ast.parse(text))


@pytest.mark.parametrize(
    "text",
    [
        "",
        JOINS,
        JOINS.replace('("nccl")', '("nccl", rank=rank, world_size=2)'),
        SPAWNS.replace('os.environ["MASTER_ADDR"] =', 'rank = os.environ.get("LOCAL_RANK") or'),
        SPAWNS.replace('if __name__ == "__main__":', 'if "WORLD_SIZE" not in os.environ:'),
        SPAWNS.replace('if __name__ == "__main__":', "if not is_torchelastic_launched():"),
        SPAWNS + "else:\n    init_process_group('nccl')\n",
        SPAWNS.replace("rank=rank, world_size=world_size", "**settings"),
        SPAWNS.replace("mp.spawn(", "pool.spawn("),
        SPAWNS.replace("mp.spawn(main, ", "mp.spawn(load_data, "),
        FORKS.replace("init_process,", "serve_metrics,"),
        FORKS.replace("mp.Process(target=init_process", "psutil.Process(init_process"),
        "import torch.multiprocessing as mp\nmp.spawn(main)\n",
        CALLS.replace("rank=rank, world_size=world_size", "backend=rpc.BackendType.TENSORPIPE"),
        DEMOS.replace("run_demo(main", "run_demo(load_data"),
    ],
)
def test_one_that_torchrun_may_start_is_not(text: str) -> None:
    assert not starts_its_ranks(ast.parse(text))


def test_our_own_workloads_pass() -> None:
    for path in (Path(__file__).parents[3] / "train").rglob("*.py"):
        assert not starts_its_ranks(ast.parse(path.read_bytes())), path


@pytest.mark.parametrize("how", [{}, {"script": None, "module": "my"}, {"mode": "single"}])
def test_a_syntax_error_is_said_with_its_line(tmp_path: Path, how: dict[str, object]) -> None:
    broken = "import torch\nfor epoch in range(3)\n    pass\n"
    with pytest.raises(UsageError) as refused:
        check(tmp_path, broken, **how)
    assert refused.value.message == "my.py line 2: syntax error: expected ':'"
    assert refused.value.hint == (
        "correct it (or send it as it is, for a newer Python on the nodes: --send-anyway my.py)"
    )
    check(tmp_path, broken, allow=("my.py",), **how)


@pytest.mark.parametrize(
    "text",
    [
        b"PK\x03\x04\0\0",
        b"\xef\xbb\xbf# -*- coding: utf-8 -*-\nprint('\xc3\xbc')\n",
        b"# coding: latin-1\nprint('\xfc')\n",
        b"x = " + b"-" * 20_000 + b"1\n",
        b"#!/usr/bin/env python\n" + b"#" * 1_000_001 + b"\n1 +\n",
    ],
)
def test_what_python_may_run_all_the_same_is_sent(tmp_path: Path, text: bytes) -> None:
    check(tmp_path, text)


def test_a_warning_of_the_compiler_is_the_scripts_own_affair(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(tmp_path, 'print("\\d" is 1)\n')


def test_a_script_behind_links_is_sent_where_they_stay_in_the_project(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "v2").mkdir(parents=True)
    (tmp_path / "out.py").write_text("")
    (project / "v2/my.py").write_text("1 +")
    (project / "latest").symlink_to("v2")
    (project / "out.py").symlink_to("../out.py")
    tree = Tree(project, [replace(file_entry(project / path), path=path) for path in ("v2/my.py", "out.py")])

    def say_of(script: str) -> str:
        with pytest.raises(UsageError) as refused:
            check_script(RunRequest(kind="torchrun", mode="multigpu", nodes=1, gpus=2, script=script), tree)
        return refused.value.message

    assert say_of("latest/my.py").startswith("latest/my.py line 1: syntax error")
    assert say_of("out.py") == "out.py is a link that leads out of the project"


def test_a_script_among_the_results_is_not_called_ignored(tmp_path: Path) -> None:
    script = tmp_path / "runs/train.py"
    script.parent.mkdir()
    script.write_text("pass\n")
    request = RunRequest("torchrun", "single", nodes=1, gpus=1, script="runs/train.py")
    with pytest.raises(UsageError, match=r"runs/train\.py is not sent: results lie in runs/"):
        check_script(request, Tree(tmp_path, []))
