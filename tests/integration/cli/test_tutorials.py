"""DataParallel beside DistributedDataParallel, as a tutorial compares them, on two nodes by one command: the same
weights, and a test loss with and without a reduction over ranks, beside the one that a single process computes.

The other tutorials' result lines: sixteen ranks and movielens in tests/system/lab/test_workloads.py, ResNet-18 by PBS
in tests/system/lab/test_pbs.py, a notebook in tests/system/train/test_notebook.py.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.conftest import HANG_S, Shell

pytestmark = pytest.mark.real_torch

PROGRAMS = Path(__file__).parent / "programs"
TWO_NODES = ("train", "multinode", "--nodes", "2", "--gpus", "1")
ROUNDED = 1e-6
"""Sums of the same numbers in another order."""


@pytest.fixture
def reader(shell: Shell) -> Shell:
    for name in ("dp_or_ddp.py", "lightning_and_hydra.py", "points.yaml"):
        shell.write(name, (PROGRAMS / name).read_text())
    return shell


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(PROGRAMS)
    return importlib.import_module("dp_or_ddp")


def weights(folder: Path) -> dict[str, Any]:
    import torch

    loaded: dict[str, Any] = torch.load(folder / "model.pt", weights_only=True)
    return loaded


def losses_of(program: ModuleType, state: dict[str, Any]) -> Any:
    """Of each test point, in one process."""
    import torch

    model = program.build_model()
    model.load_state_dict(state)
    _, test_set = program.load_data()
    with torch.no_grad():
        return program.cross_entropy(model(test_set.tensors[0]), test_set.tensors[1], reduction="none")


def shares(losses: Any) -> list[float]:
    """The mean of each rank's points by DistributedSampler, which repeats the first one for the second rank."""
    import torch

    return [losses[0::2].mean().item(), torch.cat([losses[1::2], losses[:1]]).mean().item()]


def told(out: str, pattern: str) -> list[float]:
    return [float(number) for number in re.findall(pattern, out)]


def test_data_parallel_and_ddp_learn_the_same_and_a_loss_is_of_all_ranks_only_if_reduced(
    reader: Shell, program: ModuleType
) -> None:
    by_hand = [sys.executable, "dp_or_ddp.py", "dp"]
    one = subprocess.run(by_hand, cwd=reader.folder, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert one.returncode == 0, one.stderr
    single = weights(reader.folder)
    two = reader.run(*TWO_NODES, "dp_or_ddp.py", "--", "ddp")
    assert two.returncode == 0, two.stderr
    assert "all 2 ranks ended well" in two.stderr
    distributed = weights(reader.folder / "runs/dp-or-ddp-1/out")
    assert max((single[name] - distributed[name]).abs().max().item() for name in single) < ROUNDED

    losses = losses_of(program, distributed)
    exact, own = losses.mean().item(), shares(losses)
    assert told(one.stdout, r"own test loss (\S+) of 101") == pytest.approx([exact], abs=ROUNDED)
    assert [
        *told(two.stdout, r"\[n0 r0\] own test loss (\S+) of 51"),
        *told(two.stdout, r"\[n1 r1\] own test loss (\S+) of 51"),
        *told(two.stdout, r"\[n0 r0\] mean of the ranks (\S+)"),
        *told(two.stdout, r"\[n0 r0\] each point once (\S+)"),
    ] == pytest.approx([*own, sum(own) / 2, exact], abs=ROUNDED)
    assert abs(own[0] - exact) > 100 * ROUNDED, "what one rank tells is not the whole"
    assert abs(sum(own) / 2 - exact) > 100 * ROUNDED, "nor is the mean of both, with a point counted twice"
    reader.expect_clean()


@pytest.mark.proof  # Lightning and Hydra take longer to load than torch does
def test_lightning_tells_of_one_rank_without_sync_dist_and_of_the_mean_with_it(
    reader: Shell, program: ModuleType
) -> None:
    for package in ("pytorch_lightning", "hydra"):
        pytest.importorskip(package, reason=f"{package} is not installed; `make proof` installs it")
    done = reader.run(*TWO_NODES, "lightning_and_hydra.py", "--", "trainer.num_nodes=2")
    assert done.returncode == 0, done.stderr
    assert "all 2 ranks ended well" in done.stderr
    own = shares(losses_of(program, weights(reader.folder / "runs/lightning-and-hydr-1/out")))
    mean = sum(own) / 2
    for rank in range(2):
        line = rf"\[n{rank} r{rank}\] rank {rank}: .*'val/plain': (\S+), 'val/synced': (\S+)\}}"
        [pair] = re.findall(line, done.stdout)
        assert [float(number) for number in pair] == pytest.approx([own[rank], mean], abs=ROUNDED)
    assert abs(own[0] - mean) > 100 * ROUNDED
    reader.expect_clean()
