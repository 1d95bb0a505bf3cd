"""`export pbs`: a batch script for qsub."""

from __future__ import annotations

from gpuops.commands.export import batch
from gpuops.commands.export.job import ExportJob, clock_time

PBS = batch.Scheduler(
    name="PBS",
    submit="qsub",
    prefix="PBS_",
    number="PBS_JOBID",
    hosts='mapfile -t hosts <"$PBS_NODEFILE"  # which is on this node alone',
    secret="export it in a file that you alone can read, and read that in a prelude",
)
END_WITH_OTHERS = (
    "torchrun=$!",
    "# torchrun tells no node that another failed.",
    'until [ -e "$results/failed" ]; do sleep 2 &>/dev/null; done && kill "$torchrun" &',
    "watch=$!",
    'wait "$torchrun"',
    "code=$?",
    'kill "$watch" 2>/dev/null',
    'exit "$code"',
)
JUDGE = (
    "    for ((waited = 0; waited < 60; waited++)); do  # a shared folder may show another node's file late",
    '        [ -e "$results/$node" ] && break',
    "        sleep 1",
    "    done",
    '    code=$(cat "$results/$node" || echo 1)',
    '    [ "$code" = 0 ] && continue',
    '    echo "node $node failed with exit code $code" >&2',
    "    exit_code=$code",
    "done",
    'exit "$exit_code"',
)


def write(job: ExportJob) -> str:
    return batch.script(job, PBS, header=_header(job), on_node=_on_each_node(job), then=[*_start(job), *JUDGE])


def _header(job: ExportJob) -> list[str]:
    options = job.options
    # mpiprocs=1: one line per node in the node file, and one task of pbsdsh.
    node = [f"ncpus={job.cpus}", f"ngpus={job.ranks}", "mpiprocs=1"]
    node += [f"mem={options.mem}gb"] if options.mem else []
    node += [options.select_extra] if options.select_extra else []
    return [
        f"#PBS -N {job.name}",
        f"#PBS -l select={job.nodes}:{':'.join(node)}",
        "#PBS -l place=scatter",
        f"#PBS -l walltime={clock_time(job.time_s)}",
        *([f"#PBS -q {options.partition}"] if options.partition else []),
        *([f"#PBS -A {options.account}"] if options.account else []),
        "#PBS -r n",
        "",
        'cd "$PBS_O_WORKDIR" || exit  # PBS starts a script in $HOME',
    ]


def _on_each_node(job: ExportJob) -> list[str]:
    return [
        'trap \'code=$?; [ "$code" = 0 ] || touch "$results/failed"; echo "$code" >"$results/$node"\' EXIT',
        'cd "$folder" || exit',
        *batch.environment(job, PBS),
        batch.torchrun(job) + " &",
        *END_WITH_OTHERS,
    ]


def _start(job: ExportJob) -> list[str]:
    each = f"for node in {{0..{job.nodes - 1}}}; do"
    return [
        "# A login shell (-l) on each node: `module` is a function that it defines. pbsdsh answers 0 whatever a node's",
        "# program answered, so each node writes that into this folder.",
        f'folder=$PWD results=$(mktemp -d "$PWD/.{job.name}-XXXXXX") || exit',
        "trap 'rm -rf \"$results\"' EXIT",
        "command -v pbsdsh >/dev/null || PATH=$PATH:/opt/pbs/bin",
        each,
        '    pbsdsh -n "$node" -- /bin/bash -lc \\',
        f'        "node=$node; {batch.call_on_node(job, "folder", "results")}" &',
        "done",
        "wait",
        "",
        "exit_code=0",
        each,
    ]
