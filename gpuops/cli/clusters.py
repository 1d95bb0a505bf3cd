"""`up`, `down`, `lease`: bringing up and ending."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from gpuops.cli import completion
from gpuops.cli.context import greet, make_context
from gpuops.cli.flags import Json, MachineFlags, Yes, with_flags
from gpuops.cli.help import NamesProvider, example_help
from gpuops.core.errors import StillBilling, UsageError

if TYPE_CHECKING:
    from gpuops.core.context import Context
    from gpuops.core.models import Resource
    from gpuops.ledger.store import ClusterRow

UP_HELP = example_help(
    "Bring up a cluster and leave it up.",
    "gpuops up local --nodes 2",
    "gpuops up local --name lab --max-hours 3",
    "gpuops up ssh --name lab --host alice@10.0.0.5 --host alice@10.0.0.6",
    "gpuops up runpod --gpus 4 --gpu-type 'rtx 4090' --max-hours 3",
    "gpuops up aws --gpus 4 --nodes 2 --spot --max-hours 3",
    "gpuops up aws --gpus 4 --nodes 2 --spot",
)
DOWN_HELP = example_help(
    "End clusters; results come home first.\n\nRuns are stopped in good order, and nothing is left that costs.",
    "gpuops down",
    "gpuops down lab",
    "gpuops down --all",
)
LEASE_HELP = example_help(
    "Show until when a cluster may live, or extend it.", "gpuops lease lab", "gpuops lease lab --extend 2h"
)


def register(app: typer.Typer) -> None:
    their_own = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command("up", cls=NamesProvider, help=UP_HELP, context_settings=their_own)(up)
    app.command("down", help=DOWN_HELP)(down)
    app.command("lease", help=LEASE_HELP)(lease)


@with_flags(MachineFlags)
def up(
    machine: MachineFlags,
    context: typer.Context,
    provider: Annotated[
        str,
        typer.Argument(metavar="PROVIDER", help="Who rents or owns the machines.", autocompletion=completion.providers),
    ],
    name: Annotated[str | None, typer.Option(help="What to call it.", show_default=False)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be created, and its price.")] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    from gpuops.cli import trust
    from gpuops.cli.request import counted, lease_wish, machine_request, own_options, with_table
    from gpuops.clusters import up as cluster
    from gpuops.offers import table

    if provider.startswith("-"):
        raise UsageError(f"there is no option {provider}", "the provider comes first: gpuops up local")
    ctx, settings = make_context(as_json=as_json, yes=yes, strict=True)
    rents = ctx.provisioner(provider).capabilities.get("rented") is True
    trust.check(ctx, settings.toml, "up", machine, rents=rents)
    machine = with_table(settings, "up", machine)
    options = own_options(ctx, provider, context.args)
    request = machine_request(provider, machine, options, counted(ctx, provider, options))
    if name is not None:
        check_name(name)
    greet(ctx)
    if dry_run:
        offers, payer = cluster.rehearse(ctx, request, lease_wish(machine))
        documents = [dataclasses.asdict(offer) | {"per_hour": offer.per_hour} for offer in offers]
        width = ctx.out.columns(ctx.out.out)
        paid = dataclasses.asdict(payer) if payer else None
        lines = table.would_create(offers, payer, width)
        ctx.out.result("offers", {"offers": documents, "payer": paid}, lines)
        return
    with ctx.signals:
        live = cluster.bring_up(ctx, request, name=name, ephemeral=False, wish=lease_wish(machine))
    live.close()
    ctx.ledger.set_cluster(live.row.id, keeper=None)
    _announce(ctx, live.row, live.machines)


def _announce(ctx: Context, row: ClusterRow, machines: Sequence[Resource]) -> None:
    """What is up, until when, and the document for programs."""
    import time

    from gpuops.commands import ssh
    from gpuops.core.format import money
    from gpuops.offers import lease as leases

    if ctx.ledger.wants_guard(row):
        ctx.ensure_guard()
    nodes = [{"name": one.name, "address": one.address, "per_hour": one.per_hour} for one in machines]
    now = time.time()
    count = f"{len(nodes)} node{'s' * (len(nodes) != 1)}"
    per_hour = sum(one.per_hour for one in machines if one.bills)
    price = f" at {money(per_hour)}/h" if per_hour else ""
    ctx.out.result(
        "cluster",
        {
            "name": row.name,
            "provider": row.provider,
            "nodes": nodes,
            "payer": dict(row.payer) or None,
            "hard_end": row.lease.end,
            "idle_s": row.lease.idle_s,
        },
        [
            f"{row.name} is up: {count}{price}; {leases.describe(row.lease, now)}",
            *ssh.names(ctx, row, machines),
            *([leases.ending(row.name, row.lease, now)] if per_hour else []),
        ],
    )


def check_name(name: str) -> None:
    """Raises UsageError for a name that providers could not take as a mark."""
    from gpuops.core.models import NAME

    if not NAME.fullmatch(name):
        raise UsageError(
            f"'{name}' cannot be a cluster's name",
            "use a small letter, then at most 23 small letters, digits and dashes",
        )


def down(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME", help="Which clusters; without, the one there is.", autocompletion=completion.clusters
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every live cluster.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Do not wait for runs, give up results that are not home.")
    ] = False,
    as_json: Json = False,
) -> None:
    from gpuops.clusters.orphans import down_by_mark
    from gpuops.commands import down as story
    from gpuops.ledger.store import LedgerTooNew

    ctx, _ = make_context(as_json=as_json)
    try:
        greet(ctx, lost=False)
        lost = story.lost(ctx, names or [])
        with ctx.signals:
            ctx.signals.backward()
            known = [name for name in names or [] if name not in lost]
            rows = [] if names and not known else story.pick(ctx, known, everything)
            said = story.down(ctx, rows, ctx.progress, force=force)
        if lost:
            raise StillBilling(
                f"{', '.join(lost)} may still live, and the ledger does not know of it",
                "take it back: gpuops reap --adopt; or end it: gpuops reap",
            )
    except LedgerTooNew as error:
        ctx.out.say(f"note: {error.say}: working from the marks at the providers")
        said = down_by_mark(ctx, names or [], everything)
        for sentence in said:
            ctx.out.say(sentence)
    lines = [] if said else ["nothing is up"]
    ctx.out.result("down", {"gone": [sentence.split()[0] for sentence in said]}, lines)


def lease(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which cluster.", autocompletion=completion.clusters)],
    extend: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Move its hard end by this much: 30min, 2h.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    import time

    from gpuops.clusters import select
    from gpuops.core.errors import NodeError
    from gpuops.core.models import Lease
    from gpuops.nodes.session import open_live, send_lease
    from gpuops.offers import lease as leases
    from gpuops.offers.search import beyond

    by_s = leases.parse_span(extend) if extend is not None else None
    ctx, _ = make_context(as_json=as_json)
    greet(ctx)
    row = select.by_name(ctx.ledger.clusters(), name)
    now = time.time()
    ours = row.lease
    if by_s is not None:
        if ours == Lease():
            ctx.out.say(f"note: {row.name} had no end until now")
        ours = leases.extended(ours, by_s, now)
        live = open_live(ctx, row)
        try:
            send_lease(live, ours, now)
        finally:
            live.close()
        if not ctx.ledger.extend(row.id, ours):
            raise NodeError(
                f"{row.name} is being ended: its lease cannot be extended any more", "gpuops status shows what is left"
            )
        ctx.ensure_guard()
        if ours.end != ours.hard_end:
            ctx.out.say("note: the spending limit (--max-cost) comes first; extending time does not move it")
        if said := beyond(ctx, row, ours, now):
            ctx.out.say(f"note: {said}")
    ctx.out.result(
        "lease",
        {"name": row.name, "hard_end": ours.end, "idle_s": ours.idle_s},
        [f"{row.name}: {leases.describe(ours, now, ephemeral=row.ephemeral)}"],
    )
