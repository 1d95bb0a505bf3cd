"""`gpuops up`: bring up a cluster and leave it up."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from gpuops.cli import completion
from gpuops.cli.context import make_context, report_news, timings_result
from gpuops.cli.flags import Json, MachineFlags, Timings, YesButTrust, with_flags
from gpuops.cli.help import NamesProvider, example_help, providers_with_option
from gpuops.core.errors import UsageError
from gpuops.core.format import plural
from gpuops.core.provider import is_rented

if TYPE_CHECKING:
    from gpuops.core.context import Context
    from gpuops.core.models import Resource
    from gpuops.ledger.store import ClusterRow

HELP = example_help(
    "Bring up a cluster and leave it up.",
    "gpuops up local --nodes 2",
    "gpuops up local --name lab --max-hours 3",
    "gpuops up ssh --name lab --host alice@10.0.0.5 --host alice@10.0.0.6",
    "gpuops up slurm --host login.hpc.example --nodes 2 --gpus 4 --max-hours 4",
    "gpuops up runpod --gpus 4 --gpu-type 'rtx 4090' --max-hours 3",
    "gpuops up aws --gpus 4 --nodes 2 --spot --max-hours 3",
    "gpuops up cheapest --gpus 4 --gpu-mem 24 --max-price 4",
)


def register(app: typer.Typer) -> None:
    with_provider_options = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command("up", cls=NamesProvider, help=HELP, context_settings=with_provider_options)(up)


@with_flags(MachineFlags)
def up(
    machine: MachineFlags,
    context: typer.Context,
    provider: Annotated[
        str,
        typer.Argument(
            metavar="PROVIDER",
            help="Who rents or owns the machines; cheapest: whoever rents them for the least; a,b: the first that has "
            "them.",
            autocompletion=completion.providers_to_rent_from,
        ),
    ],
    name: Annotated[str | None, typer.Option(help="What to call it.", show_default=False)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be created, and its price.")] = False,
    yes: YesButTrust = False,
    timings: Timings = False,
    as_json: Json = False,
) -> None:
    from gpuops.cli import trust
    from gpuops.cli.request import (
        count_named_machines,
        filled_from_table,
        lease_limits,
        machine_request,
        parse_provider_options,
        refuse_provider_options,
    )
    from gpuops.clusters import market_creation
    from gpuops.offers import offer_table
    from gpuops.offers.market import parse_market

    if provider.startswith("-"):
        owners = providers_with_option(provider.partition("=")[0]) or ["local"]
        raise UsageError(f"there is no option {provider}", f"the provider comes first, such as: gpuops up {owners[-1]}")
    ctx, settings = make_context(as_json=as_json, yes=yes, strict=True)
    market = parse_market(ctx, provider)
    rents = market is not None or is_rented(ctx.provisioner(provider))
    trust.require_trust(ctx, settings.toml, "up", machine, rents=rents)
    machine = filled_from_table(settings, "up", machine)
    if market is not None:
        refuse_provider_options(context.args)
    options = {} if market else parse_provider_options(ctx, provider, context.args)
    count = 1 if market else count_named_machines(ctx, provider, options)
    request = machine_request(provider, machine, options, count)
    if name is not None:
        check_name(name)
    report_news(ctx)
    if dry_run:
        offers, payer = market_creation.preview(ctx, market, request, lease_limits(machine))
        documents = [dataclasses.asdict(offer) | {"per_hour": offer.per_hour} for offer in offers]
        width = ctx.out.columns(ctx.out.out)
        paid = dataclasses.asdict(payer) if payer else None
        lines = offer_table.format_dry_run(offers, payer, width)
        ctx.out.result("offers", {"offers": documents, "payer": paid}, lines)
        return
    with ctx.signals:
        wanted = market_creation.Wanted(request, name, ephemeral=False, wish=lease_limits(machine))
        session = market_creation.bring_up_wanted(ctx, market, wanted)
    session.close()
    ctx.ledger.set_cluster(session.row.id, owner_process=None)
    _announce(ctx, session.row, session.machines, *timings_result(ctx, wanted=timings))


def _announce(
    ctx: Context, row: ClusterRow, machines: Sequence[Resource], timed: Mapping[str, object], lines: Sequence[str]
) -> None:
    """What is up, until when, and the document for programs. `timed`, `lines`: where the time went, if asked for."""
    from gpuops.commands import ssh
    from gpuops.commands.cluster_bill import find_ended_by
    from gpuops.core.format import money
    from gpuops.offers import lease_limits as leases

    nodes = [{"name": one.name, "address": one.address, "per_hour": one.per_hour} for one in machines]
    now, lease = ctx.clock.now(), row.lease
    per_hour = sum(one.per_hour for one in machines if one.bills)
    ended_by = find_ended_by(ctx, row, machines)
    terms = f" at {money(per_hour)}/h" if per_hour else f"; {leases.describe_lease(lease, now)}"
    ctx.out.result(
        "cluster",
        {
            "name": row.name,
            "provider": row.provider,
            "nodes": nodes,
            "payer": row.payer and dataclasses.asdict(row.payer),
            "hard_end": lease.end,
            "idle_s": lease.idle_s,
            **timed,
        },
        [
            f"{row.name} is up: {plural(len(nodes), 'node')}{terms}",
            *ssh.host_name_lines(ctx, row, machines),
            *([leases.describe_how_to_end(row.name, lease, now, ended_by)] if per_hour else []),
            *lines,
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
