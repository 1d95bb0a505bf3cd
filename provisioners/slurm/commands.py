"""Every command of Slurm's that is run, and what it prints. Pure.

Old and new versions share `-h -o` with a separator of one's own; the shape of `--json` changes with each.
"""

from __future__ import annotations

import calendar
import re
import shlex
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gpuops.core.format import clock_time
from provisioners.batch.jobs import NAME, Job, JobState
from provisioners.batch.numbers import parse_count
from provisioners.batch.provisioner import Submission
from provisioners.batch.survey import LIMIT

PRELUDE = r"""
of_slurm='(SLURM|SQUEUE|SINFO|SCANCEL|SACCT)_[A-Za-z0-9_]*|SBATCH_(CLUSTERS|ARRAY_INX|WAIT)'
for name in $(env | sed -n -E "s/^($of_slurm)=.*/\1/p"); do
    [ "$name" = SLURM_CONF ] || unset "$name"
done
"""
"""What tells of an outer job, changes how a listing looks, sends a job to another cluster than is asked or makes it
many must not be there; which cluster is asked (SLURM_CONF) and who is charged (SBATCH_ACCOUNT) stays."""
SITE = r"""
sinfo -h -N -o 'node|%N|%P|%G|%t|%c|%m|%f' || exit 1
scontrol show partition -o | sed 's/^/partition|/'
scontrol show config | sed -n -e 's/^KillWait *= *\([0-9]*\).*/killwait|\1/p' \
    -e 's/^ProctrackType *= *proctrack.\([a-z]*\).*/proctrack|\1/p' \
    -e 's/^ClusterName *= *\([^ ]*\).*/cluster|\1/p' -e 's/^AccountingStorageEnforce *= *\([^ ]*\).*/enforced|\1/p'
"""
SURVEY = r"""
sinfo --version | sed 's/^/version|/'
sinfo -h -N -O 'NodeHost:64,GresUsed:256' | sed 's/^/used|/'
"""
"""What of a cluster changes."""
ASSOCIATION_FIELDS = (
    "account", "partition", "qos", "defaultqos", "maxjobs", "maxsubmit", "maxwall", "maxtres", "grptres",
)  # fmt: skip
ACCOUNT_FIELDS = ("account", "parentname", "grptres")
QOS_FIELDS = ("name", "flags", "maxjobspu", "maxsubmitpu", "maxwall", "maxtres", "maxtrespu", "grptres")
LIMITS = rf"""
where=${{1:+cluster=$1}}
limit() {{ if command -v timeout >/dev/null; then timeout 20 "$@"; else "$@"; fi; }}
tell() {{
    kind=$1
    shift
    said=$(limit sacctmgr -nP show "$@" 2>&1) && printf '%s\n' "$said" | sed "s/^/$kind|/" ||
        printf 'untold|%s\n' "$(printf '%s\n' "$said" | head -n 1)"
}}
command -v sacctmgr >/dev/null || exit 0
printf 'given|%s|%s\n' "${{SBATCH_ACCOUNT:-}}" "${{SBATCH_QOS:-}}"
tell default user "$(id -un)" $where format=defaultaccount
tell assoc assoc $where user="$(id -un)" format={",".join(ASSOCIATION_FIELDS)}
tell account assoc $where user= format={",".join(ACCOUNT_FIELDS)}
tell qos qos format={",".join(QOS_FIELDS)}
"""
"""What the database tells of the user's accounts on the cluster `$1`, since it may keep those of several; of accounts
above them, which alone tell what is for all their users; and of QOS. Nothing where there is no sacctmgr."""
JOBS = """TZ=UTC SLURM_TIME_FORMAT=standard squeue -u "$(id -un)" -t all -h -o '%i|%j|%T|%D|%L|%S|%r' """
"""`-t all`: what has ended is still known for some minutes (MinJobAge)."""
PAST = rf"""{LIMIT}
limit sh -c '
TZ=UTC sacct -X -n -P -S "$1" --name="$2" -o JobID,JobName,State ||
TZ=UTC sacct -c -n -P -S "$1" -o JobID,JobName,State' sh "$1" "$2"
"""
"""What squeue has forgotten: from the accounting database, which may not answer, else from the records of jobs that
have ended."""
STEP = """job=$1 step=$2 looks=0
shift 2
while :; do
    said=$(squeue -h -j "$job" -o %T 2>&1)
    code=$? found=$(printf '%s\\n' "$said" | grep -x '[A-Z_][A-Z_]*')
    [ "$code" = 0 ] || case $said in *"Invalid job id"*) ;; *) found=unknown ;; esac
    looks=$((looks + 1))
    [ "$found" = COMPLETING ] && [ $looks -lt 50 ] || break
    sleep 1
done
[ -n "$found" ] || exec "$@" --left
[ "$4" != connect ] || set -- "$@" --silence @SILENCE
eval "exec $step" '"$@"'
"""
"""A controller that does not answer says nothing of a job, nor does what is said of a site's configuration. A job that
is completing takes no step, and its processes may live until KillWait is over. A step lives on where its srun is
killed, and its program reads no end."""
SILENCE_S = 300
"""Ten heartbeats of a client's (`transport.rpc`)."""
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
    "COMPLETED": "its job ended by itself",
    "PREEMPTED": "another job took its place",
    "OUT_OF_MEMORY": "its job ran out of memory",
}
NEVER = re.compile(
    r"PartitionNodeLimit|PartitionTimeLimit|PartitionInactive|PartitionDown|JobHeld\w*|BadConstraints"
    r"|JobHoldMaxRequeue|launch failed requeued held|(QOS|Assoc)(Max|Min)\w*Per(Job|Node)\w*|QOSMin\w+"
    r"|InvalidAccount|InvalidQOS|QOSNotAllowed|DependencyNeverSatisfied|AccountNotAllowed"
)
"""Reasons for which a job waits for ever, though Slurm accepted it."""
LIMIT_REASON = re.compile(
    r"(?P<whose>QOS|Assoc|)(?P<kind>Grp|Max|Min)(?P<what>[A-Z]\w*?)(?P<of>|Per(?:User|Account|Job|Node))(?:Limit)?"
)
"""A limit as the reason of a job: AssocGrpGRES, QOSMaxJobsPerUserLimit, MaxGRESPerAccount, … of 22.05's own table."""
LIMITED = {
    "GRES": "GPUs", "Cpu": "cores", "CPU": "cores", "Mem": "memory", "Node": "nodes", "Jobs": "jobs at once",
    "SubmitJob": "submitted jobs", "Wall": "time",
}  # fmt: skip
FOR_WHOM = {"PerUser": "one user", "PerAccount": "one account", "PerJob": "one job", "PerNode": "one node"}


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
        python, "-I", submission.agent, "hold", "--cluster", submission.folder, "--job", submission.token,
    ]  # fmt: skip
    return f"#!/bin/sh\nexec {shlex.join(step)}\n"


