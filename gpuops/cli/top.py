"""`gpuops top`: show what every node does, twice a second."""

from __future__ import annotations

import os
from contextlib import closing
from typing import Annotated

import typer

from gpuops.cli import completion
from gpuops.cli.context import Needs, make_context, report_news
from gpuops.cli.flags import Json
from gpuops.cli.help import example_help
from gpuops.core.errors import Interrupted

HELP = example_help(
    "Show what every node does now: processors, memory, GPUs, ranks, money.\n\n"
    "Twice a second, until q is pressed; where stdout is no terminal, once.",
    "gpuops top",
    "gpuops top lab --once",
    "gpuops top --json",
)
INTERVAL_S = 0.5


def register(app: typer.Typer) -> None:
    app.command("top", help=HELP)(top)


def top(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Which cluster; without, this folder's.", autocompletion=completion.clusters
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print it once and end.")] = False,
    as_json: Json = False,
) -> None:
    from gpuops.commands import top as top_command
    from gpuops.commands.top_table import draw_to_fit, text_lines
    from gpuops.core.platform import HERE
    from gpuops.core.signals import Signals

    ctx, _ = make_context(as_json=as_json, needs=Needs.LOOK)
    report_news(ctx)
    watch = top_command.open_watch(ctx, name)
    with closing(watch):
        watch.start()
        if once or as_json or not ctx.out.out.isatty() or not HERE.moves_cursor(os.environ):
            report = top_command.look_once(ctx, watch)
            if as_json:
                ctx.out.result("top", report.document(), [])
                return
            for line in text_lines(report, ctx.out.columns(ctx.out.out), colour=ctx.out.colour):
                ctx.out.line(line)
            return
        from gpuops.cli.terminal.screen import show_on_screen

        try:
            with Signals():
                show_on_screen(lambda console: draw_to_fit(top_command.describe(ctx, watch), console), INTERVAL_S)
        except Interrupted:
            return
