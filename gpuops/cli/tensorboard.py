"""`gpuops tensorboard`: show runs in TensorBoard."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuops.cli import completion
from gpuops.cli.context import Needs, make_context, report_news
from gpuops.cli.help import example_help

HELP = example_help(
    "Show runs in TensorBoard, on this computer; Ctrl-C ends it.\n\n"
    "What a run that goes on writes keeps coming home meanwhile.",
    "gpuops tensorboard",
    "gpuops tensorboard digits-2 digits-3",
    "gpuops tensorboard --port 6007",
)


def register(app: typer.Typer) -> None:
    app.command("tensorboard", help=HELP)(tensorboard)


def tensorboard(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN...", help="Which runs; without, this folder's latest.", autocompletion=completion.runs
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Where; without, 6006 or the next free one.", show_default=False),
    ] = None,
) -> None:
    from gpuops.commands.tensorboard import open_board

    ctx, _ = make_context(needs=Needs.LOOK)
    report_news(ctx)
    if code := open_board(ctx, runs or [], port):
        raise typer.Exit(code)