def step_words(job: str, node: str) -> list[str]:
    """Starts a program on a node of a job, beside the step that holds it and sharing what that has; once the job is
    over, here on the login node, which it is told."""
    return [
        "sh",
        "-c",
        STEP.replace("@SILENCE", str(SILENCE_S)),
        "sh",
        job,
        shlex.join([*shell_words(job, node), "--gres=none"]),
    ]


def shell_words(job: str, node: str) -> list[str]:
    """Starts a person's command on a node of a job, who is to see its GPUs."""
    return ["srun", f"--jobid={job}", "--overlap", "--quiet", "-N1", "-n1", "-w", node, "--mpi=none"]


def forward_words(job: str, node: str, python: str, agent: str) -> list[str]:
    """Holds a port of a node of a job open here; behind it: the socket's path or the port here, and the port there.

    `--unbuffered`: else bytes that are no whole line would wait for its end.
    """
    step = [*shell_words(job, node), "--gres=none", "--unbuffered", python, "-IS", agent, "port"]
    return [python, "-IS", agent, "forward", *step]


def parse_jobs(text: str, prefix: str, now: float) -> list[Job]:
    """The jobs of JOBS whose name begins so; other people's names may hold anything. Raises Unknown."""
    jobs = []
    for line in text.splitlines():
        fields = line.split("|", 6)
        match = NAME.fullmatch(fields[1]) if len(fields) == 7 else None
        if match and fields[1].startswith(prefix):
            jobs.append(_parse_job(fields, match["mark"], match["token"], now))
    return jobs


def _parse_job(fields: Sequence[str], mark: str, token: str, now: float) -> Job:
    number, _, word, nodes, left, start, reason = fields
    if word in OVER:
        return _job_over(number, mark, token, word, parse_count(nodes))
    state = JobState.QUEUED if word in WAITING else JobState.RUNNING
    return Job(
        number,
        mark,
        token,
        state,
        parse_count(nodes),
        phase=describe_wait(reason, parse_time(start), now),
        hopeless=explain_never(reason) if state is JobState.QUEUED else "",
        left_s=parse_span(left) if state is JobState.RUNNING else None,
    )


