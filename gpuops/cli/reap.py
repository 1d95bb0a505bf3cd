"""`reap`: what providers list with our mark and the ledger does not know is ended, or taken back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from gpuops.cli.context import make_context, report_news
from gpuops.cli.flags import Json, Yes
from gpuops.cli.help import example_help
from gpuops.core.errors import GpuopsError, StillBilling, UsageError
from gpuops.core.format import plural

if TYPE_CHECKING:
    from gpuops.clusters.adoption import LostCluster
    from gpuops.clusters.orphans import UncheckedProvider
    from gpuops.core.context import Context

HELP = example_help(
    "Find resources with our mark that the ledger does not know: end them, or take them back.\n\n"
    "With --adopt, clusters that a lost "
    "ledger knew become clusters of the current folder again, with the runs that go on there.",
    "gpuops reap",
    "gpuops reap --yes",
    "gpuops reap --adopt",
    "gpuops reap --forget root@10.0.0.6",
)
ANSWERS = ("end", "adopt", "leave")


def register(app: typer.Typer) -> None:
    app.command("reap", help=HELP)(reap)


def reap(
    yes: Yes = False,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Take everything back into the ledger; nothing is ended.")
    ] = False,
    forget: Annotated[
        str | None,
        typer.Option(metavar="HOST", help="Ask this host no more: it is gone for good.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    from gpuops.clusters import orphans
    from gpuops.clusters.adoption import adopt_all, adoption_document
    from gpuops.ledger.store import LedgerTooNew

    if yes + adopt + (forget is not None) > 1:
        raise UsageError("--yes, --adopt and --forget exclude each other", "end, take back or forget: say one of them")
    ctx, _ = make_context(as_json=as_json)
    try:
        report_news(ctx, orphans=False)
    except LedgerTooNew as error:
        if adopt or forget:
            raise
        ctx.out.say(f"note: {error.message}: whatever carries our mark counts as left over")
    if forget is not None:
        said = orphans.forget_host(ctx, forget)
        ctx.out.result("reap", {"forgotten": forget, "say": said}, [said])
        return
    found, unasked = orphans.find_orphans(ctx)
    closed, unasked_now = orphans.close_vanished_clusters(ctx)
    known_reasons = {one.say for one in unasked}
    unasked += [one for one in unasked_now if one.say not in known_reasons]
    for name in closed:
        ctx.out.say(f"{name} is gone: its provider lists nothing of it")
    for said in orphans.clear_departing(ctx):
        ctx.out.say(said)
    clusters = orphans.group_orphans(found)
    fates = ["end" if yes else "adopt"] * len(clusters) if yes or adopt else _asked(ctx, clusters, unasked)
    chosen = {fate: [one for one, given in zip(clusters, fates, strict=True) if given == fate] for fate in ANSWERS}
    back, failed = adopt_all(ctx, chosen["adopt"], complete=not unasked)
    ended = [stray for stray in found if any(stray.resource in one.resources for one in chosen["end"])]
    adopted_lines = [line for one in back for line in one.describe(ctx.clock.now())]
    try:
        orphans.end_orphans(ctx, ended, unasked, failed)
    except GpuopsError:
        for line in adopted_lines:
            ctx.out.say(line)
        raise
    names = [stray.resource.name for stray in ended]
    lines = [*adopted_lines, *(f"ended {name}" for name in names)]
    left = len(chosen["leave"])
    ctx.out.result(
        "reap",
        {
            "ended": names,
            "closed": closed,
            "unasked": [one.say for one in unasked],
            "adopted": [adoption_document(one) for one in back],
        },
        lines or [f"{left} left as they are" if left else "nothing left over"],
    )


def _asked(ctx: Context, clusters: Sequence[LostCluster], unasked: Sequence[UncheckedProvider]) -> list[str]:
    """What is to become of each; `leave` is what nothing is typed for. Raises UsageError where nobody can be asked."""
    from gpuops.clusters.adoption import find_live_run

    for one in unasked if clusters else ():
        ctx.out.say(f"note: {one}")
    said = [one.say + (f", {run} is going on there" if (run := find_live_run(ctx, one)) else "") for one in clusters]
    if clusters and not ctx.out.interactive:
        for sentence in said:
            ctx.out.say(f"found {sentence}")
        raise StillBilling(
            f"cannot ask what to do with {plural(len(clusters), 'orphaned cluster')}: no terminal",
            "take back what still lives: gpuops reap --adopt; or end it: gpuops reap --yes",
        )
    return [_choice(ctx, sentence) for sentence in said]


def _choice(ctx: Context, what: str) -> str:
    while True:
        typed = ctx.out.ask(f"{what}: end, adopt or leave? [leave]").lower() or "leave"
        if fate := next((one for one in ANSWERS if one.startswith(typed)), ""):
            return fate
