"""The script that lists a user's PBS jobs, with commands that answer as those of OpenPBS do (src/cmds/qstat.c)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpuops.core.errors import Unknown
from provisioners.base import Context
from provisioners.batch.jobs import JobState
from provisioners.batch.login_node import HERE, LoginNode
from provisioners.pbs import PbsProvisioner

NAME = "gpuops-0a1b2c3d-lab-job.4b93b845e82e-9f463d65"
PBS = r"""
import os, pathlib, sys
name, arguments = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
folder = pathlib.Path(sys.argv[0]).parent
jobs = dict(line.split(" ", 1) for line in (folder / "jobs").read_text().splitlines())
if name == "qselect":
    if (folder / "down").exists():
        sys.exit("qselect: cannot connect to server pbs (errno=15010)")
    if "-x" in arguments:
        sys.exit("qselect: PBS is not configured to maintain job history")
    print(*jobs, sep="\n")
if name == "qdel":
    (folder / "deleted").write_text(arguments[0])
if name == "qstat":
    asked = [word for word in arguments if word.endswith(".pbs")]
    delimiter = arguments[arguments.index("-D") + 1] if "-D" in arguments else "|"
    told = {}
    for number in asked:
        if number == "3.pbs" and (folder / "ends").exists():
            (folder / "jobs").write_text("".join(f"{one} {jobs[one]}\n" for one in jobs if one != number))
            sys.stderr.write(f"qstat: Unknown Job Id {number}\n")
            continue
        if told and (folder / "cut").exists():
            sys.stderr.write("qstat: cannot connect to server pbs (errno=15010)\n")
            continue
        told[number] = jobs[number]
    if "dsv" in arguments:
        for number, job in told.items():
            print(f"Job Id: {number}", f"Job_Name={job}", "job_state=R", "comment=Job run at noon, on c1 | c2",
                  "Resource_List.nodect=2", "Resource_List.walltime=01:00:00", "stime=Thu Nov 26 18:10:00 2026",
                  "Variable_List=BASH_FUNC_x=() {\\n},A='\"\x85", sep=delimiter)
    else:  # of several only the first (openpbs#2672), and a user's variables as they are (openpbs#2541)
        number, job = next(iter(told.items()))
        print('{"Jobs":{"%s":{"Job_Name":"%s","job_state":"R","Variable_List":{"A":"\'"","B":005}}}}' % (number, job))
"""


@pytest.fixture
def pbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of PBS's commands. In it: `jobs`, a line of number and name for each; and files that make it fail."""
    for name in ("qselect", "qstat", "qdel", "qsub"):
        (tmp_path / name).write_text(f"#!{sys.executable}\n{PBS}")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "jobs").write_text(f"1.pbs {NAME}\n2.pbs somebody's\n3.pbs {NAME}\n")
    return tmp_path


@pytest.fixture
def provisioner(pbs: Path) -> PbsProvisioner:
    return PbsProvisioner(Context("0a1b2c3d", pbs / "home", {}))


LOGIN = LoginNode(HERE, "/root/.gpuops-0a1b2c3d", "python3", None)


def test_what_a_job_of_the_user_has_in_its_environment_hides_no_other(provisioner: PbsProvisioner) -> None:
    jobs = provisioner.list_jobs(LOGIN)
    assert [(job.id, job.name, job.state, job.nodes) for job in jobs] == [
        ("1.pbs", NAME, JobState.RUNNING, 2), ("3.pbs", NAME, JobState.RUNNING, 2),
    ]  # fmt: skip


def test_a_server_that_goes_silent_in_between_has_listed_nothing(pbs: Path, provisioner: PbsProvisioner) -> None:
    """A job that is left out would be called gone, and the folder of its nodes would be removed under their run."""
    (pbs / "cut").touch()
    with pytest.raises(Unknown, match=r"PBS does not list its jobs: qstat tells nothing of 2\.pbs"):
        provisioner.list_jobs(LOGIN)


def test_a_job_that_ends_in_between_is_no_failure(pbs: Path, provisioner: PbsProvisioner) -> None:
    (pbs / "ends").touch()
    assert [job.id for job in provisioner.list_jobs(LOGIN)] == ["1.pbs"]


def test_no_jobs(pbs: Path, provisioner: PbsProvisioner) -> None:
    (pbs / "jobs").write_text("")
    assert provisioner.list_jobs(LOGIN) == []


def test_a_server_that_does_not_tell_which_jobs_to_delete_has_deleted_none(
    pbs: Path, provisioner: PbsProvisioner
) -> None:
    (pbs / "down").touch()
    with pytest.raises(Unknown, match=r"PBS did not delete gpuops-.*: qselect: cannot connect to server"):
        provisioner.cancel(LOGIN, [NAME])
    assert not (pbs / "deleted").exists()
