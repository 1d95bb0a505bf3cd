"""`gpuops report`: write a run as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuops.cli import completion
from gpuops.cli.context import Needs, make_context, report_news
from gpuops.cli.flags import Json
from gpuops.cli.help import example_help

HELP = example_help(
    "Write a run as one HTML file: curves, use, time and money.\n\n"
    "Each run has one when it ends: runs/RUN/report.html. This makes it anew, also of a run that goes on.",
    "gpuops report",
    "gpuops report digits-3 --open",
    "gpuops report --html ~/digits.html",
)


def register(app: typer.Typer) -> None:
    app.command("report", help=HELP)(report)


def report(
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="Which run; without, this folder's latest.", autocompletion=completion.runs),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write it there.", show_default=False)
    ] = None,
    opens: Annotated[bool, typer.Option("--open", "-o", help="Show it in the browser.")] = False,
    as_json: Json = False,
) -> None:
    from gpuops.commands.report import make_report

    ctx, _ = make_context(as_json=as_json, needs=Needs.LOOK)
    report_news(ctx)
    path = make_report(ctx, run, html and ctx.folder / html.expanduser())
    ctx.out.result("report", {"report": str(path)}, [str(path)])
    if opens:
        import webbrowser

        if not webbrowser.open(path.as_uri()):
            ctx.out.say("note: no browser could be started here")
