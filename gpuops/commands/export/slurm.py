"""`export slurm`: a batch script for sbatch."""

from __future__ import annotations

from gpuops.agent.run.snapshot_request import REQUEST_LEAD_S
from gpuops.commands.export import shell
from gpuops.commands.export.job import ExportJob, clock_time

SNAPSHOT = (
    "# Before the time limit Slurm signals this script alone (B:). Programs that look at this file save and go on; a",
    "# signal would end those that know none.",
    "export GPUOPS_SNAPSHOT_FILE=$PWD/.snapshot-$SLURM_JOB_ID",
    "trap 'touch \"$GPUOPS_SNAPSHOT_FILE\"' USR1",
    "trap 'rm -f \"$GPUOPS_SNAPSHOT_FILE\"' EXIT",
)
WAIT = (
    "step=$!",
    'wait "$step"',
    "code=$?",
    'while ((code > 128)) && kill -0 "$step" 2>/dev/null; do  # the trap has ended that wait',
    '    wait "$step"',
    "    code=$?",
    "done",
    'exit "$code"',
)


def write(job: ExportJob) -> str:
    lines = [
        "#!/bin/bash",
        f"# {job.shown}: {job.size}.",
        "# Submit it with sbatch, in the folder that the program's paths start from and that every node sees.",
        *(f"#SBATCH {line}" for line in _header(job)),
        "",
        *shell.interface_function(job),
        *([""] if job.nodes > 1 else []),
        "# One per node; torchrun starts the ranks.",
        "on_each_node() {",
    ]
    text = shell.join(lines) + shell.join(_on_each_node(job), "    ") + "}\n\n"
    return text + shell.join([*_meeting_point(job), "", *SNAPSHOT, "", *_srun(job), *WAIT])


def _header(job: ExportJob) -> list[str]:
    options = job.options
    lead = int(min(REQUEST_LEAD_S, job.time_s / 2))
    return [
        f"--job-name={job.name}",
        f"--nodes={job.nodes}",
        "--ntasks-per-node=1",
        f"--gpus-per-node={job.ranks}",
        f"--cpus-per-task={job.cpus}",
        *([f"--mem={options.mem}G"] if options.mem else []),
        f"--time={clock_time(job.time_s)}",
        *(f"--{name}={value}" for name in ("partition", "account", "qos") if (value := getattr(options, name))),
        "--no-requeue",
        f"--signal=B:USR1@{lead}",
    ]


def _on_each_node(job: ExportJob) -> list[str]:
    second = ["((node > 0)) || peer=$second"] if job.nodes > 1 else []
    return [
        "node=$SLURM_NODEID  # only a step knows it: in the batch script it is 0",
        *shell.scrub_lines(),
        *shell.export_lines(shell.constants(job)),
        *shell.prelude_lines(job),
        *shell.secret_lines(job, "export it before sbatch"),
        *(["peer=$head", *second] if second else []),
        *shell.interface_lines(job, '"$peer"'),
        "# Lightning, MPI and their kin would take the ranks for tasks of Slurm.",
        "job=$SLURM_JOB_ID",
        shell.unset(("SLURM_", *shell.MPI)),
        "export SLURM_JOB_ID=$job",
        "exec " + shell.torchrun_line(job, node="$node", head="$head", port="$port", run="$job", indent="    "),
    ]


def _meeting_point(job: ExportJob) -> list[str]:
    head = ["head=127.0.0.1"]
    if job.nodes > 1:
        head = [
            "# This script runs on the first node. Its name is for the others: its own `hostname -i` may be 127.0.1.1.",
            'mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")',
            "head=${hosts[0]} second=${hosts[1]}",
        ]
    return [
        *head,
        *shell.port_lines("SLURM_JOB_ID"),
    ]


def _srun(job: ExportJob) -> list[str]:
    """A login shell where there are preludes: `module` is a function that /etc/profile.d defines. Without any, the
    environment of sbatch stays as it is, with the Python that the user activated there."""
    login = bool(job.request.prelude)
    names = "head second port" if job.nodes > 1 else "head port"
    functions = "interface_towards on_each_node" if job.nodes > 1 else "on_each_node"
    return [
        "# torchrun tells no node that another failed: --kill-on-bad-exit does. --wait=0: nodes may end minutes apart.",
        *(["# A login shell (-l) on each node: `module` is a function that it defines."] if login else []),
        f"srun --nodes={job.nodes} --ntasks-per-node=1 --cpus-per-task={job.cpus} --kill-on-bad-exit=1 --wait=0 \\",
        f"    --input=none --export=ALL bash {'-lc' if login else '-c'} \\",
        f'    "$(declare -p {names}; declare -f {functions}); on_each_node" &',
    ]
