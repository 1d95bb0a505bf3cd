"""`gpuops stop`: stop a run; its cluster stays."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuops.cli import completion
from gpuops.cli.context import make_context, report_news
from gpuops.cli.flags import Json
from gpuops.cli.help import example_help

HELP = example_help(
    "Stop a run in good order; the cluster stays.\n\nA snapshot is asked for, and results come home.",
    "gpuops stop",
    "gpuops stop digits-3",
)


def register(app: typer.Typer) -> None:
    app.command("stop", help=HELP)(stop)


def stop(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN", help="Which run; without, the one going on here.", autocompletion=completion.live_runs
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    from gpuops.commands import stop

    ctx, _ = make_context(as_json=as_json)
    report_news(ctx)
    row = stop.pick_run(ctx, run, running=run is None)
    with ctx.signals:
        say = stop.stop(ctx, row, ctx.progress)
    ctx.out.result("stop", {"run": row.name, "say": say}, [say])
