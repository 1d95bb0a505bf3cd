"""Every command of Slurm's that is run, and what it prints. Pure.

Old and new versions share `-h -o` with a separator of one's own; the shape of `--json` changes with each.
"""

from __future__ import annotations

import calendar
import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass

from gpuops.core.format import clock_time
from provisioners.batch.jobs import NAME, Job, JobState
from provisioners.batch.provisioner import Submission

PRELUDE = r"""
for name in $(env | sed -n -e 's/^\(SLURM_[A-Za-z0-9_]*\)=.*/\1/p' -e 's/^\(SQUEUE_[A-Za-z0-9_]*\)=.*/\1/p'); do
    unset "$name"
done
"""
"""What tells of an outer job, or changes how a listing looks, must not be there."""
SITE = r"""
sinfo -h -N -o 'node|%N|%P|%G|%t|%c|%m|%f' || exit 1
scontrol show partition -o | sed 's/^/partition|/'
scontrol show config | sed -n 's/^KillWait *= *\([0-9]*\).*/killwait|\1/p'
"""
ASSOCIATIONS = "sacctmgr -nP show assoc user=$(id -un) format=account,partition,qos 2>/dev/null"
JOBS = """TZ=UTC SLURM_TIME_FORMAT=standard squeue -u "$(id -un)" -t all -h -o '%i|%j|%T|%D|%L|%S|%r' """
"""`-t all`: what has ended is still known for some minutes (MinJobAge)."""
STEP = """job=$1 step=$2
shift 2
found=$(squeue -h -j "$job" -o %i 2>&1) || case $found in *"Invalid job id"*) found= ;; esac
[ -n "$found" ] || exec "$@" --left
eval "exec $step" '"$@"'
"""
"""A controller that does not answer says nothing of a job."""
WALLTIME_WARNING_S = 60
WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "REQUEUE_FED", "RESV_DEL_HOLD"})
OVER = frozenset({
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
})  # fmt: skip
"""In every other state a job may hold machines (RUNNING, CONFIGURING, COMPLETING, SUSPENDED, …)."""
WHY_OVER = {
    "CANCELLED": "its job was cancelled",
    "TIMEOUT": "its job's time was over",
    "NODE_FAIL": "a node of its job failed",
    "PREEMPTED": "another job took its place",
    "OUT_OF_MEMORY": "its job ran out of memory",
}
NEVER = re.compile(
    r"PartitionNodeLimit|PartitionTimeLimit|PartitionInactive|PartitionDown|JobHeld\w*|BadConstraints"
    r"|JobHoldMaxRequeue|launch failed requeued held|QOS(Max|Min)\w*Per(Job|Node)\w*|Assoc(Max|Min)\w*PerJob\w*"
    r"|AssocMaxWallDurationPerJobLimit|InvalidAccount|InvalidQOS|QOSNotAllowed|DependencyNeverSatisfied|AccountNotAllowed"
)
"""Reasons for which a job waits for ever, though Slurm accepted it."""
OWN_LIMIT = re.compile(r"(QOS|Assoc)\w*(PerUser|Grp)\w*|(QOS|Assoc)Grp\w*")


def sbatch_words(submission: Submission) -> list[str]:
    """The whole command line of sbatch; the script is its input."""
    asked = [str(word) for word in submission.data["words"]]
    return [
        "sbatch", "--parsable", "--no-requeue", "--export=NONE", f"--job-name={submission.name}",
        f"--output={submission.output}", "--chdir=/", f"--signal=USR1@{WALLTIME_WARNING_S}", *asked,
    ]  # fmt: skip


def job_script(submission: Submission, python: str) -> str:
    """One `hold` on each node, in one step that stays while any of them does."""
    cpus = submission.data["cpus"]
    step = [
        "srun", "--ntasks-per-node=1", f"--cpus-per-task={cpus}", "--cpu-bind=none", "--mpi=none",
        "--kill-on-bad-exit=0", "--wait=0", "--input=none", "--export=ALL",
        python, "-I", submission.agent, "hold", "--cluster", submission.folder,
    ]  # fmt: skip
    return f"#!/bin/sh\nexec {shlex.join(step)}\n"


def step_words(job: str, node: str) -> list[str]:
    """Starts a program on a node of a job, beside the step that holds it and sharing what that has; once the job is
    over, here on the login node, which it is told."""
    return ["sh", "-c", STEP, "sh", job, shlex.join([*shell_words(job, node), "--gres=none"])]


