"""`export slurm`: a batch script for sbatch."""

from __future__ import annotations

from gpuops.agent.run.snapshot_request import REQUEST_LEAD_S
from gpuops.commands.export import batch
from gpuops.commands.export.job import ExportJob, clock_time

SLURM = batch.Scheduler(
    name="Slurm",
    submit="sbatch",
    prefix="SLURM_",
    number="SLURM_JOB_ID",
    hosts='mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")',
    secret="export it before sbatch",
)
SNAPSHOT = (
    "# Before the time limit Slurm signals this script alone (B:). Programs that look at this file save and go on; a",
    "# signal would end those that know none.",
    "export GPUOPS_SNAPSHOT_FILE=$PWD/.snapshot-$job",
    "trap 'touch \"$GPUOPS_SNAPSHOT_FILE\"' USR1",
    "trap 'rm -f \"$GPUOPS_SNAPSHOT_FILE\"' EXIT",
    "",
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
    then = [*SNAPSHOT, *_srun(job), *WAIT]
    return batch.script(job, SLURM, header=_header(job), on_node=_on_each_node(job), then=then)


def _header(job: ExportJob) -> list[str]:
    options = job.options
    given = [f"--{name}={value}" for name in ("partition", "account", "qos") if (value := getattr(options, name))]
    lines = [
        f"--job-name={job.name}",
        f"--nodes={job.nodes}",
        "--ntasks-per-node=1",
        f"--gpus-per-node={job.ranks}",
        f"--cpus-per-task={job.cpus}",
        *([f"--mem={options.mem}G"] if options.mem else []),
        f"--time={clock_time(job.time_s)}",
        *given,
        "--no-requeue",
        f"--signal=B:USR1@{int(min(REQUEST_LEAD_S, job.time_s / 2))}",
    ]
    return [f"#SBATCH {line}" for line in lines]


def _on_each_node(job: ExportJob) -> list[str]:
    return [
        "node=$SLURM_NODEID  # only a step knows it: in the batch script it is 0",
        *batch.environment(job, SLURM),
        "exec " + batch.torchrun(job),
    ]


def _srun(job: ExportJob) -> list[str]:
    """A login shell where there are preludes, and otherwise the environment of sbatch as it is, with the Python that
    the user has activated there: a login shell may put another first."""
    login = ["# A login shell (-l) on each node: `module` is a function that it defines."]
    return [
        "# torchrun tells no node that another failed: --kill-on-bad-exit does. --wait=0: nodes may end minutes apart.",
        *(login if job.request.prelude else []),
        f"srun --nodes={job.nodes} --ntasks-per-node=1 --cpus-per-task={job.cpus} --kill-on-bad-exit=1 --wait=0 \\",
        f"    --input=none --export=ALL bash {'-lc' if job.request.prelude else '-c'} \\",
        f'    "{batch.call_on_node(job)}" &',
    ]
