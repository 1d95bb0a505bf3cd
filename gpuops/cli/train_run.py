"""The commands `train` and `run`: their flags, and the request that they make of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import typer

from gpuops.cli import completion
from gpuops.cli.errors import explain_unknown_mode, sort_line, sorted_line
from gpuops.cli.flags import Json, LaunchFlags, MachineFlags, YesButTrust, with_flags
from gpuops.cli.help import WORDS, TakesArguments, TakesCommand, example_help, passed_words
from gpuops.cli.launch import CommandLine, launch
from gpuops.core.errors import UsageError
from gpuops.core.run_models import RunRequest
from gpuops.sync import workloads_and_data

TRAIN_HELP = example_help(
    "Train through torchrun on one GPU, one node or several.\n\n"
    "SCRIPT is your own file, run as it is; its arguments stand behind `--`. Without SCRIPT: the workload `digits`.\n\n"
    "\b\nWorkloads, each a program to read and to copy:\n"
    + "\n".join(f"  {name:9}  {known.line}" for name, known in workloads_and_data.WORKLOADS.items()),
    "gpuops train multinode --nodes 2",
    "gpuops train multigpu train.py -- 50 10 --batch_size 32",
    "gpuops train multinode --workload toy -- 50 10",
    "gpuops train multinode --workload mnist --data ~/mnist -- 1",
    "gpuops train single --workload cifar10 -- --help",
    "gpuops train single --array 0-9 train.py -- --seed {index}",
)
RUN_HELP = example_help(
    "Run any command on a node.\n\nWith push, logs, lease, results and teardown around it.",
    "gpuops run -- python3 hello.py",
    "gpuops run --nodes 2 --all-nodes -- nvidia-smi",
    "gpuops run --array 0-9%4 -- python3 sweep.py {index}",
)

Script = Annotated[str | None, typer.Argument(metavar="SCRIPT", help="Your training script.")]
Module = Annotated[
    str | None, typer.Option("-m", metavar="MODULE", help="Run a module instead of a script.", show_default=False)
]
Workload = Annotated[
    str | None,
    typer.Option(
        help="Run one of gpuops' own programs.",
        metavar="NAME",
        show_default=False,
        autocompletion=completion.workloads,
    ),
]

ArrayOption = Annotated[
    str | None,
    typer.Option(
        "--array",
        help="One run for each of these indices (0-9, 1,3,7, 0-15:4; 0-9%4: at most 4 at once), on the nodes of one "
        "cluster. {index} in the arguments and $GPUOPS_ARRAY_INDEX are the run's own.",
        metavar="INDICES",
        show_default=False,
    ),
]

SINGLE_FLAGS = {"single": ("nodes", "gpus"), "multigpu": ("nodes",)}
"""Machine flags of which a mode takes one."""
MODES: tuple[Literal["single"], Literal["multigpu"], Literal["multinode"]] = ("single", "multigpu", "multinode")


def register(app: typer.Typer) -> None:
    app.command("train", cls=TakesArguments, help=TRAIN_HELP)(train)
    app.command("run", cls=TakesCommand, help=RUN_HELP)(run)


@with_flags(LaunchFlags, MachineFlags)
def train(
    flags: LaunchFlags,
    machine: MachineFlags,
    context: typer.Context,
    mode: Annotated[
        str,
        typer.Argument(
            metavar="MODE",
            help="single: one rank; multigpu: one node, a rank per GPU; multinode: several nodes.",
            autocompletion=completion.modes,
        ),
    ],
    script: Script = None,
    module: Module = None,
    workload: Workload = None,
    array: ArrayOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be created, sent and executed.")] = False,
    yes: YesButTrust = False,
    as_json: Json = False,
) -> None:
    checked = check_mode(mode, context)
    workload = choose_workload(script, module, workload, line=lambda: sorted_line(context))

    def make_request(machine: MachineFlags) -> RunRequest:
        if array is None:  # else these are the cluster's, whose runs share it
            check_size(checked, machine, context)
        return RunRequest(
            kind="torchrun",
            mode=checked,
            nodes=machine.nodes or 0,
            gpus=1 if array and checked == "single" else machine.gpus,
            script=script,
            module=module,
            workload=workload,
            argv=passed_words() or [],
        )

    single = () if array else SINGLE_FLAGS.get(checked, ())
    typed = CommandLine(
        "train", flags, machine, context.meta[WORDS], single, dry_run, yes, as_json, _run_flags(context), array
    )
    launch(typed, make_request)


def choose_workload(
    script: str | None, module: str | None, workload: str | None, line: Callable[[], str]
) -> str | None:
    """The workload, which is the default one where nothing to train is named. Raises UsageError for several things.

    `line`: the typed line with each word where it belongs.
    """
    named = {"SCRIPT": script, "-m": module, "--workload": workload}
    given = [name for name, value in named.items() if value is not None]
    if empty := [name for name in given if not named[name]]:
        raise UsageError(f"{empty[0]} is empty", "name what to train, or leave it out")
    if module and (module.endswith(".py") or "/" in module):  # -m train.py would run train.py, and then fail
        dotted = module.removesuffix(".py").removeprefix("./").replace("/", ".")
        raise UsageError(
            f"-m takes the name of a module, not the file {module}", f"write -m {dotted}, or {module} alone"
        )
    if len(given) > 1:
        hint = "name one thing to train"
        if script and not script.endswith(".py"):  # an argument of the module's or workload's
            hint += f"; what belongs to it stands behind `--`: {line()}"
        raise UsageError(f"{' and '.join(given)} exclude each other", hint)
    return workload if given else workloads_and_data.DEFAULT_WORKLOAD


def _run_flags(context: typer.Context) -> list[str]:
    """The typed flags that `run` takes as well: all but -m MODULE."""
    typed = sort_line(context).ours
    at = typed.index("-m") if "-m" in typed else len(typed)
    return typed[:at] + typed[at + 2 :]


def check_mode(mode: str, context: typer.Context) -> Literal["single", "multigpu", "multinode"]:
    """The mode. Raises UsageError for an unknown one."""
    for known in MODES:
        if mode == known:
            return known
    raise UsageError(*explain_unknown_mode(mode, context))


def check_size(mode: str, machine: MachineFlags, context: typer.Context) -> None:
    """Raises UsageError where --nodes or --gpus contradict the mode."""
    if mode != "multinode" and machine.nodes not in (None, 1):
        raise UsageError(f"train {mode} is for one node, {machine.nodes} were asked for", sorted_line(context))
    if mode == "single" and machine.gpus not in (None, 1):
        raise UsageError(f"train single is one rank on one GPU, {machine.gpus} were asked for", sorted_line(context))


@with_flags(LaunchFlags, MachineFlags)
def run(
    flags: LaunchFlags,
    machine: MachineFlags,
    context: typer.Context,
    all_nodes: Annotated[bool, typer.Option("--all-nodes", help="Run it on every node, not on node0 alone.")] = False,
    array: ArrayOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be created, sent and executed.")] = False,
    yes: YesButTrust = False,
    as_json: Json = False,
) -> None:
    command = passed_words()
    if not command or not command[0]:
        raise UsageError("there is no command to run", "write it behind `--`: gpuops run -- python3 hello.py")

    if array and all_nodes:
        raise UsageError(
            "--array and --all-nodes exclude each other: each run of an array has one node", "leave out one of them"
        )

    def make_request(machine: MachineFlags) -> RunRequest:
        nodes = machine.nodes or 0
        return RunRequest(kind="command", mode="run", nodes=nodes, gpus=machine.gpus, argv=command, all_nodes=all_nodes)

    typed = CommandLine("run", flags, machine, context.meta[WORDS], (), dry_run, yes, as_json, array=array)
    launch(typed, make_request)
