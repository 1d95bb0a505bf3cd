"""`export torchrun`: the line for each node, to be typed there."""

from __future__ import annotations

from gpuops.commands.export import shell
from gpuops.commands.export.job import ExportJob

HEAD_LINES = (
    "# HEAD is node 0's address, as a number, at which the other nodes reach it: export HEAD=10.0.0.4",
    "# On node 0, `ip route get ADDRESS-OF-NODE-1` prints it behind `src`.",
    ': "${HEAD:?export it first: the address of node 0}"',
)


def write(job: ExportJob, port: int) -> str:
    """What to paste on every node, then the line of each. `port`: of node 0, fresh for this launch."""
    several = job.nodes > 1
    lines = [
        f"# {job.shown}: {job.size}.",
        "# First, in bash on every node, in the folder that the program's paths start from:",
        *(HEAD_LINES if several else ()),
        *shell.scrub_lines(),
        *_environment(job),
        *shell.prelude_lines(job, ends=False),
        *shell.secret_lines(job, "export it first, on every node"),
        *shell.interface_function(job),
        *shell.interface_lines(job, '"$HEAD"'),
    ]
    for node in range(job.nodes):
        lines += [
            "",
            f"# Then on node {node}:" if several else "# Then:",
            shell.torchrun_line(
                job,
                node=str(node),
                head="$HEAD" if several else "127.0.0.1",
                port=str(port),
                run=f"{job.name}-{port}",
            ),
        ]
    return shell.join(lines)


def _environment(job: ExportJob) -> list[str]:
    """Without --cpus, a rank's share of the cores is counted on the node."""
    variables = shell.constants(job)
    if job.options.cpus or "OMP_NUM_THREADS" in job.request.env:
        return shell.export_lines(variables)
    del variables["OMP_NUM_THREADS"]
    return [
        *shell.export_lines(variables),
        f"threads=$(($(env -u OMP_NUM_THREADS nproc) / {job.ranks}))  # a rank's share of the cores",
        "export OMP_NUM_THREADS=$((threads > 0 ? threads : 1))",
    ]
