"""What tests/unit/runs/test_launch_spec.py leaves to real processes or sockets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuops.agent.run import command_and_environment
from gpuops.agent.run_documents import LaunchSpec
from gpuops.core.run_models import NodeFacts
from gpuops.nodes import bootstrap
from tests.ports import free_port
from tests.unit.runs.test_launch_spec import TRAIN, specs

# The real thing: torchrun, the agent's rank wrapper, and arguments that want to be something else.

NASTY = (
    "--", "--help", "-h", "--nnodes=7", "-m", "", " ", "a b", "'", '"', "a'b\"c", "line\nline", "tab\there",
    "$(touch pwned)",
    "`touch pwned`", "; touch pwned", "&& touch pwned", "| touch pwned", "$HOME", "~", "*", "\\", "\\n", "%s", "!!",
    "#",
    "żółć", "🏖️", "{run}", "{agent}", "{python}", "--", "-", "@file", "-1",
)  # fmt: skip
SAY = """
import json, os, sys
import torch.distributed as dist
dist.init_process_group("gloo")
names = ["WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "OMP_NUM_THREADS", "NASTY", "PET_NNODES"]
print(json.dumps([sys.argv[1:], {name: os.environ.get(name) for name in names}]))
dist.barrier()
"""


def start(spec: Mapping[str, Any], program: list[str], folder: Path, tree: Path) -> subprocess.Popen[bytes]:
    """What the agent does with a spec."""
    (folder / "ranks").mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps(spec))
    parsed, tokens = LaunchSpec.parse(spec), command_and_environment.token_values(program, str(folder))
    environment = command_and_environment.build_environment(
        {**os.environ, "PET_NNODES": "9", "RANK": "5"}, parsed, {}, tokens, {}
    )
    with (folder / "launcher.err").open("wb") as errors:
        return subprocess.Popen(
            command_and_environment.build_command(parsed, tokens),
            cwd=tree,
            env=environment,
            stdout=errors,
            stderr=errors,
        )


def test_two_nodes_of_two_ranks_get_every_argument_byte_for_byte(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    agent, _ = bootstrap.build_agent(tmp_path / "agent")
    tree = tmp_path / "a tree"
    tree.mkdir()
    (tree / "say it.py").write_text(SAY)
    nodes = tuple(
        NodeFacts(i, sys.executable, 2, cores=2, gpus=[], interface="lo", address="127.0.0.1") for i in (0, 1)
    )
    request = replace(TRAIN, script="say it.py", argv=NASTY, env={"NASTY": "a\n$(touch pwned)'\" żółć {run} {python}"})
    launched = specs(request, nodes, master=("127.0.0.1", free_port()), gang=None)
    folders = [tmp_path / "run 0", tmp_path / "run 1"]
    program = [sys.executable, "-I", str(agent)]
    running = [start(spec, program, folder, tree) for spec, folder in zip(launched, folders, strict=True)]
    try:
        codes = [process.wait(600) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert codes == [0, 0], [(folder / "launcher.err").read_text()[-2000:] for folder in folders]
    for rank in range(4):
        node, local = divmod(rank, 2)
        arguments, environment = json.loads((folders[node] / "ranks" / f"{rank}.out").read_text())
        assert arguments == list(NASTY)
        assert environment == {
            "WORLD_SIZE": "4", "LOCAL_RANK": str(local), "GROUP_RANK": str(node), "OMP_NUM_THREADS": "1",
            "NASTY": request.env["NASTY"], "PET_NNODES": None,
        }  # fmt: skip
    assert [path.name for path in tree.iterdir()] == ["say it.py"]
