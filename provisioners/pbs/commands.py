"""Every command of PBS's that is run, and what it prints. Pure."""

from __future__ import annotations

import calendar
import json
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any

from provisioners.batch.jobs import NAME, Job, JobState
from provisioners.batch.numbers import parse_count
from provisioners.batch.provisioner import Submission

PRELUDE = """
[ ! -x /opt/pbs/bin/qsub ] || PATH=$PATH:/opt/pbs/bin
"""
SITE = """
qstat -Q -f -F json || exit 1
echo; echo ===
qstat -B -f -F json 2>/dev/null
echo; echo ===
pbsnodes -a -F json 2>/dev/null || true
"""
"""Queues, the server, machines: what the parts of one (its vnodes) have is summed up."""
WHO = "id -un; id -Gn"
"""Whose limits are meant."""
HISTORY = 100
DELIMITER = "\x1f"
"""Between the attributes of a job: in a value it is written as two other signs."""
JOBS = f"""
user=$(id -un)
live=$(qselect -u "$user") || exit 1
if ended=$(qselect -x -u "$user" 2>/dev/null); then history=-x; else history= ended=; fi
ids=$({{ printf '%s\\n' $ended | tail -n {HISTORY}; printf '%s\\n' $live; }} | sed '/^$/d' | sort -u)
[ -n "$ids" ] || exit 0
mark=$(printf '\\037')
told=$(TZ=UTC qstat $history -f -F dsv -D "$mark" $ids 2>/dev/null)
printf '%s\\n' "$told"
named=" $(printf '%s\\n' "$told" | sed -n "s/^Job Id: \\([^$mark]*\\).*/\\1/p" | tr '\\n' ' ')"
still=$(qselect -u "$user") || exit 1
for id in $live; do
    case $named in *" $id "*) continue ;; esac
    case " $(echo $still) " in *" $id "*) echo "qstat tells nothing of $id"; exit 1 ;; esac
done
"""
"""This user's jobs, and the last of those that ended, where PBS keeps them. qstat tells of each in turn: one that ends
between two of these questions is left out, and so are all others while the server does not answer. Its JSON is none
where a job's variables have quotes (openpbs#2541), and tells of the first job alone in some versions (openpbs#2672)."""
CANCEL = """
ids=$(qselect -N "$1" -u "$(id -un)") || exit 1
for id in $ids; do qdel "$id" || code=$?; done
exit "${code:-0}"
"""
GONE = re.compile(r"Unknown Job|has finished|invalid for state of job", re.IGNORECASE)
"""A job that is over or ends already; whether it is gone, the queue tells."""
STEP = r"""job=$1 python=$2 host=$3
shift 3
case $(qstat -f "$job" 2>&1) in *"Unknown Job"* | *"has finished"*) exec "$@" --left ;; esac
"""
"""A server that does not answer says nothing of a job."""
SHELL = r"""
line=$("$python" -I -c 'import shlex, sys; print(" ".join(map(shlex.quote, sys.argv[1:])))' "$@" </dev/null) || exit 1
ssh @OPTIONS -o BatchMode=yes -o ServerAliveInterval=20 -- "$host" "$line"
code=$?
[ "$code" != 255 ] || printf '%s\n' '@REFUSED' >&2
exit "$code"
"""
"""The far side gives one line of text to the user's login shell, which takes it apart into the same words. Host keys
are the site's matter: what it lets `ssh` believe is believed."""
FORWARD = r"""host=$1 here=$2 port=$3
case $here in /*) mkdir -m 700 "${here%/*}" || exit 1 ;; esac
ssh -T -o BatchMode=yes -o LogLevel=ERROR -o ServerAliveInterval=20 -o ExitOnForwardFailure=yes \
    -L "$here:127.0.0.1:$port" -- "$host" \
    'exec cat >/dev/null'
code=$?
case $here in /*) rm -f "$here"; rmdir "${here%/*}" ;; esac
[ "$code" != 255 ] || printf '%s\n' '@REFUSED' >&2
exit "$code"
"""
"""Ends with its input: nothing else would end it on the login node. A socket lies in a folder of its user's alone, made
here: others see its name in this command line, and could else be the first to listen there."""
NO_WAY = "the login node cannot reach this machine of the job by ssh without a question"
ASK_FOR_WAY = (
    "try there: ssh -o BatchMode=yes MACHINE true; or ask who runs the cluster for ssh to the machines of your own "
    "jobs, by a key in the shared home or by hosts, with their host keys known"
)
REFUSED = json.dumps({"error": {"kind": "no-way", "say": NO_WAY, "hint": ASK_FOR_WAY}})
"""As an agent refuses."""
REFUSED_PERSON = f"error: {NO_WAY}\nhint: {ASK_FOR_WAY}"
KILL_DELAY_S = 10
"""Between SIGTERM and SIGKILL, where a queue does not say."""
NO_SERVER = re.compile(r"cannot connect to server|connection refused|timed? ?out|no route to host|15031", re.IGNORECASE)
"""The job may have been submitted all the same."""
WAITING = frozenset("QHWT")
OVER = frozenset("FX")
NEVER = "Can Never Run:"
WHY_OVER = {"271": "its job was deleted", "-29": "its job's time was over", "265": "its job was killed"}


def qsub_words(submission: Submission) -> list[str]:
    """The whole command line of qsub; the script is its input."""
    asked = [str(word) for word in submission.data["words"]]
    return [
        "qsub", "-N", submission.name, "-r", "n", "-m", "n", "-S", "/bin/sh", "-j", "oe", "-o", submission.output,
        *asked,
    ]  # fmt: skip


