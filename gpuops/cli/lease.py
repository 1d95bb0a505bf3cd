"""`gpuops lease`: show or extend the time that a cluster may live."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from gpuops.cli import completion
from gpuops.cli.context import Needs, make_context, report_news
from gpuops.cli.flags import Json
from gpuops.cli.help import example_help

HELP = example_help(
    "Show until when a cluster may live, or extend it.", "gpuops lease lab", "gpuops lease lab --extend 2h"
)


def register(app: typer.Typer) -> None:
    app.command("lease", help=HELP)(lease)


def lease(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which cluster.", autocompletion=completion.clusters)],
    extend: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Move its hard end by this much: 30min, 2h.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    from gpuops.clusters import selection
    from gpuops.core.errors import NodeError, UsageError
    from gpuops.core.format import clock_time
    from gpuops.core.models import Lease
    from gpuops.nodes.session import machines_of, open_session, send_lease
    from gpuops.offers import lease_limits
    from gpuops.offers.search import balance_shortfall

    by_s = lease_limits.parse_span(extend) if extend is not None else None
    ctx, _ = make_context(as_json=as_json, needs=Needs.LOOK if by_s is None else Needs.CREATE)
    report_news(ctx)
    row = selection.find_by_name(ctx.ledger.clusters(), name)
    now = ctx.clock.now()
    ours = row.lease
    if by_s is not None:
        selection.refuse_unfinished(row)
        if ours == Lease():
            ctx.out.say(f"note: {row.name} had no end until now")
        ours = lease_limits.extend_lease(ours, by_s, now)
        ends = lease_limits.machines_end(machines_of(ctx, row))
        if ends is not None and (ours.hard_end or 0.0) > ends:
            raise UsageError(
                f"{row.name} was given its machines until {clock_time(ends, now)}, and no lease is longer than that",
                "bring up another with a longer --max-hours",
            )
        with closing(open_session(ctx, row, any_version=True)) as session:
            send_lease(session, ours, now)
        if not ctx.ledger.set_lease(row.id, ours):
            raise NodeError(
                f"{row.name} is being ended: its lease cannot be extended any more", "gpuops status shows what is left"
            )
        ctx.try_ensure_guard(row)
        if ours.end != ours.hard_end:
            ctx.out.say("note: the spending limit (--max-cost) comes first; extending time does not move it")
        if said := balance_shortfall(ctx, row, ours, now):
            ctx.out.say(f"note: {said}")
    ctx.out.result(
        "lease",
        {"name": row.name, "hard_end": ours.end, "idle_s": ours.idle_s},
        [f"{row.name}: {lease_limits.describe_lease(ours, now, ephemeral=row.ephemeral)}"],
    )
