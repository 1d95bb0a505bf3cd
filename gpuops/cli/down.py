"""`gpuops down`: end clusters, after their results were fetched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpuops.cli import completion
from gpuops.cli.context import Needs, make_context, report_new_home, report_news
from gpuops.cli.flags import Json
from gpuops.cli.help import example_help
from gpuops.core.errors import StillBilling, UsageError

if TYPE_CHECKING:
    from gpuops.core.context import Context

HELP = example_help(
    "End clusters; results come home first.\n\nRuns are stopped in good order, and nothing is left that costs.",
    "gpuops down",
    "gpuops down lab",
    "gpuops down lab --out '!raw.bin'",
    "gpuops down --all",
)


def register(app: typer.Typer) -> None:
    app.command("down", help=HELP)(down)


def down(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME...", help="Which clusters; without, the one there is.", autocompletion=completion.clusters
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every live cluster.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Do not wait for runs, give up results that are not home.")
    ] = False,
    out: Annotated[
        list[str] | None,
        typer.Option(metavar="'!GLOB'", help="Leave these results there: '!big.bin'. Repeatable.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    from gpuops.commands import down as down_command
    from gpuops.ledger.store import LedgerTooNew

    if names and everything:
        raise UsageError("--all and a name exclude each other", f"to end these alone: gpuops down {' '.join(names)}")
    ctx, _ = make_context(as_json=as_json, needs=Needs.LOOK)
    try:
        report_news(ctx, orphans=False)
        if ctx.read_only and ctx.owner:
            if not force:  # nothing could note that results came home
                down_command.refuse_unsaved(ctx, names or [])
            return _print_result(ctx, _end_by_tag(ctx, names or [], everything))
        orphaned = down_command.find_orphans(ctx, names or [])
        with ctx.signals:
            ctx.signals.backward()
            known = [name for name in names or [] if name not in orphaned]
            rows = [] if names and not known else down_command.pick_clusters(ctx, known, everything)
            down_command.leave_there(ctx, rows, out or [])
            said = down_command.down(ctx, rows, ctx.progress, force=force)
        if orphaned:
            raise StillBilling(
                f"{', '.join(orphaned)} may still live, and the ledger does not know of it",
                "take it back: gpuops reap --adopt; or end it: gpuops reap",
            )
    except LedgerTooNew as error:
        ctx.out.say(f"note: {error.message}: working from the marks at the providers")
        said = _end_by_tag(ctx, names or [], everything)
    return _print_result(ctx, said)


def _end_by_tag(ctx: Context, names: list[str], everything: bool) -> list[str]:
    """End clusters without the ledger. Returns a sentence for each, which was printed."""
    from gpuops.clusters.orphans import down_by_tag

    said = down_by_tag(ctx, names, everything)
    for sentence in said:
        ctx.out.say(sentence)
    return said


def _print_result(ctx: Context, said: list[str]) -> None:
    if not said:
        report_new_home(ctx)
    lines = [] if said else ["nothing is up"]
    ctx.out.result("down", {"gone": [sentence.split()[0] for sentence in said]}, lines)
