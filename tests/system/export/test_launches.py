"""What `export` prints, executed: two nodes on this machine, with torch's own launcher and gloo."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuops.cli.entry import execute
from tests.fakes import schedulers
from tests.ports import free_port

PROGRAM = Path(__file__).parent / "programs" / "agree.py"
HANG_S = 300.0
JOB = str(free_port())
"""The number of the job, from which its port comes: another one in each process of tests."""
SIZE = ("--nodes", "2", "--gpus", "1", "--python", sys.executable)
"""A rank for each node: what takes time is how often torch is loaded."""
FOUR_RANKS = ("--nodes", "2", "--gpus", "2", "--python", sys.executable)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="scripts for bash")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the program, and with a folder `out` for what its ranks write."""
    folder = tmp_path / "project"
    (folder / "out").mkdir(parents=True)
    shutil.copy(PROGRAM, folder / "agree.py")
    monkeypatch.setenv("GPUOPS_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(folder)
    schedulers.install(tmp_path / "tools")
    return folder


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    return tmp_path / "tools"


def export(capsys: pytest.CaptureFixture[str], target: str, *words: str) -> str:
    capsys.readouterr()
    assert execute(["export", target, *words]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def submit(script: str, env: dict[str, str], cwd: Path) -> subprocess.Popen[str]:
    """Start a job's script, as a scheduler does: from a copy of its own."""
    copy = cwd.parent / "slurm_script"
    copy.write_text(script)
    out = open(cwd.parent / "job.out", "w")  # noqa: SIM115 (the process has it)
    return subprocess.Popen(["bash", str(copy)], env=env, cwd=cwd, stdout=out, stderr=subprocess.STDOUT, text=True)


def end(process: subprocess.Popen[str], cwd: Path) -> tuple[int, str]:
    code = process.wait(HANG_S)
    return code, (cwd.parent / "job.out").read_text()


def assert_one_world(project: Path, *argv: str, each: int = 1) -> list[dict[str, Any]]:
    """All ranks met, `each` of them on a node, with the words and the variables that they should have."""
    world = 2 * each
    found = [json.loads((project / "out" / f"rank{rank}.json").read_text()) for rank in range(world)]
    total = sum(range(1, world + 1))
    assert [(rank["world"], rank["total"], rank["argv"]) for rank in found] == [(world, total, list(argv))] * world
    environments = [rank["env"] for rank in found]
    assert [env["GROUP_RANK"] for env in environments] == ["0"] * each + ["1"] * each
    for env in environments:
        assert env["PYTHONUNBUFFERED"] == "1"
        assert env["OMP_NUM_THREADS"] == "4"
        assert (env["GLOO_SOCKET_IFNAME"], env["NCCL_SOCKET_IFNAME"]) == ("lo", "=lo")
        assert env["COLOUR"] == "dark red"
        misleading = {"PET_", "PMI_", "PMIX_", "PBS_N", "SLURM_P", "SLURM_N"}
        assert not [name for name in env if name.startswith(tuple(misleading))]
    return environments


def test_slurm_also_asks_for_a_snapshot_before_its_end(
    project: Path, tools: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*FOUR_RANKS, "--env", "COLOUR=dark red", "--", "out", "snapshot")
    job = submit(export(capsys, "slurm", "agree.py", *words), schedulers.slurm_job(tools, JOB), project)
    deadline = time.monotonic() + HANG_S
    while len(list((project / "out").glob("rank*.json"))) < 4:
        assert job.poll() is None, end(job, project)
        assert time.monotonic() < deadline
        time.sleep(0.1)
    job.send_signal(signal.SIGUSR1)
    code, said = end(job, project)
    assert code == 0, said
    environments = assert_one_world(project, "out", "snapshot", each=2)
    assert {env["SLURM_JOB_ID"] for env in environments} == {JOB}
    assert len(list((project / "out").glob("saved*"))) == 4
    assert sorted(path.name for path in project.iterdir()) == ["agree.py", "out"]


@pytest.mark.proof
def test_slurm_trains_a_workload(project: Path, tools: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = export(capsys, "slurm", "--workload", "toy", *FOUR_RANKS, "--", "2", "1")
    code, said = end(submit(script, schedulers.slurm_job(tools, JOB), project), project)
    assert code == 0, said
    assert sorted(re.findall(r"\[GPU\d\] Epoch \d \| Batchsize: 32 \| Steps: 16", said)) == [
        f"[GPU{rank}] Epoch {epoch} | Batchsize: 32 | Steps: 16" for rank in range(4) for epoch in range(2)
    ]
    assert (project / "snapshots" / "toy").is_dir()


def test_pbs(project: Path, tools: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = export(capsys, "pbs", "agree.py", *SIZE, "--env", "COLOUR=dark red", "--", "out")
    home = tmp_path / "pbs home"
    home.mkdir()
    code, said = end(submit(script, schedulers.pbs_job(tools, f"{JOB}.server", project, home), home), home)
    assert code == 0, said
    environments = assert_one_world(project, "out")
    assert {env["PBS_JOBID"] for env in environments} == {f"{JOB}.server"}
    assert sorted(path.name for path in project.iterdir()) == ["agree.py", "out"]


@pytest.mark.parametrize("target", ["slurm", "pbs"])
def test_a_rank_that_fails_ends_the_job(
    project: Path, tools: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    """The ranks of the other node would go on for an hour, and so would its torchrun."""
    script = export(capsys, target, "agree.py", *SIZE, "--", "out", "fail", "1")
    env = (
        schedulers.slurm_job(tools, JOB)
        if target == "slurm"
        else schedulers.pbs_job(tools, f"{JOB}.server", project, tmp_path)
    )
    code, said = end(submit(script, env, project), project)
    assert code not in (0, None), said
    if target == "pbs":
        assert "node 1 failed with exit code 1" in said
    assert sorted(path.name for path in project.iterdir()) == ["agree.py", "out"]


def test_torchrun_lines(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = export(capsys, "torchrun", "agree.py", *SIZE, "--cpus", "4", "--env", "COLOUR=dark red", "--", "out")
    first, *lines = re.split(r"^# Then on node \d:\n", text, flags=re.M)
    env = {**os.environ, "HEAD": "127.0.0.1", "PET_NNODES": "7"}
    nodes = [subprocess.Popen(["bash", "-c", first + line], env=env, cwd=project) for line in lines]
    assert [node.wait(HANG_S) for node in nodes] == [0, 0]
    assert_one_world(project, "out")


def expand(text: str) -> str:
    """What the kubelet makes of a command's word where no variable of its own has the name in `$(NAME)`."""
    return re.sub(r"\$\$|\$\(\w+\)", lambda found: "$" if found[0] == "$$" else pytest.fail(found[0]), text)


def test_kubernetes(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (*SIZE, "--image", "torch:1", "--env", "COLOUR=dark red", "--", "out")
    job, service = yaml.safe_load_all(export(capsys, "k8s", "agree.py", *words))
    container = job["spec"]["template"]["spec"]["containers"][0]
    given = {one["name"]: expand(one["value"]) for one in container["env"] if "value" in one}
    script = expand(container["args"][0])
    head = f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert head in script
    script = script.replace(head, "127.0.0.1").replace("=29500", f"={free_port()}")
    nodes = [
        subprocess.Popen(
            [*container["command"], script],
            env={**os.environ, **given, "POD_IP": "127.0.0.1", "JOB_COMPLETION_INDEX": str(node)},
            cwd=project,
        )
        for node in range(2)
    ]
    assert [node.wait(HANG_S) for node in nodes] == [0, 0]
    assert_one_world(project, "out")
