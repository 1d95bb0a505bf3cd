"""A torch that cannot use the GPUs is refused before the launch; the node itself has the last word."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from gpuops.core.errors import NodeError
from gpuops.core.models import Resource
from gpuops.core.run_models import RunRequest
from gpuops.nodes.python import check_torch
from gpuops.transport.connection import ProcessConnection
from gpuops.transport.rpc import AgentClient, NodePaths, Programs
from gpuops.transport.schemas import Gpu

V100 = [Gpu(3, "Tesla V100-SXM2-16GB", "595.10", "7.0")]
NO_KERNELS = ("2.11.0+cu128", "12.8")
TRAIN = RunRequest("torchrun", "multigpu", 1, None, script="train.py")


@pytest.fixture
def client() -> AgentClient:
    paths = NodePaths(Resource("machine", "a", "r", "m", False, data={"root": "/r", "python": "/p"}), "lab", 0, "a")
    return cast(AgentClient, Programs(ProcessConnection("node0"), paths))


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A Python whose torch works only where LD_LIBRARY_PATH says so; it notes which GPU it was shown."""
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES" >{tmp_path}/shown\n[ "$LD_LIBRARY_PATH" = /compat ]\n')
    path.chmod(0o755)
    return path


def ask(client: AgentClient, python: Path, build: tuple[str | None, str | None] = NO_KERNELS, **changes: Any) -> str:
    gpus = changes.pop("gpus", V100)
    return check_torch(client, [str(python)], *build, gpus, replace(TRAIN, **changes))


def test_what_has_no_kernels_is_refused(client: AgentClient, python: Path, tmp_path: Path) -> None:
    with pytest.raises(NodeError) as caught:
        ask(client, python)
    assert caught.value.message == (
        "node0: torch 2.11.0+cu128 has no kernels for Tesla V100-SXM2-16GB (compute capability 7.0)"
    )
    assert "/whl/cu126" in caught.value.hint
    assert (tmp_path / "shown").read_text() == "3\n"


def test_a_torch_that_works_nevertheless_is_not(client: AgentClient, python: Path) -> None:
    assert ask(client, python, env={"LD_LIBRARY_PATH": "/compat"}) == ""
    assert ask(client, python, prelude=("export LD_LIBRARY_PATH=/compat",)) == ""


def test_a_prelude_that_fails_there_is_named(client: AgentClient, python: Path) -> None:
    with pytest.raises(NodeError) as caught:
        ask(client, python, prelude=("modules load cuda",))
    assert caught.value.message == "node0: the prelude line `modules load cuda` failed with exit code 127"
    assert caught.value.hint == "correct it, or go on in spite of it: --prelude 'LINE || true'"


@pytest.mark.parametrize(
    ("build", "changes"),
    [
        (NO_KERNELS, {"env": {"CUDA_VISIBLE_DEVICES": ""}}),
        (NO_KERNELS, {"env": {"CUDA_VISIBLE_DEVICES": "-1"}}),
        (NO_KERNELS, {"kind": "command"}),
        (NO_KERNELS, {"gpus": []}),
        (("2.11.0+cu126", "12.6"), {}),
        (("2.11.0a0+nv26.01", "12.8"), {}),
        ((None, None), {}),
    ],
)
def test_what_is_not_known_to_fail_is_not_even_tried(
    client: AgentClient, python: Path, tmp_path: Path, build: tuple[str | None, str | None], changes: dict[str, Any]
) -> None:
    assert ask(client, python, build, **changes) == ""
    assert not (tmp_path / "shown").exists()


def test_a_torch_for_the_cpu_is_told_and_runs(client: AgentClient, python: Path) -> None:
    assert "torch 2.8.0+cpu is built without CUDA" in ask(client, python, ("2.8.0+cpu", None))
