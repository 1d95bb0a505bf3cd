"""SIGKILL the command at each question to a PBS cluster, and lose the answers: no job, node or file of ours stays."""

from __future__ import annotations

import pytest

from tests.conftest import until
from tests.system.lab.laptop import Laptop
from tests.system.lab.pbs import Pbs
from tests.system.lab.test_crash_slurm import WORK

PROOF = pytest.mark.proof
SUBMITTED = "qsub -N"


@PROOF
@pytest.mark.parametrize(
    "point",
    [
        *(f"asked:{when}:{SUBMITTED}:1" for when in ("before", "after")),
        *(f"asked:{when}:qselect -u:{nth}" for when in ("before", "after") for nth in (1, 2, 4)),
        *(f"asked:{when}:qdel:1" for when in ("before", "after")),
        "signal:KILL:gpuops.clusters.readiness:contact_cluster",
        "call:start:1:KILL",
        "signal:KILL:gpuops.commands.run_attempt:finish",
        "signal:KILL:gpuops.commands.end_after_run:tear_down",
    ],
)
def test_killed_on_the_way(pbs: Pbs, laptop: Laptop, point: str) -> None:
    assert run(pbs, laptop, point) == -9
    laptop.run("runs")  # the next command: starts a guard where none is left
    until(lambda: not laptop.cluster_states(), f"an end to what died at {point}")
    expect_nothing_left(pbs)
    rows = laptop.json("runs")["runs"]
    if rows and rows[0]["outcome"] == "done":
        assert (laptop.folder / "runs/sh-1/out/made.pt").read_text() == "made\n"


@pytest.mark.parametrize(
    "point",
    [
        f"asked:lost:{SUBMITTED}:1",
        *(pytest.param(f"asked:lost:{one}:1", marks=PROOF) for one in ("qselect -u", "qdel")),
    ],
)
def test_a_lost_answer(pbs: Pbs, laptop: Laptop, point: str) -> None:
    """The job that was submitted is found by its name, and used: there is one, not two."""
    assert run(pbs, laptop, point) == 0
    assert (laptop.folder / "runs/sh-1/out/made.pt").read_text() == "made\n"
    expect_nothing_left(pbs)
    assert len(pbs.ask("qselect", "-x")) == 1


def run(pbs: Pbs, laptop: Laptop, point: str) -> int:
    done = laptop.run("run", "--on", "pbs", *laptop.naming(pbs.login), "--nodes", "2", *WORK, driver=point)
    return done.returncode


def expect_nothing_left(pbs: Pbs) -> None:
    until(lambda: not pbs.jobs(), f"no job, but {pbs.jobs()}")
    until(lambda: not pbs.ours(), f"no process, but {pbs.ours()}")
    nodes = list(pbs.home.glob(".gpuops-*/*/n*"))
    assert not nodes, "the agent may stay for a while where the command died before there was a node"
