"""The targets of `export`, and which options each takes."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import NamedTuple

from gpuops.commands.export import kubernetes, pbs, slurm, torchrun
from gpuops.commands.export.job import ExportJob, TargetOptions, make_job
from gpuops.core.errors import UsageError
from gpuops.core.run_models import RunRequest


class Target(NamedTuple):
    file: str
    """What its file is usually called."""
    takes: Set[str]
    """Fields of TargetOptions."""


TARGETS: Mapping[str, Target] = {
    "torchrun": Target("launch.txt", {"cpus"}),
    "slurm": Target("job.sbatch", {"time", "partition", "account", "qos", "mem", "cpus", "name"}),
    "pbs": Target("job.pbs", {"time", "partition", "account", "mem", "cpus", "select_extra", "name"}),
    "k8s": Target("job.yaml", {"time", "mem", "cpus", "image", "namespace", "name"}),
}


def export_text(target: str, request: RunRequest, options: TargetOptions, port: int) -> str:
    """The launch for a target, as text. `port`: a fresh one, where no job's number gives one.

    Raises UsageError for an unknown target, an option that it does not take, and what cannot be exported.
    """
    if target not in TARGETS:
        raise UsageError(
            f"'{target}' is none of {', '.join(TARGETS)}", "say first for what: gpuops export slurm train.py"
        )
    for name in options.typed():
        if name not in TARGETS[target].takes:
            takers = [other for other, known in TARGETS.items() if name in known.takes]
            raise UsageError(
                f"--{name.replace('_', '-')} says nothing to {target}", f"leave it out; it is for {', '.join(takers)}"
            )
    if target == "k8s" and not options.image:
        raise UsageError("a pod is started from an image, and none is named", "add --image REGISTRY/NAME:TAG")
    return _write(target, make_job(request, options, in_image=target == "k8s"), port)


def _write(target: str, job: ExportJob, port: int) -> str:
    match target:
        case "slurm":
            return slurm.write(job)
        case "pbs":
            return pbs.write(job)
        case "k8s":
            return kubernetes.write(job)
    return torchrun.write(job, port)
