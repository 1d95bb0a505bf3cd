"""`reap`: what providers list with our mark and the ledger does not know is ended, or taken back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from gpuops.cli.context import Needs, make_context, report_new_home, report_news
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
    "ledger knew become clusters of the current folder again, with the runs that go on there.\n\n"
    "What other homes have made in the same account is named, and only --owner ends it.",
    "gpuops reap",
    "gpuops reap --yes",
    "gpuops reap --adopt",
    "gpuops reap --owner 1f0c3a9e",
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
    owner: Annotated[
        str | None,
        typer.Option(
            metavar="8HEX",
            help="End what another home left, by the 8 hex digits of its mark: gpuops-8HEX-….",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    from gpuops.clusters import orphans, other_owners
    from gpuops.clusters.adoption import adopt_all, adoption_document
    from gpuops.ledger.store import LedgerTooNew

    if yes + adopt + (forget is not None) > 1:
        raise UsageError("--yes, --adopt and --forget exclude each other", "end, take back or forget: say one of them")
    if owner is not None and (adopt or forget):
        raise UsageError("--owner only ends", "gpuops reap --owner 8HEX, with --yes where nobody can be asked")
    ctx, _ = make_context(as_json=as_json, needs=Needs.CREATE if adopt or forget else Needs.LOOK)
    if owner is not None:
        _reap_owner(ctx, owner, yes)
        return
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
    closed, unasked_now = ([], []) if ctx.read_only else orphans.close_vanished_clusters(ctx)
    known_reasons = {one.say for one in unasked}
    unasked += [one for one in unasked_now if one.say not in known_reasons]
    for name in closed:
        ctx.out.say(f"{name} is gone: its provider lists nothing of it")
    for said in [] if ctx.read_only else orphans.clear_departing(ctx):
        ctx.out.say(said)
    others = other_owners.find_other_owners(ctx)
    for said in other_owners.describe_other_owners(others):
        ctx.out.say(f"note: {said}")
    if not others:
        report_new_home(ctx)
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
            "other_owners": sorted({one.owner for one in others}),
        },
        lines or [f"{left} left as they are" if left else "nothing left over"],
    )


def _reap_owner(ctx: Context, owner: str, yes: bool) -> None:
    """End what another home's owner has at the providers. Raises UsageError, StillBilling."""
    from gpuops.clusters import orphans

    if not re.fullmatch("[0-9a-f]{8}", owner):
        raise UsageError(
            f"'{owner}' is no owner: it is 8 hex digits", "gpuops status --cloud names them: gpuops-8HEX-…"
        )
    if owner == ctx.owner:
        raise UsageError(f"{owner} is this home's own owner", "gpuops reap; or, where it is in the ledger: gpuops down")
    found, unasked = orphans.find_resources(ctx, owner=owner)
    clusters = orphans.group_orphans(found)
    fates = ["end"] * len(clusters) if yes else _asked(ctx, clusters, unasked, ("end", "leave"), f" --owner {owner}")
    doomed = [
        resource for one, fate in zip(clusters, fates, strict=True) if fate == "end" for resource in one.resources
    ]
    ended = [stray for stray in found if stray.resource in doomed]
    orphans.end_orphans(ctx, ended, unasked, again=f"{orphans.REAP} --owner {owner}")
    names = [stray.resource.name for stray in ended]
    left = len(clusters) - fates.count("end")
    document = {"ended": names, "closed": [], "unasked": [], "adopted": [], "other_owners": [owner]}
    lines = [f"ended {name}" for name in names] or [f"{left} left as they are" if left else f"nothing of {owner}'s"]
    ctx.out.result("reap", document, lines)


def _asked(
    ctx: Context,
    clusters: Sequence[LostCluster],
    unasked: Sequence[UncheckedProvider],
    answers: Sequence[str] = ANSWERS,
    flags: str = "",
) -> list[str]:
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
            "take back what still lives: gpuops reap --adopt; or end it: gpuops reap --yes"
            if "adopt" in answers
            else f"if it is yours, end it: gpuops reap{flags} --yes",
        )
    return [_choice(ctx, sentence, answers) for sentence in said]


def _choice(ctx: Context, what: str, answers: Sequence[str]) -> str:
    question = f"{what}: {', '.join(answers[:-1])} or {answers[-1]}? [leave]"
    while True:
        typed = ctx.out.ask(question).lower() or "leave"
        if fate := next((one for one in answers if one.startswith(typed)), ""):
            return fate
