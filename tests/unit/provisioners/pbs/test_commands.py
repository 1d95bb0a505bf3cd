"""What PBS prints, in the form of OpenPBS 23, and the command lines it is given."""

from __future__ import annotations

import json
from typing import Any

import pytest

from provisioners.batch.jobs import Job, JobState
from provisioners.batch.provisioner import Submission
from provisioners.pbs import commands

NOW = 1795717200.0
"""2026-11-26T18:20:00Z."""
MARK, TOKEN = "gpuops-0a1b2c3d-lab-job", "4b93b845e82e-9f463d65"


def listed(**jobs: dict[str, Any]) -> dict[str, Job]:
    """Jobs by the letters of their states; what is given besides goes over what each has."""
    lines = []
    for number, (word, more) in enumerate(jobs.items()):
        attributes = {"Job_Name": f"{MARK}.{TOKEN}", "job_state": word[0], "server": "pbs", "Resource_List.nodect": 2,
                      "Resource_List.walltime": "01:00:00", "Variable_List": "A=b=c,D=", **more}  # fmt: skip
        told = [f"Job Id: {number}.pbs", *(f"{name}={value}" for name, value in attributes.items())]
        lines.append(commands.DELIMITER.join(told))
    return {job.id: job for job in commands.parse_jobs("\n".join(lines), "gpuops-0a1b2c3d-", NOW)}


def test_only_jobs_of_this_owner_are_listed() -> None:
    found = listed(R={}, Q={"Job_Name": f"gpuops-ffffffff-lab-job.{TOKEN}"}, R2={"Job_Name": "STDIN"})
    assert [(job.id, job.name, job.nodes) for job in found.values()] == [("0.pbs", f"{MARK}.{TOKEN}", 2)]
    assert commands.parse_jobs("\n", "gpuops-", NOW) == []


def test_a_job_runs_until_it_holds_no_machine() -> None:
    found = listed(R={"stime": "Thu Nov 26 18:10:00 2026"}, E={}, S={}, Q={}, H={}, F={"Exit_status": -29})
    assert [job.state for job in found.values()] == [
        JobState.RUNNING, JobState.RUNNING, JobState.RUNNING, JobState.QUEUED, JobState.QUEUED, JobState.OVER,
    ]  # fmt: skip
    assert [job.left_s for job in found.values()] == [3000.0, None, None, None, None, None]


@pytest.mark.parametrize(
    ("status", "why"), [(271, "its job was deleted"), (-29, "its job's time was over"), (0, "its job is over")]
)
def test_why_a_job_is_over(status: int, why: str) -> None:
    begun = {"stime": "Thu Nov 26 18:10:00 2026"}
    assert listed(F={"Exit_status": status, **begun})["0.pbs"].why_over == why
    assert listed(F={})["0.pbs"].why_over == "its job was deleted while it was queued"


def test_why_a_job_waits() -> None:
    why = "Insufficient amount of resource: ngpus (R: 4 A: 0 T: 8)"
    found = listed(Q={"comment": f"Not Running: {why}"}, Q2={"comment": f"Can Never Run: {why}"}, Q3={}, H={})
    assert [job.phase for job in found.values()][::2] == [f"queued: {why}", "queued"]
    assert [job.hopeless for job in found.values()] == [
        "", f"PBS will never start its job ({why}): ask for less, or elsewhere", "",
        "PBS holds its job (it does not say why) and will not start it by itself",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "seconds"), [("01:00:00", 3600.0), ("150:00:01", 540001.0), ("90", 90.0), ("1:30", 90.0), ("-", None)]
)
def test_a_span(text: str, seconds: float | None) -> None:
    assert commands.parse_span(text) == seconds


@pytest.mark.parametrize(("text", "size"), [("2kb", 2048), ("64gb", 64 << 30), ("7", 7), ("3m", 3 << 20), ("x", None)])
def test_a_size(text: str, size: int | None) -> None:
    assert commands.parse_size(text) == size


def test_the_job() -> None:
    """One `hold` on each node, each told which it is, in a shell that outlives them all."""
    data = {"words": ["-l", "select=2:ncpus=8", "-q", "gpu"], "nodes": 2}
    submission = Submission(f"{MARK}.{TOKEN}", TOKEN, "/home/al ice/lab", "/home/al ice/a.pyz", "/home/o", data)
    assert commands.qsub_words(submission) == [
        "qsub", "-N", f"{MARK}.{TOKEN}", "-r", "n", "-m", "n", "-S", "/bin/sh", "-j", "oe", "-o", "/home/o",
        "-l", "select=2:ncpus=8", "-q", "gpu",
    ]  # fmt: skip
    script = commands.job_script(submission, "/usr/bin/python3", 2)
    assert (
        "pbsdsh -n \"$index\" -- /usr/bin/python3 -I '/home/al ice/a.pyz' hold --cluster '/home/al ice/lab' "
        f'--job {TOKEN} --index "$index" &\n'
    ) in script
    assert 'while [ "$index" -lt 2 ]' in script


def test_a_person_sees_the_job_and_its_gpus() -> None:
    words = commands.shell_words("7.pbs", "py", "c1", ["0", "1"], False)
    assert words[3:] == ["sh", "py", "c1", "env", "PBS_JOBID=7.pbs", "CUDA_VISIBLE_DEVICES=0,1"]
    assert commands.shell_words("7.pbs", "py", "c1", None, True)[3:] == ["sh", "py", "c1", "env", "PBS_JOBID=7.pbs"]


def test_a_refused_way_is_told_as_the_agent_tells() -> None:
    assert json.loads(commands.REFUSED)["error"]["say"]
    assert "'" not in commands.REFUSED + commands.REFUSED_PERSON
