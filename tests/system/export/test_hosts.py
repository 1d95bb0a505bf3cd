"""A Slurm script on two hosts with a network between them, where each host takes its own name for 127.0.1.1."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from gpuops.commands.export.job import TargetOptions
from gpuops.commands.export.targets import export_text
from gpuops.core.run_models import RunRequest
from tests.system.lab.conftest import lab  # noqa: F401 (a fixture)
from tests.system.lab.hosts import Lab

PROGRAM = Path(__file__).parent / "programs" / "agree.py"
HANG_S = 300.0
TOOLS = {"scontrol": "printf '%s\\n' first second", "srun": "printf '%s\\0' \"$@\" >/root/words"}
"""srun writes down what it was to start, which the test then starts on both."""


@pytest.mark.real_torch
def test_ranks_meet_where_a_name_is_another_address_at_home(lab: Lab, tmp_path: Path) -> None:  # noqa: F811
    home = tmp_path / "home"
    (home / "out").mkdir(parents=True)
    (home / "agree.py").write_text(PROGRAM.read_text())
    request = RunRequest(
        kind="torchrun",
        mode="multinode",
        nodes=2,
        gpus=1,
        script="agree.py",
        argv=["out"],
        python="/opt/pytorch/bin/python3",
    )
    (home / "script").write_text(export_text("slurm", request, TargetOptions(), port=0))
    for name, text in TOOLS.items():
        (home / name).write_text(f"#!/bin/bash\n{text}\n")
        (home / name).chmod(0o755)
    hosts = [lab.host(name, names="127.0.1.1", docker0=True, home=home) for name in ("first", "second")]
    job = ["SLURM_JOB_ID=4711", "SLURM_JOB_NODELIST=x"]

    batch = hosts[0].run(["bash", "-c", 'cd && PATH=/root:$PATH exec env "$@" bash script', "bash", *job])
    assert batch.returncode == 0, batch.stderr
    words = (home / "words").read_text().rstrip("\0").split("\0")
    program = words[words.index("bash") :]
    tasks = [
        subprocess.Popen([*host.enter, *job, f"SLURM_NODEID={node}", "sh", "-c", 'cd && exec "$@"', "sh", *program])
        for node, host in enumerate(hosts)
    ]
    assert [task.wait(HANG_S) for task in tasks] == [0, 0]

    ranks = [json.loads((home / "out" / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert [(rank["world"], rank["total"]) for rank in ranks] == [(2, 3)] * 2
    assert {rank["env"]["GLOO_SOCKET_IFNAME"] for rank in ranks} == {"eth0"}
    assert {rank["env"]["NCCL_SOCKET_IFNAME"] for rank in ranks} == {"=eth0"}
