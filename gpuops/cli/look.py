"""`logs`, `status`, `runs`, `stop`: looking at what is and was."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Annotated

import typer

from gpuops.cli import completion
from gpuops.cli.context import greet, make_context
from gpuops.cli.flags import Json
from gpuops.cli.help import example_help
from gpuops.core.errors import StillBilling, UsageError

LOGS_HELP = example_help(
    "Show a run's output, each byte once, whoever fetched it; nodes and ranks merged by time, to the second.\n\n"
    "Following is not running: -f ends with 0 however the run ends, its verdict is the last line.",
    "gpuops logs",
    "gpuops logs -f",
    "gpuops logs digits-3 --rank 2 --tail 50",
    "gpuops logs --since 10m --grep 'loss|Error'",
)
STATUS_HELP = example_help("Show what is up, and until when.", "gpuops status", "gpuops status --cloud")
RUNS_HELP = example_help("List runs, the latest last.", "gpuops runs", "gpuops runs --json")
STOP_HELP = example_help(
    "Stop a run in good order; the cluster stays.\n\nA snapshot is asked for, and results come home.",
    "gpuops stop",
    "gpuops stop digits-3",
)

SPARE = ("STARTED", "RESULTS", "STATE")
"""What a narrow terminal is spared of the runs, in this order."""


def register(app: typer.Typer) -> None:
    app.command("logs", help=LOGS_HELP)(logs)
    app.command("status", help=STATUS_HELP)(status)
    app.command("runs", help=RUNS_HELP)(runs)
    app.command("stop", help=STOP_HELP)(stop)


def logs(
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="Which run; without, this folder's latest.", autocompletion=completion.runs),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run ends. Ctrl-C only detaches.")
    ] = False,
    node: Annotated[int | None, typer.Option(help="Only this node's lines.", show_default=False)] = None,
    rank: Annotated[int | None, typer.Option(help="Only this rank's lines.", show_default=False)] = None,
    tail: Annotated[int | None, typer.Option(metavar="N", help="Only the last N lines.", show_default=False)] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="Only what is younger: 10m, 2h, 2026-11-21T12:00.", show_default=False),
    ] = None,
    grep: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Only lines in which this is found.", show_default=False)
    ] = None,
    launcher: Annotated[bool, typer.Option("--launcher", help="Show torchrun's own lines as well.")] = False,
    as_json: Json = False,
) -> None:
    from gpuops.commands.logs import watch
    from gpuops.runs.log_view import Filter, moment

    if tail is not None and tail < 1:
        raise UsageError(f"--tail is at least 1 line, not {tail}", "gpuops logs --tail 50")
    wanted = Filter(
        node,
        rank,
        tail,
        launcher,
        grep=None if grep is None else _regex(grep),
        since=None if since is None else moment(since, time.time()),
    )
    ctx, _ = make_context(as_json=as_json)
    greet(ctx)
    watch(ctx, run, wanted, follow=follow)


def _regex(text: str) -> re.Pattern[str]:
    """Raises UsageError for what is none."""
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(
            f"'{text}' is no regular expression: {error}", "put a backslash before a character that stands for itself"
        ) from error


def status(
    cloud: Annotated[bool, typer.Option("--cloud", help="Ask the providers what is really there.")] = False,
    as_json: Json = False,
) -> None:

    ctx, _ = make_context(as_json=as_json)
    width = ctx.out.columns(ctx.out.out)
    if cloud:
        from gpuops.commands.status import cloud as look_outside
        from gpuops.commands.status import cloud_lines

        documents, unasked, idle = look_outside(ctx)
        for one in unasked:
            ctx.out.say(f"note: {one}")
        answer = {"resources": documents, "unasked": [one.say for one in unasked], "not_set_up": list(map(str, idle))}
        ctx.out.result("cloud", answer, cloud_lines(documents, width, unasked, idle))
        if unasked:
            raise typer.Exit(StillBilling.exit_code)
        return
    greet(ctx)
    if not (ctx.home / "ledger.db").exists():  # nothing was ever brought up: no need to open anything
        ctx.out.result("status", {"clusters": [], "guard_refused": {}}, ["nothing is up"])
        return
    from gpuops.commands.status import lines, look
    from gpuops.guard import guardkeys

    found = look(ctx)
    refusing = guardkeys.refused(ctx.home)
    for provider, told in refusing.items():
        ctx.out.say(f"note: the guard cannot end what is rented at {provider}: {told['say']}")
        ctx.out.say(f"hint: {told['hint']}; then type `gpuops status` again: the guard takes over new ones")
    ctx.out.result("status", {"clusters": found, "guard_refused": refusing}, lines(found, width))


def runs(as_json: Json = False) -> None:
    from gpuops.core.format import ago, table

    ctx, _ = make_context(as_json=as_json)
    greet(ctx)
    rows = ctx.ledger.runs() if (ctx.home / "ledger.db").exists() else []
    documents = [
        {
            "run": row.name,
            "state": row.state,
            "outcome": (row.verdict or {}).get("outcome"),
            "say": (row.verdict or {}).get("say"),
            "created": row.created,
            "ended": row.ended,
            "folder": str(row.folder),
            "home": str(row.home),
        }
        for row in rows
    ]
    heading = ["RUN", "STATE", "STARTED", "WHAT CAME OF IT", "RESULTS"]
    cells = [
        [
            row.name,
            str((row.verdict or {}).get("outcome") or row.state),
            ago(row.created),
            str((row.verdict or {}).get("say") or "-"),
            _place(row.home, ctx.folder),
        ]
        for row in rows
    ]
    width = ctx.out.columns(ctx.out.out)
    lines = table([heading, *cells], width, gives=3, spare=SPARE) if rows else ["no run yet"]
    ctx.out.result("runs", {"runs": documents}, lines)


def _place(home: Path, folder: Path) -> str:
    """Where results are, as short as it can be typed here; a dash where there are none."""
    if not home.is_dir():
        return "-"
    return str(home.relative_to(folder) if home.is_relative_to(folder) else home)


def stop(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN", help="Which run; without, the one going on here.", autocompletion=completion.live_runs
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    from gpuops.commands import down as story

    ctx, _ = make_context(as_json=as_json)
    greet(ctx)
    row = story.pick_run(ctx, run, running=run is None)
    with ctx.signals:
        say = story.stop(ctx, row, ctx.progress)
    ctx.out.result("stop", {"run": row.name, "say": say}, [say])
