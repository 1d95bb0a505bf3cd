"""What scripts of Slurm and PBS share: they run on the first node, and start a function of their own on each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuops.commands.export import shell
from gpuops.commands.export.job import ExportJob
from gpuops.runs.launch_spec import OF_MPI


@dataclass(frozen=True)
class Scheduler:
    name: str
    submit: str
    """The command that takes the script."""
    prefix: str
    """Of its variables."""
    number: str
    """Its variable with the job's number."""
    hosts: str
    """Shell that reads the nodes' names into `hosts`, the first node first."""
    secret: str
    """Where a secret comes from."""


def script(
    job: ExportJob, scheduler: Scheduler, *, header: Sequence[str], on_node: Sequence[str], then: Sequence[str]
) -> str:
    """The whole script. `on_node`: the body of `on_each_node`; `then`: what the first node does at the end."""
    start = [
        "#!/bin/bash",
        f"# {job.shown}: {job.size}.",
        f"# Submit it with {scheduler.submit}, in the folder that the program's paths start from and every node sees.",
        *header,
        "",
        *shell.interface_function(job),
        *([""] if job.nodes > 1 else []),
        "# One per node; torchrun starts the ranks.",
        "on_each_node() {",
    ]
    body = shell.join(on_node, "    ") + "}\n\n"
    return shell.join(start) + body + shell.join([*_meeting_point(job, scheduler), "", *then])


def environment(job: ExportJob, scheduler: Scheduler) -> list[str]:
    """What a node does before its torchrun."""
    peer = ["peer=$head", "((node > 0)) || peer=$second"] if job.nodes > 1 else []
    return [
        *shell.scrub_lines(),
        *shell.export_lines(shell.constants(job)),
        *shell.prelude_lines(job),
        *shell.secret_lines(job, scheduler.secret),
        *peer,
        *shell.interface_lines(job, '"$peer"'),
        f"# Lightning, MPI and their kin would take the ranks for tasks of {scheduler.name}.",
        shell.unset((scheduler.prefix, *OF_MPI)),
        f"export {scheduler.number}=$job",
    ]


def torchrun(job: ExportJob) -> str:
    return shell.torchrun_line(job, node="$node", head="$head", port="$port", run="$job", indent="    ")


def call_on_node(job: ExportJob, *variables: str) -> str:
    """Text for another shell: what it has to know of this one, and the call of `on_each_node`."""
    names = [*(["second"] if job.nodes > 1 else []), "head", "port", "job", *variables]
    functions = [*(["interface_towards"] if job.nodes > 1 else []), "on_each_node"]
    return f"$(declare -p {' '.join(names)}; declare -f {' '.join(functions)}); on_each_node"


def _meeting_point(job: ExportJob, scheduler: Scheduler) -> list[str]:
    hosts = [
        "# This script runs on the first node. Its name is for the others: its own `hostname -i` may be 127.0.1.1.",
        scheduler.hosts,
        "head=${hosts[0]} second=${hosts[1]}",
    ]
    return [
        *(hosts if job.nodes > 1 else ["head=127.0.0.1"]),
        f"job=${scheduler.number}",
        "# A port of this job's own: others on this node take 29500, too.",
        "port=$((20000 + ${job%%[!0-9]*} % 9000))",
        'while (exec 3<>"/dev/tcp/localhost/$port") 2>/dev/null; do port=$((port + 1)); done',
    ]
