"""The scripts that ask Slurm, with commands that answer as Slurm's do where a site is not as it should be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpuops.core.models import Resource
from provisioners.base import Context
from provisioners.batch.jobs import JobState
from provisioners.batch.login_node import HERE, LoginNode
from provisioners.batch.provisioner import Submission
from provisioners.slurm import SlurmProvisioner, commands
from tests.conftest import HANG_S

MARK, TOKEN = "gpuops-0a1b2c3d-lab-job", "4b93b845e82e-9f463d65"
LOGIN = LoginNode(HERE, "/root/.gpuops-0a1b2c3d", "python3", None)
NOISE = "squeue: error: Ignoring obsolete FastSchedule=1 option. Please remove from your configuration."
"""What every command says on its errors of a configuration that it goes on with."""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for commands, which come first."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return folder


def command(tools: Path, name: str, script: str) -> None:
    (tools / name).write_text(f"#!/bin/sh\n{script}\n")
    (tools / name).chmod(0o755)


@pytest.fixture
def provisioner(tools: Path) -> SlurmProvisioner:
    command(tools, "squeue", "exit 0")
    return SlurmProvisioner(Context("0a1b2c3d", tools / "home", {}))


@pytest.mark.parametrize(
    ("state", "errors", "where"),
    [
        ("RUNNING", "", "step"),
        ("RUNNING", NOISE, "step"),
        ("", "", "left"),
        ("", NOISE, "left"),
        ("", f"{NOISE}\nslurm_load_jobs error: Invalid job id specified", "left"),
        ("", f"{NOISE}\nslurm_load_jobs error: Unable to contact slurm controller (connect failure)", "step"),
    ],
)
def test_what_a_job_left_is_read_where_it_is_over_whatever_else_is_said(
    tools: Path, state: str, errors: str, where: str
) -> None:
    fails = int("slurm_load_jobs" in errors)
    command(tools, "squeue", f"echo '{errors}' >&2; echo '{state}'; exit {fails}")
    command(tools, "srun", "echo step")
    words = [*commands.step_words("7", "c1"), "echo", "-IS", "agent.pyz", "connect"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANG_S)
    assert done.stdout.split()[-1].strip("-") == where, done.stderr


def test_a_cluster_is_the_one_that_is_asked_for_everything(
    tools: Path, provisioner: SlurmProvisioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a login has set for its own jobs may send one to another cluster, or make it many: nothing would find it."""
    kept = {"SLURM_CONF": "/etc/slurm/two.conf", "SBATCH_ACCOUNT": "phys", "SBATCH_PARTITION": "gpu"}
    other = {"SBATCH_CLUSTERS": "two", "SBATCH_ARRAY_INX": "0-3", "SBATCH_WAIT": "1", "SCANCEL_PARTITION": "cpu",
             "SLURM_CLUSTERS": "two", "SQUEUE_STATES": "R", "SACCT_FEDERATION": "1", "SINFO_SORT": "x"}  # fmt: skip
    for name, value in {**kept, **other}.items():
        monkeypatch.setenv(name, value)
    for name in ("sbatch", "scancel"):
        command(tools, name, f'env >"{tools}/$(basename "$0").env"; cat >/dev/null; echo 7')
    submission = Submission(f"{MARK}.{TOKEN}", TOKEN, "/f", "/a", "/o", {"words": [], "cpus": 1})
    assert provisioner.submit(LOGIN, submission) == "7"
    provisioner.cancel(LOGIN, [submission.name])
    for name in ("sbatch", "scancel"):
        lines = (tools / f"{name}.env").read_text().splitlines()
        env = dict(line.partition("=")[::2] for line in lines)
        assert {one: env.get(one) for one in kept} == kept
        assert env.keys() & other.keys() == set()


def test_accounting_that_does_not_answer_fails_no_look(tools: Path, provisioner: SlurmProvisioner) -> None:
    command(tools, "sacct", "exec sleep 600")
    assert provisioner.list_past_jobs(LOGIN, [f"{MARK}.{TOKEN}"]) == []


def test_how_a_job_ended_is_asked_of_records_where_there_is_no_database(
    tools: Path, provisioner: SlurmProvisioner
) -> None:
    ended = f"7|{MARK}.{TOKEN}|PREEMPTED"
    command(tools, "sacct", f'case " $* " in *" -c "*) echo "{ended}" ;; *) echo disabled >&2; exit 1 ;; esac')
    (job,) = provisioner.list_past_jobs(LOGIN, [f"{MARK}.{TOKEN}"])
    assert (job.id, job.state, job.preempted) == ("7", JobState.OVER, True)


def test_the_end_of_a_node_spares_the_next_one_in_its_folder(tools: Path, provisioner: SlurmProvisioner) -> None:
    """Of two commands that end a cluster one may come when another cluster has its name."""
    root = tools / ".gpuops-0a1b2c3d"
    folder = root / "lab/n0"
    folder.mkdir(parents=True)
    settings = {"mark": "gpuops-0a1b2c3d-lab-0", "token": "new-0", "host": f"slurm/{HERE}", "index": 0}
    (folder / "node.json").write_text(json.dumps(settings))

    def machine(token: str) -> Resource:
        data = {"root": str(root), "python": sys.executable, "folder": str(folder), "token": token}
        return Resource("machine", f"{HERE}:{folder}", HERE, settings["mark"], bills=False, data=data)

    provisioner.destroy([machine("old-0")])
    assert json.loads((folder / "node.json").read_text()) == settings
    provisioner.destroy([machine("new-0")])
    assert not root.exists()
