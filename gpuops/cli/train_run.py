"""`gpuops train` and `gpuops run`: from flags and `gpuops.toml` to a job, its plan and the exit code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gpuops.cli import completion, trust
from gpuops.cli.context import make_context, report_news
from gpuops.cli.flags import Json, LaunchFlags, MachineFlags, Yes, with_flags
from gpuops.cli.help import WORDS, TakesArguments, TakesCommand, example_help, passed_words
from gpuops.cli.request import (
    check_data,
    count_named_machines,
    filled_from_table,
    find_key_like_values,
    launch_flags,
    lease_limits,
    machine_request,
    parse_environment,
    parse_grace,
    parse_provider_options,
)
from gpuops.core.context import Context
from gpuops.core.errors import UsageError
from gpuops.core.models import RunRequest
from gpuops.core.provider import is_rented
from gpuops.core.settings import Settings
from gpuops.sync import inputs, sinks

if TYPE_CHECKING:
    from gpuops.commands.plan import Job


@dataclass(frozen=True)
class CommandLine:
    """What was typed for `run` or `train`."""

    table: Literal["run", "train"]
    """The command, and the table of `gpuops.toml` that completes its flags."""
    flags: LaunchFlags
    machine: MachineFlags
    provider_words: Sequence[str]
    """Options of the provider behind `--on`."""
    single: Sequence[str] = ()
    """Machine flags that this mode takes one of, whatever `gpuops.toml` says for other modes."""
    dry_run: bool = False
    yes: bool = False
    as_json: bool = False


def launch(typed: CommandLine, make_request: Callable[[MachineFlags], RunRequest]) -> None:
    """Plan the run, then print the plan (`--dry-run`) or carry it out. Raises typer.Exit with the run's exit code.

    `make_request` gets the machine flags completed from `gpuops.toml`.
    """
    from gpuops.commands.dry_run import preview_plan
    from gpuops.commands.plan import make_plan
    from gpuops.commands.train import execute

    ctx, settings = make_context(as_json=typed.as_json, yes=typed.yes, strict=True)
    job = _make_job(ctx, settings, typed, make_request)
    report_news(ctx)
    plan = make_plan(ctx, job)
    if typed.dry_run:
        preview = preview_plan(ctx, plan)
        ctx.out.result("plan", preview.document(), preview.lines(ctx.out.columns(ctx.out.out)))
        return
    progress = ctx.progress
    try:
        outcome = execute(ctx, settings, plan, progress)
    finally:
        progress.close()
    ctx.out.result("run", outcome.document, [])
    for line in outcome.last:
        ctx.out.say(line)
    if outcome.exit_code:
        raise typer.Exit(outcome.exit_code)


def _make_job(
    ctx: Context, settings: Settings, typed: CommandLine, make_request: Callable[[MachineFlags], RunRequest]
) -> Job:
    """The job, completed from `gpuops.toml` and checked. Raises UsageError."""
    from gpuops.commands.plan import Job
    from gpuops.runs.prepare import Sending

    flags = launch_flags(settings, typed.table, typed.flags)
    rents = bool(flags.on) and is_rented(ctx.provisioner(str(flags.on)))
    trust.require_trust(ctx, settings.toml, typed.table, typed.flags, typed.machine, rents=rents)
    machine = filled_from_table(settings, typed.table, typed.machine)
    unfit = {name: getattr(typed.machine, name) for name in typed.single if getattr(machine, name) != 1}
    machine = dataclasses.replace(machine, **unfit)
    options = parse_provider_options(ctx, flags.on, typed.provider_words) if flags.on else {}
    if flags.on and flags.sink:
        options = sinks.with_volume_option(
            flags.on, ctx.provisioner(flags.on).options, options, sinks.parse_sink(flags.sink)
        )
    count = count_named_machines(ctx, flags.on, options) if flags.on else 1
    machines = machine_request(flags.on or "local", machine, options, count)
    return Job(
        request=complete_request(ctx, make_request(machine), flags),
        machines=machines,
        cluster=flags.cluster,
        on=flags.on,
        keep=bool(flags.keep),
        detach=bool(flags.detach),
        retries=count_retries(ctx, flags, is_typed=typed.flags.retries is not None),
        wish=lease_limits(machine),
        sending=Sending(bool(flags.overwrite), flags.send_anyway or (), bool(flags.queue)),
    )


def count_retries(ctx: Context, flags: LaunchFlags, *, is_typed: bool) -> int:
    """How many times preempted machines are replaced. Where --retries is impossible, one from `gpuops.toml` (not
    `is_typed`) counts as 0, and one that was typed raises UsageError."""
    count = flags.retries or 0
    if count < 0:
        raise UsageError(f"--retries {count} is less than none", "--retries takes a number from 0")
    rented = bool(flags.on) and is_rented(ctx.provisioner(str(flags.on)))
    if count and is_typed and flags.detach:
        raise UsageError(
            f"--detach and --retries {count} exclude each other: the guard downloads results and ends machines, and "
            "starts no run",
            "leave out one of them",
        )
    if count and is_typed and not rented:
        raise UsageError(
            f"--retries {count} is for machines that are rented for this run"
            + (f", and {flags.on} takes none back" if flags.on else ""),
            "leave it out" if flags.on else "say where to rent them: --on PROVIDER",
        )
    return count if rented and not flags.detach else 0


def complete_request(ctx: Context, request: RunRequest, flags: LaunchFlags) -> RunRequest:
    """The request completed by the launch flags and checked. Raises UsageError."""
    values = parse_environment(flags.env or (), ctx.env)
    for name, why in find_key_like_values(values).items():
        ctx.out.say(f"note: {name} looks like {why}, and --env is recorded with the run: --secret {name} is not")
    changes: dict[str, Any] = {
        "data": check_data(flags.data, ctx.folder, inside=not request.workload),
        "outs": flags.out or (),
        "env": values,
        "secrets": flags.secret or (),
        "prelude": flags.prelude or (),
        "python": flags.python,
        "resume": flags.resume,
        "setup": flags.setup,
        "hold_s": parse_grace(flags.grace),
        "sink": sinks.parse_sink(flags.sink) if flags.sink else None,
    }
    request = dataclasses.replace(request, **changes)
    if request.workload:
        request = dataclasses.replace(request, script=workload_script(request.workload, request.data))
    elif request.script is not None:
        request = dataclasses.replace(request, script=resolve_script(ctx.folder, request.script))
    if flags.detach and flags.queue:
        raise UsageError("--detach and --queue exclude each other", "leave out one of them")
    if request.resume:
        request = _check_resume(ctx, request)
    return request


def workload_script(workload: str, data: str | None) -> str:
    """A workload's script. Raises UsageError for an unknown workload, and for one that reads no data where --data is
    given."""
    from gpuops.sync.inputs import WORKLOADS, workload_script

    path = workload_script(workload)
    if data and not WORKLOADS[workload].reads:
        readers = [name for name, known in WORKLOADS.items() if known.reads]
        raise UsageError(
            f"the workload {workload} reads no --data, since it brings what it needs",
            f"leave out --data; these read some: {', '.join(readers)}",
        )
    return path


def resolve_script(folder: Path, script: str) -> str:
    """The script's path relative to the project. Raises UsageError when it is absent or outside."""
    full = (folder / Path(script).expanduser()).absolute()
    if full.is_dir():
        raise UsageError(f"{script} is a folder", "name the script in it")
    if not full.exists():
        raise UsageError(f"there is no script {script}", "check the path; it is looked for under the current folder")
    if not full.is_file():
        raise UsageError(f"{script} is no file that Python could run", "name your training script")
    resolved = Path(*full.parts)
    try:
        inside = resolved.relative_to(folder)
        if ".." in inside.parts:
            inside = full.resolve().relative_to(folder.resolve())
    except ValueError:
        raise UsageError(
            f"{script} lies outside the project {folder}", f"start gpuops in the folder that holds it: cd {full.parent}"
        ) from None
    return str(PurePosixPath(inside))


