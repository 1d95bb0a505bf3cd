"""What Slurm prints, as its versions print it, and the command lines it is given."""

from __future__ import annotations

import pytest

from provisioners.batch.jobs import Job, JobState
from provisioners.batch.provisioner import Submission
from provisioners.batch.request import format_span
from provisioners.slurm import commands
from provisioners.slurm.commands import NodeKind, Partition

NOW = 1795717200.0
"""2026-11-26T18:20:00Z."""
MARK, TOKEN = "gpuops-0a1b2c3d-lab-job", "4b93b845e82e-9f463d65"
LISTED = f"""\
7|{MARK}.{TOKEN}|RUNNING|2|9:58|2026-11-26T18:25:42|None
8|{MARK}.{TOKEN}|PENDING|2|10:00|N/A|PartitionNodeLimit
9|{MARK}.{TOKEN}|PENDING|2|1-00:00:00|2026-11-26T18:25:42|Priority
10|{MARK}.{TOKEN}|PREEMPTED|2|0:00|2026-11-26T18:20:12|None
11|{MARK}.{TOKEN}|COMPLETING|1|9:55|2026-11-26T18:25:42|None
12|gpuops-ffffffff-lab-job.{TOKEN}|RUNNING|1|9:55|2026-11-26T18:25:42|None
13|a|name|of somebody's|RUNNING|1|x|y|z
14|{MARK}.{TOKEN}|PENDING|2|10:00|N/A|Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority
"""


def jobs() -> dict[str, Job]:
    return {job.id: job for job in commands.parse_jobs(LISTED, "gpuops-0a1b2c3d-", NOW)}


def test_only_jobs_of_this_owner_are_listed() -> None:
    assert list(jobs()) == ["7", "8", "9", "10", "11", "14"]
    assert {(job.mark, job.token, job.name) for job in jobs().values()} == {(MARK, TOKEN, f"{MARK}.{TOKEN}")}


def test_a_job_runs_until_it_holds_no_machine() -> None:
    assert [job.state for job in jobs().values()] == [
        JobState.RUNNING, JobState.QUEUED, JobState.QUEUED, JobState.OVER, JobState.RUNNING, JobState.QUEUED,
    ]  # fmt: skip
    assert (jobs()["7"].left_s, jobs()["8"].left_s) == (598.0, None)
    assert (jobs()["10"].preempted, jobs()["10"].why_over) == (True, "another job took its place")


def test_why_a_job_waits() -> None:
    assert jobs()["9"].phase.startswith("queued: Priority, starts about ")
    assert jobs()["9"].hopeless == ""
    assert jobs()["14"].phase == "queued: Nodes required for job are DOWN"
    assert jobs()["8"].hopeless == "Slurm will never start its job (PartitionNodeLimit): ask for less, or elsewhere"
    assert commands.describe_wait("(None)", None, NOW) == "queued"


@pytest.mark.parametrize(
    ("reason", "never"),
    [
        ("PartitionTimeLimit", True),
        ("JobHeldUser", True),
        ("JobHeldAdmin", True),
        ("BadConstraints", True),
        ("QOSMaxGRESPerJob", True),
        ("QOSMaxWallDurationPerJobLimit", True),
        ("AssocMaxCpuPerNode", True),
        ("QOSMinGRES", True),
        ("launch failed requeued held", True),
        ("Resources", False),
        ("QOSMaxGRESPerUser", False),
        ("QOSGrpCpuLimit", False),
        ("AssocGrpGRES", False),
        ("ReqNodeNotAvail, UnavailableNodes:c[1-2]", False),
        ("BeginTime", False),
        ("Licenses", False),
    ],
)
def test_what_never_ends(reason: str, never: bool) -> None:
    assert bool(commands.explain_never(reason)) is never


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("AssocGrpGRES", "your account's limit on GPUs for all its users"),
        ("AssocGrpCPUMinutesLimit", "your account's limit on cores over time for all its users"),
        ("AssocMaxJobsLimit", "your account's limit on jobs at once for one user"),
        ("QOSGrpNodeLimit", "the QOS's limit on nodes for all its users"),
        ("QOSMaxGRESPerUser", "the QOS's limit on GPUs for one user"),
        ("MaxGRESPerAccount", "the QOS's limit on GPUs for one account"),
        ("QOSMaxWallDurationPerJobLimit", "the QOS's limit on time for one job"),
        ("QOSMinGRES", "the QOS's minimum of GPUs for one job"),
        ("Resources", ""),
        ("MaxSomethingNew", "the QOS's limit on SomethingNew for one user"),
    ],
)
def test_a_limit_as_a_reason(reason: str, words: str) -> None:
    assert commands.describe_limit(reason) == words
    assert not words or f" ({words})" in commands.describe_wait(reason, None, NOW)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0:05", 5.0), ("59:59", 3599.0), ("1:00:00", 3600.0), ("2-03:04:05", 183845.0), ("UNLIMITED", None), ("", None)],
)
def test_a_span(text: str, seconds: float | None) -> None:
    assert commands.parse_span(text) == seconds


