"""From the typed flags of `train` or `run` and `gpuops.toml` to a job, its plan and the exit code.

`launch` checks everything that can be wrong before anything exists, then prints the plan or carries it out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from gpuops.cli import trust
from gpuops.cli.context import make_context, report_news, timings_result
from gpuops.cli.flags import LaunchFlags, MachineFlags
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
    parse_join_timeout,
    parse_provider_options,
    refuse_provider_options,
)
from gpuops.core.context import Context
from gpuops.core.data_address import WebData, parse_address, without_query
from gpuops.core.errors import UsageError
from gpuops.core.format import listed
from gpuops.core.provider import is_rented
from gpuops.core.run_models import RunRequest
from gpuops.core.settings import Settings
from gpuops.core.sink import BucketSink
from gpuops.core.typed_paths import path_inside, typed_path
from gpuops.sync import sinks, workloads_and_data

if TYPE_CHECKING:
    from gpuops.commands.plan import Job
    from gpuops.offers.market import Market


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
    run_flags: Sequence[str] = ()
    """Those flags of `train` that `run` takes as well, as they were typed."""
    array: str | None = None


def launch(typed: CommandLine, make_request: Callable[[MachineFlags], RunRequest]) -> None:
    """Plan the run, then print the plan (`--dry-run`) or carry it out. Raises typer.Exit with the run's exit code.

    `make_request` gets the machine flags completed from `gpuops.toml`.
    """
    from gpuops.commands.plan import make_plan

    ctx, settings = make_context(as_json=typed.as_json, yes=typed.yes, strict=True)
    job = _make_job(ctx, settings, typed, make_request)
    report_news(ctx)
    plan = make_plan(ctx, job)
    if typed.dry_run:
        from gpuops.commands.dry_run import preview_plan

        preview = preview_plan(ctx, plan)
        ctx.out.result("plan", preview.document(), preview.lines(ctx.out.columns(ctx.out.out)))
        return
    from gpuops.commands.train import execute

    try:
        outcome = execute(ctx, settings, plan, ctx.progress)
    finally:
        ctx.progress.close()
    timed, lines = timings_result(ctx, wanted=job.timings)
    ctx.out.result("array" if job.array else "run", {**outcome.document, **timed}, [])
    for line in (*lines, *outcome.last):
        ctx.out.say(line)
    if outcome.exit_code:
        raise typer.Exit(outcome.exit_code)


def _make_job(
    ctx: Context, settings: Settings, typed: CommandLine, make_request: Callable[[MachineFlags], RunRequest]
) -> Job:
    """The job, completed from `gpuops.toml` and checked. Raises UsageError."""
    from gpuops.commands.array_plan import parse_array
    from gpuops.commands.plan import Job
    from gpuops.offers.market import parse_market
    from gpuops.runs.ready_nodes import Sending

    flags = launch_flags(settings, typed.table, typed.flags)
    array = None if typed.array is None else parse_array(typed.array)
    if array and flags.detach:
        raise UsageError(
            "--array and --detach exclude each other: this command starts each next run, and the guard starts none",
            "leave out --detach, and keep this computer on",
        )
    market = parse_market(ctx, flags.on) if flags.on else None
    if market is not None:
        _check_market_flags(market, flags, typed.provider_words)
        flags = dataclasses.replace(flags, on=market.providers[0])
    rents = bool(flags.on) and is_rented(ctx.provisioner(str(flags.on)))
    trust.require_trust(ctx, settings.toml, typed.table, typed.flags, typed.machine, rents=rents)
    machine = filled_from_table(settings, typed.table, typed.machine)
    of_other_modes = {name: getattr(typed.machine, name) for name in typed.single if getattr(machine, name) != 1}
    machine = dataclasses.replace(machine, **of_other_modes)
    options = parse_provider_options(ctx, flags.on, typed.provider_words) if flags.on and not market else {}
    if flags.on and flags.sink and not market:
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
        market=market,
        keep=bool(flags.keep),
        detach=bool(flags.detach),
        retries=count_retries(flags, is_typed=typed.flags.retries is not None),
        wish=lease_limits(machine),
        sending=Sending(
            overwrite=bool(flags.overwrite),
            send_anyway=flags.send_anyway or (),
            queue=bool(flags.queue),
            fresh=bool(flags.fresh),
            bwlimit=flags.bwlimit,
            run_flags=typed.run_flags,
        ),
        timings=bool(flags.timings),
        array=array,
    )


def _check_market_flags(market: Market, flags: LaunchFlags, words: Sequence[str]) -> None:
    """Raises UsageError for what is one provider's own, where several may rent."""
    refuse_provider_options(words)
    if flags.sink and not isinstance(sinks.parse_sink(flags.sink), BucketSink):
        raise UsageError(
            f"--sink {flags.sink} is a volume of one provider, and {listed(market.providers)} may rent",
            "write --sink s3://BUCKET/PREFIX, or name one provider",
        )


