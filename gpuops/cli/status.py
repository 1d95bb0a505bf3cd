"""`gpuops status`: show what is up, by the ledger or by the providers."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuops.cli.context import make_context, report_news
from gpuops.cli.flags import Json
from gpuops.cli.help import example_help
from gpuops.core.errors import StillBilling

HELP = example_help("Show what is up, and until when.", "gpuops status", "gpuops status --cloud")


def register(app: typer.Typer) -> None:
    app.command("status", help=HELP)(status)


def status(
    cloud: Annotated[bool, typer.Option("--cloud", help="Ask the providers what is really there.")] = False,
    as_json: Json = False,
) -> None:

    ctx, _ = make_context(as_json=as_json)
    width = ctx.out.columns(ctx.out.out)
    if cloud:
        from gpuops.commands.status import cloud_lines
        from gpuops.commands.status import list_cloud as look_outside

        documents, unasked, idle = look_outside(ctx)
        for one in unasked:
            ctx.out.say(f"note: {one}")
        answer = {"resources": documents, "unasked": [one.say for one in unasked], "not_set_up": list(map(str, idle))}
        ctx.out.result("cloud", answer, cloud_lines(documents, width, unasked, idle))
        if unasked:
            raise typer.Exit(StillBilling.exit_code)
        return
    report_news(ctx)
    if not (ctx.home / "ledger.db").exists():  # nothing was ever brought up: no need to open anything
        ctx.out.result("status", {"clusters": [], "guard_refused": {}}, ["nothing is up"])
        return
    from gpuops.commands.status import cluster_lines, describe_clusters
    from gpuops.guard import heartbeat

    found = describe_clusters(ctx)
    refusing = heartbeat.read_refusals(ctx.home, ctx.ledger.guarded())
    for provider, told in refusing.items():
        ctx.out.say(f"note: the guard cannot end what is rented at {provider}: {told['say']}")
        ctx.out.say(f"hint: {told['hint']}; then type `gpuops status` again: the guard takes over new ones")
    ctx.out.result("status", {"clusters": found, "guard_refused": refusing}, cluster_lines(found, width))
