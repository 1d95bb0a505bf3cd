"""`export`: the launch of `train` as a file, to read or to submit by hand."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Annotated, Any

import typer

from gpuops.cli import completion, trust
from gpuops.cli.context import Needs, make_context
from gpuops.cli.flags import Data, Env, Gpus, Json, LaunchFlags, MachineFlags, Nodes, Prelude, Python, Secret
from gpuops.cli.help import TakesArguments, example_help, passed_words
from gpuops.cli.launch import complete_request
from gpuops.cli.request import filled_from_table, launch_flags, machine_request
from gpuops.cli.train_run import Module, Script, Workload, choose_workload
from gpuops.core.context import Context
from gpuops.core.errors import LocalDisk, UsageError
from gpuops.core.format import listed
from gpuops.core.run_models import RunRequest
from gpuops.core.settings import Settings
from gpuops.core.typed_paths import typed_path

EXPORT_HELP = example_help(
    "Write the launch of a script for a scheduler, or as torchrun lines to type.\n\n"
    "Nothing is contacted and nothing is started; what is written needs no gpuops.",
    "gpuops export slurm train.py --nodes 2 --gpus 4 > job.sbatch",
    "gpuops export pbs train.py --nodes 2 --gpus 4 --prelude 'module load cuda' -o job.pbs -- 50 10",
    "gpuops export torchrun train.py --nodes 2 --gpus 4 -- 50 10",
    "gpuops export k8s train.py --nodes 2 --gpus 8 --image pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime",
)
USED = ("data", "env", "secret", "prelude", "python")
"""Launch flags that a written launch has; the others are gpuops' own work around one."""
PORTS = range(20000, 29000)


def _of(help_text: str, metavar: str, *names: str) -> Any:
    return typer.Option(*names, help=help_text, metavar=metavar, show_default=False)


def register(app: typer.Typer) -> None:
    app.command("export", cls=TakesArguments, help=EXPORT_HELP)(export)


def export(
    target: Annotated[
        str,
        typer.Argument(metavar="TARGET", help="torchrun, slurm, pbs or k8s.", autocompletion=completion.export_targets),
    ],
    script: Script = None,
    module: Module = None,
    workload: Workload = None,
    nodes: Nodes = None,
    gpus: Gpus = None,
    data: Data = None,
    env: Env = None,
    secret: Secret = None,
    prelude: Prelude = None,
    python: Python = None,
    time: Annotated[
        str | None, _of("The job's time limit: 02:30:00, 150min or 2.5h. Without it: an hour; k8s: none.", "SPAN")
    ] = None,
    partition: Annotated[str | None, _of("Slurm's partition, or PBS' queue.", "NAME")] = None,
    account: Annotated[str | None, _of("Whose account the job is charged to.", "NAME")] = None,
    qos: Annotated[str | None, _of("Slurm's quality of service.", "NAME")] = None,
    mem: Annotated[int | None, _of("Memory per node, in GB.", "GB")] = None,
    cpus: Annotated[int | None, _of("Cores per node. Without it: 4 for each rank.", "N")] = None,
    select_extra: Annotated[
        str | None, _of("What a PBS site wants in `select` as well, such as gpu_model=v100.", "TEXT")
    ] = None,
    image: Annotated[str | None, _of("The image of the pods.", "IMAGE")] = None,
    namespace: Annotated[str | None, _of("The namespace of the pods.", "NAME")] = None,
    name: Annotated[str | None, _of("The job's name. Without it: the script's.", "NAME")] = None,
    output: Annotated[str | None, _of("Write a file, which must not be there yet.", "FILE", "-o", "--output")] = None,
    as_json: Json = False,
) -> None:
    from gpuops.commands.export.job import TargetOptions
    from gpuops.commands.export.targets import export_text

    ctx, settings = make_context(as_json=as_json, strict=True, needs=Needs.LOOK)
    workload = choose_workload(script, module, workload, line=lambda: "gpuops export TARGET -m MODULE -- ARGS")
    typed = LaunchFlags(data=data, env=env, secret=secret, prelude=prelude, python=python)
    request = _request(ctx, settings, typed, MachineFlags(nodes=nodes, gpus=gpus), script, module, workload)
    options = TargetOptions(
        time=time, partition=partition, account=account, qos=qos, mem=mem, cpus=cpus, select_extra=select_extra,
        image=image, namespace=namespace, name=name,
    )  # fmt: skip
    text = export_text(target, request, options, random.choice(PORTS))
    if output is not None:
        _write_new(ctx.folder, output, text)
    ctx.out.result("export", {"target": target, "text": text}, [] if output else [text.removesuffix("\n")])


def _request(
    ctx: Context,
    settings: Settings,
    typed: LaunchFlags,
    machine: MachineFlags,
    script: str | None,
    module: str | None,
    workload: str | None,
) -> RunRequest:
    """The request that `train` would make of these flags and `gpuops.toml`. Raises UsageError."""
    trust.require_trust(ctx, settings.toml, "train", typed, machine)
    complete = launch_flags(settings, "train", typed)
    flags = LaunchFlags(**{name: getattr(complete, name) for name in USED})
    if work := [name for name in ("setup", "resume", "sink") if getattr(complete, name)]:
        ctx.out.say(
            f"note: {listed(work)} of gpuops.toml is what gpuops does around a run: it is not written down here"
        )
    machines = machine_request("local", filled_from_table(settings, "train", machine), {})
    request = RunRequest(
        kind="torchrun",
        mode="multinode" if machines.nodes > 1 else "multigpu",
        nodes=machines.nodes,
        gpus=machines.gpus,
        script=script,
        module=module,
        workload=workload,
        argv=passed_words() or [],
    )
    return complete_request(ctx, request, flags)


def _write_new(folder: Path, name: str, text: str) -> None:
    """Raises UsageError where something has that name already, LocalDisk where it cannot be written."""
    path = typed_path("--output", name, folder)
    try:
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{name} is there already", "name another file, or remove that one") from None
    except OSError as error:
        raise LocalDisk(f"{name} cannot be written: {error.strerror}", "name a file in a folder of yours") from error