def _check_resume(ctx: Context, request: RunRequest) -> RunRequest:
    """The request after `--resume RUN` was checked: that run has outputs and trained the same workload. Raises
    UsageError."""
    from gpuops.runs.finish import finish_before_resume, is_awaited
    from gpuops.runs.prepare import choose_tree, find_run
    from gpuops.sync.restore import check_resumable

    row = find_run(ctx, str(request.resume))
    if is_awaited(row):
        finish_before_resume(ctx, row)
    check_resumable(row, choose_tree(request, ctx.folder)[0])
    theirs = row.request.get("workload")
    if request.workload and theirs and theirs != request.workload:
        raise UsageError(f"{row.name} trained {theirs}, this is {request.workload}", f"name it: --workload {theirs}")
    return request


TRAIN_HELP = example_help(
    "Train through torchrun on one GPU, one node or several.\n\n"
    "SCRIPT is your own file, run as it is; its arguments stand behind `--`. Without SCRIPT: the workload `digits`.\n\n"
    "\b\nWorkloads, each a program to read and to copy:\n"
    + "\n".join(f"  {name:9}  {known.line}" for name, known in inputs.WORKLOADS.items()),
    "gpuops train multinode --nodes 2",
    "gpuops train multigpu train.py -- 50 10 --batch_size 32",
    "gpuops train multinode --workload toy -- 50 10",
    "gpuops train multinode --workload mnist --data ~/mnist -- 1",
    "gpuops train single --workload cifar10 -- --help",
)
RUN_HELP = example_help(
    "Run any command on a node.\n\nWith push, logs, lease, results and teardown around it.",
    "gpuops run -- python3 hello.py",
    "gpuops run --nodes 2 --all-nodes -- nvidia-smi",
)

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
    script: Annotated[str | None, typer.Argument(metavar="SCRIPT", help="Your training script.")] = None,
    module: Annotated[
        str | None, typer.Option("-m", metavar="MODULE", help="Run a module instead of a script.", show_default=False)
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            help="Run one of gpuops' own programs.",
            metavar="NAME",
            show_default=False,
            autocompletion=completion.workloads,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be created, sent and executed.")] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    from gpuops.core.models import RunRequest

    checked = check_mode(mode)
    named = {"SCRIPT": script, "-m": module, "--workload": workload}
    given = [name for name, value in named.items() if value is not None]
    if empty := [name for name in given if not named[name]]:
        raise UsageError(f"{empty[0]} is empty", "name what to train, or leave it out")
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} exclude each other", "name one thing to train")
    if not given:
        workload = inputs.DEFAULT_WORKLOAD

    def request(machine: MachineFlags) -> RunRequest:
        check_size(checked, machine, script)
        return RunRequest(
            kind="torchrun",
            mode=checked,
            nodes=machine.nodes or 0,
            gpus=machine.gpus,
            script=script,
            module=module,
            workload=workload,
            argv=passed_words() or [],
        )

    single = SINGLE_FLAGS.get(checked, ())
    typed = CommandLine("train", flags, machine, context.meta[WORDS], single, dry_run, yes, as_json)
    launch(typed, request)