def count_retries(flags: LaunchFlags, *, is_typed: bool) -> int:
    """How many times machines that were rented for the run are replaced, or a run on others is started again. Where
    --retries is impossible, one from `gpuops.toml` (not `is_typed`) counts as 0, and a typed one raises UsageError."""
    count = flags.retries or 0
    if count < 0:
        raise UsageError(f"--retries {count} is less than none", "--retries takes a number from 0")
    if count and is_typed and flags.detach:
        raise UsageError(
            f"--detach and --retries {count} exclude each other: the guard downloads results and ends machines, and "
            "starts no run",
            "leave out one of them",
        )
    return 0 if flags.detach else count


def complete_request(ctx: Context, request: RunRequest, flags: LaunchFlags) -> RunRequest:
    """The request completed by the launch flags and checked. Raises UsageError."""
    values = parse_environment(flags.env or (), ctx.env)
    for name, why in find_key_like_values(values).items():
        ctx.out.say(f"note: {name} looks like {why}, and --env is recorded with the run: --secret {name} is not")
    request = dataclasses.replace(
        request,
        data=check_data(flags.data, ctx.folder, inside=not request.workload),
        outs=flags.out or (),
        env=values,
        secrets=flags.secret or (),
        prelude=flags.prelude or (),
        python=flags.python,
        resume=flags.resume,
        setup=flags.setup,
        hold_s=parse_grace(flags.grace),
        join_timeout_s=parse_join_timeout(flags.join_timeout),
        sink=sinks.parse_sink(flags.sink) if flags.sink else None,
    )
    if request.workload:
        request = dataclasses.replace(request, script=find_workload_script(request.workload, request.data))
    elif request.script is not None:
        request = dataclasses.replace(request, script=convert_notebook(ctx, resolve_script(ctx.folder, request.script)))
    if flags.detach and flags.queue:
        raise UsageError("--detach and --queue exclude each other", "leave out one of them")
    if request.resume and flags.fresh:
        raise UsageError("--resume and --fresh exclude each other", "leave out one of them")
    if request.resume:
        request = _check_resume(ctx, request)
    return request


def find_workload_script(workload: str, data: str | None) -> str:
    """A workload's script. Raises UsageError for an unknown workload, and for one that reads no data where --data is
    given."""
    path = workloads_and_data.workload_script(workload)
    if data and not workloads_and_data.WORKLOADS[workload].reads:
        readers = [name for name, known in workloads_and_data.WORKLOADS.items() if known.reads]
        raise UsageError(
            f"the workload {workload} reads no --data, since it brings what it needs",
            f"leave out --data; these read some: {', '.join(readers)}",
        )
    if data and isinstance(parse_address(data), WebData):
        raise UsageError(
            f"--data {without_query(data)} is one file, and the workload {workload} reads a folder",
            f"from a mirror it downloads by itself: -- --data {without_query(data)}",
        )
    return path


def resolve_script(folder: Path, script: str) -> str:
    """The script's path relative to the project. Raises UsageError when it is absent or outside."""
    full = typed_path("the script", script, folder)
    if full.is_dir():
        raise UsageError(f"{script} is a folder", "name the script in it")
    if not full.exists():
        raise UsageError(f"there is no script {script}", "check the path; it is looked for under the current folder")
    if not full.is_file():
        raise UsageError(f"{script} is no file that Python could run", "name your training script")
    inside = path_inside(full, folder)
    if inside is None:
        raise UsageError(
            f"{script} lies outside the project {folder}", f"start gpuops in the folder that holds it: cd {full.parent}"
        )
    return inside


def convert_notebook(ctx: Context, script: str) -> str:
    """The script to run: a notebook's code cells as one, written beside it. Raises UsageError."""
    from gpuops.sync import notebook

    if not script.endswith(notebook.SUFFIX):
        return script
    left_out = notebook.write_script(ctx.folder, script).left_out
    path = notebook.script_name(script)
    ctx.out.say(f"{script}: its code cells are {path}" + f"; left out: {'; '.join(left_out)}" * bool(left_out))
    return path


def _check_resume(ctx: Context, request: RunRequest) -> RunRequest:
    """The request after `--resume RUN` was checked: that run has outputs and trained the same workload. Raises
    UsageError."""
    from gpuops.runs.finish import finish_before_resume, is_awaited
    from gpuops.runs.launch_spec import request_of
    from gpuops.runs.ready_nodes import choose_tree, find_run
    from gpuops.sync.restore_snapshots import check_resumable

    row = find_run(ctx, str(request.resume))
    if is_awaited(row):
        finish_before_resume(ctx, row)
    check_resumable(row, choose_tree(request, ctx.folder)[0])
    trained = request_of(row).workload
    if request.workload and trained and trained != request.workload:
        raise UsageError(f"{row.name} trained {trained}, this is {request.workload}", f"name it: --workload {trained}")
    return request