def job_script(submission: Submission, python: str, nodes: int) -> str:
    """One `hold` on each node. PBS signals this shell, too, with whose end it would kill all the others."""
    cluster = ["--cluster", submission.folder, "--job", submission.token]
    hold = [python, "-I", submission.agent, "hold", *cluster, "--index"]
    return f"""\
#!/bin/sh
PATH=$PATH:${{PBS_EXEC:-/opt/pbs}}/bin
trap : TERM
index=0 tasks=
while [ "$index" -lt {nodes} ]; do
    pbsdsh -n "$index" -- {shlex.join(hold)} "$index" &
    tasks="$tasks $!" index=$((index + 1))
done
for task in $tasks; do
    while kill -0 "$task" 2>/dev/null; do wait "$task"; done
done
"""


def step_words(job: str, python: str, host: str) -> list[str]:
    """Starts a program on a node of a job; once the job is over, here on the login node, which it is told."""
    return ["sh", "-c", STEP + _shell("-T", REFUSED), "sh", job, python, host]


def shell_words(job: str, python: str, host: str, gpus: Sequence[str] | None, terminal: bool) -> list[str]:
    """Starts a person's command on a node of a job, who is to see that, its GPUs and no others."""
    script = "python=$1 host=$2\nshift 2" + _shell("-tt" if terminal else "-T", REFUSED_PERSON)
    seen = [] if gpus is None else [f"CUDA_VISIBLE_DEVICES={','.join(gpus)}"]
    return ["sh", "-c", script, "sh", python, host, "env", f"PBS_JOBID={job}", *seen]


def forward_words(host: str) -> list[str]:
    """Holds a port of a node of a job open here; behind it: the socket's path or the port here, and the port there."""
    return ["sh", "-c", FORWARD.replace("@REFUSED", REFUSED_PERSON), "sh", host]


def _shell(options: str, refused: str) -> str:
    return SHELL.replace("@OPTIONS", options).replace("@REFUSED", refused)


def parse_jobs(text: str, prefix: str, now: float) -> list[Job]:
    """The jobs of JOBS whose name begins so; other names may hold anything. Raises Unknown."""
    jobs = []
    for line in text.split("\n"):
        number, *attributes = line.removeprefix("Job Id: ").split(DELIMITER)
        facts = dict(attribute.partition("=")[::2] for attribute in attributes)
        name = facts.get("Job_Name", "")
        match = NAME.fullmatch(name)
        if match and name.startswith(prefix):
            jobs.append(_parse_job(number, facts, match["mark"], match["token"], now))
    return jobs


def _parse_job(number: str, facts: Mapping[str, str], mark: str, token: str, now: float) -> Job:
    word, comment = facts.get("job_state", ""), facts.get("comment", "")
    state = JobState.QUEUED if word in WAITING else JobState.OVER if word in OVER else JobState.RUNNING
    walltime_s, begun = parse_span(facts.get("Resource_List.walltime", "")), parse_time(facts.get("stime", ""))
    left_s = None if walltime_s is None or begun is None else begun + walltime_s - now
    return Job(
        number,
        mark,
        token,
        state,
        parse_count(facts.get("Resource_List.nodect", "")),
        phase=describe_wait(word, comment),
        hopeless=explain_never(word, comment) if state is JobState.QUEUED else "",
        left_s=left_s if state is JobState.RUNNING else None,
        why_over=explain_end(facts) if state is JobState.OVER else "",
    )


def explain_end(facts: Mapping[str, str]) -> str:
    """Why a job is over."""
    if "stime" not in facts:
        return "its job was deleted while it was queued"
    return WHY_OVER.get(facts.get("Exit_status", ""), "its job is over")


def describe_wait(word: str, comment: str) -> str:
    """`queued: Insufficient amount of resource: ngpus`."""
    why = comment.replace("Not Running:", "").strip()
    return f"queued{': ' + why if why else ''}" if word in WAITING else ""


def explain_never(word: str, comment: str) -> str:
    """Why a queued job will never run; empty where it may."""
    if word == "H":
        return f"PBS holds its job ({comment or 'it does not say why'}) and will not start it by itself"
    _, sign, why = comment.partition(NEVER)
    return f"PBS will never start its job ({why.strip()}): ask for less, or elsewhere" if sign else ""


def parse_json(text: str) -> Any:
    """What `-F json` prints. Raises ValueError."""
    return json.loads(text, strict=False)


def members(document: Any, name: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The entries of one part of an answer, which is left out where there are none."""
    part = document.get(name) if isinstance(document, dict) else None
    return [(key, value) for key, value in (part or {}).items() if isinstance(value, dict)]


def parse_time(text: str) -> float | None:
    """`Thu Nov 26 18:25:42 2026`, in UTC, as seconds."""
    try:
        return float(calendar.timegm(time.strptime(text.strip(), "%a %b %d %H:%M:%S %Y")))
    except ValueError:
        return None


def parse_span(text: str) -> float | None:
    """`26:03:04`, `3:04`, `60` as seconds; None for what is no length of time. Raises Unknown."""
    if not re.fullmatch(r"[0-9]+(:[0-9]+){0,2}", text.strip()):
        return None
    seconds = 0
    for part in text.strip().split(":"):
        seconds = seconds * 60 + parse_count(part)
    return float(seconds)


def parse_size(text: str) -> int | None:
    """`527954604kb`, `64gb` as bytes; None for what is no size. Raises Unknown."""
    match = re.fullmatch(r"([0-9]+)([kmgtp]?)[bw]?", text.strip().lower())
    return parse_count(match[1]) << (10 * " kmgtp".index(match[2] or " ")) if match else None
