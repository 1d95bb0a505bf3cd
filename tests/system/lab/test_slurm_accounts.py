"""On a Slurm cluster with accounts in a database (slurmdbd, MariaDB): what an account may have is said before a job is
submitted or while it waits, and how a job ended is known when the queue has forgotten it."""

from __future__ import annotations

import pytest

from tests.conftest import HANG_S, until
from tests.system.chaos.hits import guards, kill
from tests.system.lab.laptop import Laptop
from tests.system.lab.slurm import USER, Slurm
from tests.system.lab.test_slurm import begin, expect_nothing_left, finish, place, results, user

__all__ = ["user"]
pytestmark = pytest.mark.parametrize("slurm", ["database"], indirect=True)


def submit(slurm: Slurm, *words: str) -> str:
    """Somebody else's job on the user's account. Returns its number."""
    (job,) = slurm.ask("runuser", "-u", USER, "--", "sbatch", "--parsable", "-t", "9", "-o", "/dev/null", *words)
    return job


def test_limits_are_said_before_a_job_is_submitted(user: Laptop, slurm: Slurm) -> None:
    """Of the job's own cluster: the database keeps another one's, too. Slurm itself would take the first two."""
    where = place(user, slurm)
    looked = user.run("doctor", "slurm", *where).stdout
    said = [line.strip() for line in looked.splitlines() if "account" in line or "qos" in line]
    assert said == [
        "ok: account optics: qos normal,short,small",
        "ok: account physics, with all below it: for all its users gres/gpu=12",
        "ok: qos short: time 00:30:00",
        "ok: qos small: per job gres/gpu=2",
    ]
    refusals = {
        (
            "--nodes",
            "2",
            "--gpus",
            "8",
        ): "account physics gives all its users together 12 GPUs, and this job asks for 16",
        ("--qos", "short", "--max-hours", "1"): "qos short gives a job 30 min, and this one asks for 1 h 00 min",
        ("--qos", "small", "--gpus", "4"): "qos small gives a job 2 GPUs, and this job asks for 4",
        ("--account", "chemistry"): "account chemistry may not be used in this partition",
        ("--qos", "golden"): "qos golden may not be used",
    }
    for asked, why in refusals.items():
        done = user.run("up", "slurm", *where, *asked)
        assert (done.returncode, why in done.stderr) == (3, True), done.stderr
    assert slurm.ask("sacct", "-X", "-n") == [], "no job at all"
    # What the request does not say, and so is not known before: Slurm's own refusal, in words.
    done = user.run("up", "slurm", *where, "--gpus", "4", "--sbatch-arg=--qos=small")
    assert "the QOS's limit on GPUs for one job forbids this (QOSMaxGRESPerJob)" in done.stderr
    done = user.run("up", "slurm", *where, "--sbatch-arg=--qos=short", "--max-hours", "1")
    assert (
        "will never start its job (QOSMaxWallDurationPerJobLimit: the QOS's limit on time for one job)" in done.stderr
    )
    expect_nothing_left(user, slurm)


def test_a_job_waits_for_a_limit_of_its_account(user: Laptop, slurm: Slurm) -> None:
    """Others of it have what it may have; with theirs the job begins. The database is gone by its end."""
    other = submit(slurm, "-N2", "--gres=gpu:5", "--wrap=sleep 600")
    until(lambda: any(line.endswith("RUNNING") for line in slurm.jobs()), "the account's other job")
    user.write("go", "")
    run = user.start("run", "--all-nodes", "--on", "slurm", *place(user, slurm), "--nodes", "2", "--gpus", "2", "--",
                     "python3", "script.py")  # fmt: skip
    waits = "queued: AssocGrpGRES (your account's limit on GPUs for all its users)"
    until(lambda: waits in user.run("status").stdout or run.poll() is not None, "it waits, and says for what")
    slurm.ask("scancel", other)
    slurm.ask("pkill", "-KILL", "-x", "slurmdbd")
    _, err = run.communicate(timeout=HANG_S)
    assert run.returncode == 0, err
    assert results(user) == {"0.txt": "done", "1.txt": "done"}
    looked = user.run("doctor", "slurm", *place(user, slurm)).stdout
    assert "what limits your account has cannot be read: sacctmgr: error: " in looked
    expect_nothing_left(user, slurm)


def test_how_a_job_ended_that_the_queue_has_forgotten(user: Laptop, slurm: Slurm) -> None:
    """The command and its guard are gone; another job takes its place."""
    run = begin(user, slurm)
    run.kill()
    run.wait()
    for guard in guards(user):
        kill(guard)
    urgent = submit(slurm, "-p", "urgent", "-N2", "--ntasks-per-node=1", "-c7", "--wrap=sleep 600")
    until(lambda: [line.split()[0] for line in slurm.jobs()] == [urgent], "the queue knows the other job alone")
    until(lambda: not slurm.ask("squeue", "-h", "-t", "preempted"), "it has forgotten")
    assert "another job took its place" in user.run("status").stdout
    done = user.run("down", "--all")
    assert done.returncode == 0, done.stderr
    assert results(user) == {"0.txt": "stopped", "1.txt": "stopped"}
    slurm.ask("scancel", urgent)
    finish(slurm)
    expect_nothing_left(user, slurm)
