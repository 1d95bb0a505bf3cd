"""`export pbs`: a batch script for qsub."""

from __future__ import annotations

from gpuops.commands.export import shell
from gpuops.commands.export.job import ExportJob, clock_time

VARIABLES = ("folder", "head", "second", "port", "job", "results")
"""What a node is told; pbsdsh hands on neither variables nor stdin."""
START = (
    "# A login shell (-l) on each node: `module` is a function that it defines. pbsdsh answers 0 whatever a node's",
    "# program answered, so each node writes that into this folder.",
    'results=$(mktemp -d "$PWD/.{name}-XXXXXX") || exit',
    "trap 'rm -rf \"$results\"' EXIT",
    "command -v pbsdsh >/dev/null || PATH=$PATH:/opt/pbs/bin",
    "for ((node = 0; node < {nodes}; node++)); do",
    '    pbsdsh -n "$node" -- /bin/bash -lc \\',
    '        "node=$node; $(declare -p {variables}; declare -f {functions}); on_each_node" &',
    "done",
    "wait",
    "",
    "exit_code=0",
    "for ((node = 0; node < {nodes}; node++)); do",
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
WATCH = (
    "torchrun=$!",
    "# torchrun tells no node that another failed.",
    'until [ -e "$results/failed" ]; do sleep 2; done && kill "$torchrun" &',
    "watch=$!",
    'wait "$torchrun"',
    "code=$?",
    'kill "$watch" 2>/dev/null',
    'exit "$code"',
)


def write(job: ExportJob) -> str:
    lines = [
        "#!/bin/bash",
        f"# {job.shown}: {job.size}.",
        "# Submit it with qsub, in the folder that the program's paths start from and that every node sees.",
        *(f"#PBS {line}" for line in _header(job)),
        "",
        'cd "$PBS_O_WORKDIR" || exit  # PBS starts a script in $HOME',
        "",
        *shell.interface_function(job),
        *([""] if job.nodes > 1 else []),
        "# One per node; torchrun starts the ranks.",
        "on_each_node() {",
    ]
    functions = "interface_towards on_each_node" if job.nodes > 1 else "on_each_node"
    variables = " ".join(name for name in VARIABLES if job.nodes > 1 or name != "second")
    start = [
        line.replace("{name}", job.name)
        .replace("{nodes}", str(job.nodes))
        .replace("{variables}", variables)
        .replace("{functions}", functions)
        for line in START
    ]
    text = shell.join(lines) + shell.join(_on_each_node(job), "    ") + "}\n\n"
    return text + shell.join([*_meeting_point(job), *start])


def _header(job: ExportJob) -> list[str]:
    options = job.options
    # mpiprocs=1: one line per node in the node file, and one task of pbsdsh.
    node = [f"ncpus={job.cpus}", f"ngpus={job.ranks}", "mpiprocs=1"]
    node += [f"mem={options.mem}gb"] if options.mem else []
    node += [options.select_extra] if options.select_extra else []
    return [
        f"-N {job.name}",
        f"-l select={job.nodes}:{':'.join(node)}",
        "-l place=scatter",
        f"-l walltime={clock_time(job.time_s)}",
        *([f"-q {options.partition}"] if options.partition else []),
        *([f"-A {options.account}"] if options.account else []),
        "-r n",
    ]


def _on_each_node(job: ExportJob) -> list[str]:
    peer = ["peer=$head", "((node > 0)) || peer=$second"] if job.nodes > 1 else []
    return [
        'trap \'code=$?; [ "$code" = 0 ] || touch "$results/failed"; echo "$code" >"$results/$node"\' EXIT',
        'cd "$folder" || exit',
        *shell.scrub_lines(),
        *shell.export_lines(shell.constants(job)),
        *shell.prelude_lines(job),
        *shell.secret_lines(job, "export it in a file that you alone can read, and read that in a prelude"),
        *peer,
        *shell.interface_lines(job, '"$peer"'),
        "# Lightning, MPI and their kin would take the ranks for tasks of PBS.",
        shell.unset(("PBS_", *shell.MPI)),
        "export PBS_JOBID=$job",
        shell.torchrun_line(job, node="$node", head="$head", port="$port", run="$job", indent="    ") + " &",
        *WATCH,
    ]


def _meeting_point(job: ExportJob) -> list[str]:
    head = ["head=127.0.0.1"]
    if job.nodes > 1:
        head = [
            "# This script runs on the first node, which alone has the node file. Its name is for the others: its own",
            "# `hostname -i` may be 127.0.1.1.",
            'mapfile -t hosts <"$PBS_NODEFILE"',
            "head=${hosts[0]} second=${hosts[1]}",
        ]
    return [
        *head,
        "folder=$PWD job=$PBS_JOBID",
        *shell.port_lines("${PBS_JOBID%%[!0-9]*}"),
        "",
    ]