@pytest.mark.parametrize(("seconds", "text"), [(3600, "1:00:00"), (90, "0:02:00"), (1, "0:01:00"), (9e5, "250:00:00")])
def test_a_time_limit_is_in_minutes(seconds: float, text: str) -> None:
    assert format_span(seconds) == text


def test_a_node() -> None:
    line = "node|c1|gpu*|gpu:h100:4(S:0-1),gpu:a100:2|mix-|64|500000|ib,nvme"
    node = NodeKind("c1", "gpu", True, 6, ["h100", "a100"], "mix-", 64, 500000, ["ib", "nvme"])
    assert commands.parse_node(line) == node
    assert commands.parse_node("node|c1|small|(null)|idle|4|1000|(null)") == NodeKind(
        "c1", "small", False, 0, [], "idle", 4, 1000, ["(null)"]
    )
    assert commands.parse_node("slurm_load_partitions: Unable to contact slurm controller") is None


def test_a_partition() -> None:
    line = "partition|PartitionName=big QoS=part-big DefaultTime=NONE MaxTime=UNLIMITED"
    assert commands.parse_partition(line) == Partition("big", None, None, "part-big")
    line = "partition|PartitionName=gpu AllowQos=ALL Default=YES QoS=N/A DefaultTime=01:00:00 MaxTime=UNLIMITED"
    assert commands.parse_partition(line) == Partition("gpu", 3600.0, None)
    assert commands.parse_partition("partition|PartitionName=x DefaultTime=NONE MaxTime=2-00:00:00") == Partition(
        "x", None, 172800.0
    )
    assert commands.parse_partition("partition|") is None


def test_the_job() -> None:
    """One `hold` on each node, in a step that outlives any of them; nothing of the login's surroundings."""
    data = {"words": ["--partition=gpu", "--time=1:00:00"], "cpus": 8}
    submission = Submission(f"{MARK}.{TOKEN}", TOKEN, "/home/al ice/lab", "/home/al ice/a.pyz", "/home/al ice/o", data)
    assert commands.sbatch_words(submission) == [
        "sbatch", "--parsable", "--no-requeue", "--export=NONE", f"--job-name={MARK}.{TOKEN}",
        "--output=/home/al ice/o", "--chdir=/", "--signal=USR1@60", "--partition=gpu", "--time=1:00:00",
    ]  # fmt: skip
    assert commands.job_script(submission, "/usr/bin/python3") == (
        "#!/bin/sh\nexec srun --ntasks-per-node=1 --cpus-per-task=8 --cpu-bind=none --mpi=none --kill-on-bad-exit=0 "
        "--wait=0 --input=none --export=ALL /usr/bin/python3 -I '/home/al ice/a.pyz' "
        f"hold --cluster '/home/al ice/lab' --job {TOKEN}\n"
    )


@pytest.mark.parametrize(
    ("word", "why", "preempted", "failed"),
    [
        ("COMPLETED", "its job ended by itself", False, False),
        ("CANCELLED by 1001", "its job was cancelled", False, False),
        ("TIMEOUT", "its job's time was over", False, False),
        ("PREEMPTED", "another job took its place", True, False),
        ("NODE_FAIL", "a node of its job failed", False, True),
    ],
)
def test_how_a_job_ended_that_squeue_has_forgotten(word: str, why: str, preempted: bool, failed: bool) -> None:
    name = f"{MARK}.{TOKEN}"
    (job,) = commands.parse_past_jobs(f"7|{name}|{word}\n8|somebody's|COMPLETED\n", {name})
    assert (job.id, job.name, job.state) == ("7", name, JobState.OVER)
    assert (job.why_over, job.preempted, job.failed) == (why, preempted, failed)


@pytest.mark.parametrize("text", ["", "Slurm accounting storage is disabled\n", f"7|{MARK}.{TOKEN}|RUNNING\n"])
def test_what_accounting_does_not_tell(text: str) -> None:
    assert commands.parse_past_jobs(text, {f"{MARK}.{TOKEN}"}) == []