def _job_over(number: str, mark: str, token: str, word: str, nodes: int) -> Job:
    why = WHY_OVER.get(word, f"its job is {word}")
    return Job(
        number, mark, token, JobState.OVER, nodes,
        why_over=why, preempted=word == "PREEMPTED", failed=word in ("NODE_FAIL", "BOOT_FAIL"),
    )  # fmt: skip


def parse_past_jobs(text: str, names: Collection[str]) -> list[Job]:
    """The jobs of those names in what PAST printed. `CANCELLED by 1001` is CANCELLED."""
    jobs = []
    for line in text.splitlines():
        fields = line.split("|")
        match = NAME.fullmatch(fields[1]) if len(fields) == 3 and fields[1] in names else None
        word = (fields[-1].split() or [""])[0].rstrip("+")
        if match and word in OVER:
            jobs.append(_job_over(fields[0], match["mark"], match["token"], word, 0))
    return jobs


def describe_wait(reason: str, start: float | None, now: float) -> str:
    """`queued: Priority, starts about 14:20`."""
    first = reason.split(",")[0].strip("() ")
    why = f": {first}" if first not in ("", "None") else ""
    why += f" ({limit})" if (limit := describe_limit(first)) else ""
    return f"queued{why}" + (f", starts about {clock_time(start, now)}" if start and start > now else "")


def explain_never(reason: str) -> str:
    """Why a queued job will never run; empty where it may."""
    first = reason.split(",")[0].strip("() ")
    why = ": ".join(filter(None, [first, describe_limit(first)]))
    return f"Slurm will never start its job ({why}): ask for less, or elsewhere" if NEVER.fullmatch(first) else ""


def describe_limit(reason: str) -> str:
    """`your account's limit on GPUs for all its users`; empty for a reason that is no limit of an account or a QOS."""
    match = LIMIT_REASON.fullmatch(reason)
    if match is None:
        return ""
    what = next((say for word, say in LIMITED.items() if match["what"].startswith(word)), match["what"])
    what += " over time" if match["what"].endswith("Minutes") else ""
    whose = "your account's" if match["whose"] == "Assoc" else "the QOS's"
    everybody = "all its users" if match["kind"] == "Grp" else "one user"
    kind = "minimum of" if match["kind"] == "Min" else "limit on"
    whom = FOR_WHOM.get(match["of"], "one job" if match["kind"] == "Min" else everybody)
    return f"{whose} {kind} {what} for {whom}"


def parse_time(text: str) -> float | None:
    """`2026-11-26T18:25:42`, in UTC, as seconds; None for `N/A`."""
    try:
        return float(calendar.timegm(time.strptime(text.strip(), "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return None


def parse_span(text: str) -> float | None:
    """`1-02:03:04`, `2:03:04`, `3:04` as seconds; None for UNLIMITED, NONE and what is no length of time. Raises
    Unknown."""
    match = re.fullmatch(r"(?:([0-9]+)-)?(?:([0-9]+):)?([0-9]+):([0-9]+)", text.strip())
    if not match:
        return None
    days, hours, minutes, seconds = (parse_count(part or "") for part in match.groups())
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
    qos: str = ""
    """Whose limits all of its jobs have."""


def parse_node(line: str) -> NodeKind | None:
    """A line `node|%N|%P|%G|%t|%c|%m|%f`. Raises Unknown."""
    fields = line.split("|")
    if len(fields) != 8:
        return None
    _, name, partition, gres, state, cpus, memory, features = fields
    gpus, types = parse_gpus(gres)
    return NodeKind(
        name, partition.rstrip("*"), partition.endswith("*"), gpus, types, state,
        parse_count(cpus, 1), parse_count(memory), features.split(","),
    )  # fmt: skip


def parse_gpus(gres: str) -> tuple[int, list[str]]:
    """How many of `gpu:h100:4(S:0-1),shard:8`, and of which types. Raises Unknown."""
    gpus = [word for word in re.sub(r"\([^()]*\)", "", gres).split(",") if word.split(":")[0] == "gpu"]
    return sum(parse_count(word.rpartition(":")[2]) for word in gpus), [
        word.split(":")[1] for word in gpus if word.count(":") == 2
    ]


def parse_partition(line: str) -> Partition | None:
    """A line `partition|PartitionName=gpu … DefaultTime=01:00:00 … MaxTime=UNLIMITED …`. Raises Unknown."""
    facts = dict(word.split("=", 1) for word in line.partition("|")[2].split() if "=" in word)
    name, qos = facts.get("PartitionName"), facts.get("QoS", "N/A")
    if not name:
        return None
    default_s, max_s = (parse_span(facts.get(word, "")) for word in ("DefaultTime", "MaxTime"))
    return Partition(name, default_s, max_s, "" if qos == "N/A" else qos)
