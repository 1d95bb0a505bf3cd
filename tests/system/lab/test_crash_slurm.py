"""SIGKILL the command at each question to a Slurm cluster, and lose the answers: no job, node or file of ours stays."""

from __future__ import annotations

import pytest

from tests.conftest import until
from tests.system.lab.laptop import Laptop
from tests.system.lab.slurm import USER, Slurm

WORK = ("--", "sh", "-c", "echo working; sleep 0.3; echo made > made.pt")
PROOF = pytest.mark.proof


@pytest.mark.parametrize(
    "point",
    [
        "asked:before:sbatch:2",  # the first asks whether it would take the job
        "asked:after:sbatch:2",
        *(pytest.param(f"asked:{when}:squeue:{nth}", marks=PROOF) for when in ("before", "after") for nth in (1, 2, 4)),
        *(pytest.param(f"asked:{when}:scancel:1", marks=PROOF) for when in ("before", "after")),
        pytest.param("signal:KILL:gpuops.nodes.bootstrap:install_agent", marks=PROOF),
        pytest.param("signal:KILL:gpuops.nodes.bootstrap:call_agent_mode", marks=PROOF),
        pytest.param("signal:KILL:gpuops.clusters.readiness:contact_cluster", marks=PROOF),
        pytest.param("call:start:1:KILL", marks=PROOF),
        pytest.param("signal:KILL:gpuops.commands.run_attempt:finish", marks=PROOF),
        pytest.param("signal:KILL:gpuops.commands.end_after_run:tear_down", marks=PROOF),
    ],
)
def test_killed_on_the_way(slurm: Slurm, laptop: Laptop, point: str) -> None:
    died = run(slurm, laptop, point)
    assert died == -9
    laptop.run("runs")  # the next command: starts a guard where none is left
    until(lambda: not laptop.cluster_states(), f"an end to what died at {point}")
    expect_nothing_left(slurm)
    rows = laptop.json("runs")["runs"]
    if rows and rows[0]["outcome"] == "done":
        assert (laptop.folder / "runs/sh-1/out/made.pt").read_text() == "made\n"


@pytest.mark.parametrize("point", ["asked:lost:sbatch:2", pytest.param("asked:lost:squeue:2", marks=PROOF),
                                   pytest.param("asked:lost:scancel:1", marks=PROOF)])  # fmt: skip
def test_a_lost_answer(slurm: Slurm, laptop: Laptop, point: str) -> None:
    """The job that was submitted is found by its name, and used: there is one, not two."""
    assert run(slurm, laptop, point) == 0
    assert (laptop.folder / "runs/sh-1/out/made.pt").read_text() == "made\n"
    expect_nothing_left(slurm)
    assert len(slurm.ask("squeue", "-h", "-t", "all", "-o", "%i")) == 1


def run(slurm: Slurm, laptop: Laptop, point: str) -> int:
    done = laptop.run(
        "run", "--on", "slurm", *laptop.naming(slurm.login, user=USER), "--nodes", "2", *WORK, driver=point
    )
    return done.returncode


def expect_nothing_left(slurm: Slurm) -> None:
    until(lambda: not slurm.jobs(), f"no job, but {slurm.jobs()}")
    until(lambda: not slurm.ours(), f"no process, but {slurm.ours()}")
    nodes = list(slurm.home.glob(".gpuops-*/*/n*"))
    assert not nodes, "the agent may stay for a while where the command died before there was a node"
