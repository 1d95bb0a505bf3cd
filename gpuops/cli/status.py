"""`gpuops status`: show what is up, by the ledger or by the providers."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from gpuops import ledger
from gpuops.cli.context import Needs, make_context, report_new_home, report_news
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
    ctx, _ = make_context(as_json=as_json, needs=Needs.LOOK)
    width = ctx.out.columns(ctx.out.out)
    if cloud:
        from gpuops.commands.status import cloud_lines, list_cloud

        report = list_cloud(ctx)
        for unchecked in report.unchecked:
            ctx.out.say(f"note: {unchecked}")
        ctx.out.result("cloud", report.document(), cloud_lines(report, width))
        if report.unchecked:
            raise typer.Exit(StillBilling.exit_code)
        return
    report_news(ctx)
    if not (ctx.home / ledger.FILE).exists():  # nothing was ever brought up: no need to open anything
        report_new_home(ctx)
        ctx.out.result("status", {"clusters": [], "guard_refused": {}}, ["nothing is up"])
        return
    from gpuops.commands.status import cluster_lines, describe_clusters, describe_missing_guards
    from gpuops.guard import guard_heartbeat

    clusters = describe_clusters(ctx)
    refusals = guard_heartbeat.read_refusals(ctx.home, ctx.ledger.list_guarded())
    for provider, refusal in refusals.items():
        ctx.out.say(f"note: the guard cannot end what is rented at {provider}: {refusal['say']}")
        ctx.out.say(f"hint: {refusal['hint']}; {guard_heartbeat.describe_renewal(provider)}")
    for say, hint in describe_missing_guards(ctx):
        ctx.out.say(f"note: {say}")
        ctx.out.say(f"hint: {hint}")
    document = {"clusters": [dataclasses.asdict(cluster) for cluster in clusters], "guard_refused": refusals}
    ctx.out.result("status", document, cluster_lines(clusters, width))
