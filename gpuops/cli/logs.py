"""`gpuops logs`: show a run's output."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from gpuops.cli import completion
from gpuops.cli.context import Needs, make_context, report_news
from gpuops.cli.help import example_help
from gpuops.core.errors import UsageError

HELP = example_help(
    "Show a run's output, running or past; nodes and ranks merged by time, to the second.\n\n"
    "Following is not running: -f ends with 0 however the run ends, its verdict is the last line.",
    "gpuops logs",
    "gpuops logs -f",
    "gpuops logs digits-3 --rank 2 --tail 50",
    "gpuops logs --since 10m --grep 'loss|Error'",
)


def register(app: typer.Typer) -> None:
    app.command("logs", help=HELP)(logs)


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
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document a line, on stdout.")] = False,
) -> None:
    from gpuops.commands.logs import show_logs
    from gpuops.runs.logs.home_tail import Filter, parse_moment

    if tail is not None and tail < 1:
        raise UsageError(f"--tail is at least 1 line, not {tail}", "gpuops logs --tail 50")
    pattern = None if grep is None else _regex(grep)
    ctx, _ = make_context(as_json=as_json, needs=Needs.LOOK)
    log_filter = Filter(
        node,
        rank,
        tail,
        launcher,
        grep=pattern,
        since=None if since is None else parse_moment(since, ctx.clock.now()),
    )
    report_news(ctx)
    show_logs(ctx, run, log_filter, follow=follow)


def _regex(text: str) -> re.Pattern[str]:
    """Raises UsageError for what is none."""
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(
            f"'{text}' is no regular expression: {error}", "put a backslash before a character that stands for itself"
        ) from error