def shell_words(job: str, node: str) -> list[str]:
    """Starts a person's command on a node of a job, who is to see its GPUs."""
    return ["srun", f"--jobid={job}", "--overlap", "--quiet", "-N1", "-n1", "-w", node, "--mpi=none"]


def parse_jobs(text: str, prefix: str, now: float) -> list[Job]:
    """The jobs of JOBS whose name begins so; other people's names may hold anything."""
    jobs = []
    for line in text.splitlines():
        fields = line.split("|", 6)
        match = NAME.fullmatch(fields[1]) if len(fields) == 7 else None
        if match and fields[1].startswith(prefix):
            jobs.append(_parse_job(fields, match["mark"], match["token"], now))
    return jobs


def _parse_job(fields: Sequence[str], mark: str, token: str, now: float) -> Job:
    number, _, word, nodes, left, start, reason = fields
    state = JobState.QUEUED if word in WAITING else JobState.OVER if word in OVER else JobState.RUNNING
    return Job(
        number,
        mark,
        token,
        state,
        int(nodes) if nodes.isdecimal() else 0,
        phase=describe_wait(reason, parse_time(start), now),
        hopeless=explain_never(reason) if state is JobState.QUEUED else "",
        left_s=parse_span(left) if state is JobState.RUNNING else None,
        why_over=WHY_OVER.get(word, f"its job is {word}") if state is JobState.OVER else "",
        preempted=word == "PREEMPTED",
    )


def describe_wait(reason: str, start: float | None, now: float) -> str:
    """`queued: Priority, starts about 14:20`."""
    first = reason.split(",")[0].strip("() ")
    why = f": {first}" if first not in ("", "None") else ""
    why += " (a limit of yours or of your group)" if OWN_LIMIT.fullmatch(first) else ""
    return f"queued{why}" + (f", starts about {clock_time(start, now)}" if start and start > now else "")


def explain_never(reason: str) -> str:
    """Why a queued job will never run; empty where it may."""
    first = reason.split(",")[0].strip("() ")
    return f"Slurm will never start its job ({first}): ask for less, or elsewhere" if NEVER.fullmatch(first) else ""


def parse_time(text: str) -> float | None:
    """`2026-11-26T18:25:42`, in UTC, as seconds; None for `N/A`."""
    try:
        return float(calendar.timegm(time.strptime(text.strip(), "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return None


def parse_span(text: str) -> float | None:
    """`1-02:03:04`, `2:03:04`, `3:04` as seconds; None for UNLIMITED, NONE and what is no length of time."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text.strip())
    if not match:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


@dataclass(frozen=True)
class NodeKind:
    """A node, in one of its partitions."""

    name: str
    partition: str
    is_default: bool
    gpus: int
    gpu_types: Sequence[str]
    state: str
    cpus: int
    memory_mb: int
    features: Sequence[str]


@dataclass(frozen=True)
class Partition:
    name: str
    default_s: float | None
    max_s: float | None


def parse_node(line: str) -> NodeKind | None:
    """A line `node|%N|%P|%G|%t|%c|%m|%f`."""
    fields = line.split("|")
    if len(fields) != 8:
        return None
    _, name, partition, gres, state, cpus, memory, features = fields
    gpus = [word for word in re.sub(r"\([^)]*\)", "", gres).split(",") if word.split(":")[0] == "gpu"]
    counts = [int(word.rpartition(":")[2]) for word in gpus if word.rpartition(":")[2].isdecimal()]
    types = [word.split(":")[1] for word in gpus if word.count(":") == 2]
    return NodeKind(
        name, partition.rstrip("*"), partition.endswith("*"), sum(counts), types, state,
        int(cpus) if cpus.isdecimal() else 1, int(memory) if memory.isdecimal() else 0, features.split(","),
    )  # fmt: skip


def parse_partition(line: str) -> Partition | None:
    """A line `partition|PartitionName=gpu … DefaultTime=01:00:00 … MaxTime=UNLIMITED …`."""
    facts = dict(word.split("=", 1) for word in line.partition("|")[2].split() if "=" in word)
    name = facts.get("PartitionName")
    return (
        Partition(name, parse_span(facts.get("DefaultTime", "")), parse_span(facts.get("MaxTime", "")))
        if name
        else None
    )