def check_mode(mode: str) -> Literal["single", "multigpu", "multinode"]:
    """The mode. Raises UsageError for an unknown one, with its own hint where the script stands in its place."""
    for known in MODES:
        if mode == known:
            return known
    raise UsageError(
        f"'{mode}' is neither single, multigpu nor multinode",
        f"say how far to spread first: gpuops train multinode {mode}"
        if mode.endswith(".py")
        else "say how far to spread: gpuops train multinode",
    )


def check_size(mode: str, machine: MachineFlags, script: str | None) -> None:
    """Raises UsageError where --nodes or --gpus contradict the mode."""
    same = f" {script}" if script else ""
    if mode != "multinode" and machine.nodes not in (None, 1):
        raise UsageError(
            f"train {mode} is for one node, {machine.nodes} were asked for",
            f"gpuops train multinode --nodes {machine.nodes}{same}",
        )
    if mode == "single" and machine.gpus not in (None, 1):
        raise UsageError(
            f"train single is one rank on one GPU, {machine.gpus} were asked for",
            f"gpuops train multigpu --gpus {machine.gpus}{same}",
        )


@with_flags(LaunchFlags, MachineFlags)
def run(
    flags: LaunchFlags,
    machine: MachineFlags,
    context: typer.Context,
    all_nodes: Annotated[bool, typer.Option("--all-nodes", help="Run it on every node, not on node0 alone.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be created, sent and executed.")] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    from gpuops.core.models import RunRequest

    words: Any = passed_words()
    if not words or not words[0]:
        raise UsageError("there is no command to run", "write it behind `--`: gpuops run -- python3 hello.py")

    def request(machine: MachineFlags) -> RunRequest:
        nodes = machine.nodes or 0
        return RunRequest(kind="command", mode="run", nodes=nodes, gpus=machine.gpus, argv=words, all_nodes=all_nodes)

    words_of_provider = context.meta[WORDS]
    launch(CommandLine("run", flags, machine, words_of_provider, (), dry_run, yes, as_json), request)
