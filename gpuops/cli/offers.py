"""`offers`: what every provider would rent now, in one table with the whole cost."""

from __future__ import annotations

from dataclasses import make_dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from gpuops.cli import completion
from gpuops.cli.context import Needs, make_context
from gpuops.cli.flags import Json, MachineFlags, with_flags
from gpuops.cli.help import example_help
from gpuops.core.errors import UsageError

if TYPE_CHECKING:
    from gpuops.core.context import Context
    from gpuops.offers.market import Answer
    from gpuops.offers.market_table import ReadyTimes, Row

HELP = example_help(
    "Show what every provider would rent now, and what it costs in all.\n\n"
    "All providers that rent are asked at once; one that has not answered after 5 s is named and left out. Nothing is "
    "rented: `gpuops up cheapest` with the same flags takes the first that can be had.",
    "gpuops offers --gpus 4 --gpu-mem 24",
    "gpuops offers --gpus 8 --gpu-type h100 --nodes 2 --hours 3",
    "gpuops offers --gpus 1 --spot --on runpod,aws --max-price 2 --sort ready",
)
SIZE_FLAGS = ("nodes", "gpus", "gpu_type", "gpu_mem", "spot", "region", "max_price")
HINTS = get_type_hints(MachineFlags, include_extras=True)
OfferFlags = make_dataclass("Sought", [(name, HINTS[name], None) for name in SIZE_FLAGS])
HOURS_MAX = 1e6


def register(app: typer.Typer) -> None:
    app.command("offers", help=HELP)(offers)


@with_flags(OfferFlags)
def offers(
    sought: Any,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="Ask these providers alone.",
            show_default=False,
            autocompletion=completion.providers,
        ),
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(metavar="H", help="For how long: shows the whole cost.", show_default=False),
    ] = None,
    sort: Annotated[
        str,
        typer.Option(
            metavar="total|price|ready|gpu",
            help="What comes first: the least whole cost, price per hour or time to be ready, or by the GPU's name.",
        ),
    ] = "total",
    as_json: Json = False,
) -> None:
    from gpuops.cli.request import machine_request
    from gpuops.offers import market, market_table

    if hours is not None and not 0 < hours <= HOURS_MAX:
        raise UsageError(f"--hours {hours:g} is no time to rent for", "--hours takes a number above 0")
    if sort not in [*market_table.Order]:
        raise UsageError(f"--sort {sort} is no order", f"--sort is one of: {', '.join(market_table.Order)}")
    ctx, _ = make_context(as_json=as_json, needs=Needs.LOOK)
    names = market.renting_providers(ctx) if on is None else market.check_providers(ctx, on.split(","))
    request = machine_request("", MachineFlags(**vars(sought)), {})
    asked = ctx.clock.now()
    answers = market.ask_providers(ctx, [replace(request, provider=name) for name in names])
    rows = market_table.sort_rows(_rows(ctx, answers, hours), market_table.Order(sort))
    for answer in answers:
        for line in market.describe_answer(answer):
            ctx.out.say(line)
    nothing = market.nothing_offered(answers)
    told = nothing.message if market.lack_accounts(answers) else "nothing that fits is offered"
    ctx.out.result("market", _document(answers, rows, asked, hours), _lines(ctx, rows, asked, hours) or [told])
    if not any(row.rentable for row in rows):
        raise typer.Exit(nothing.exit_code)


def _rows(ctx: Context, answers: list[Answer], hours: float | None) -> list[Row]:
    from gpuops.offers import market_table

    times = _ready_times(ctx)
    return [
        market_table.make_row(offer, times.of, hours, rentable=answer.error is None)
        for answer in answers
        for offer in answer.offers
    ]


def _ready_times(ctx: Context) -> ReadyTimes:
    """How long machines took here; a ledger that is not there, or cannot be read, knows of none."""
    from gpuops import ledger
    from gpuops.core.errors import GpuopsError
    from gpuops.offers.market_table import ReadyTimes

    if not (ctx.home / ledger.FILE).exists():
        return ReadyTimes(())
    try:
        return ReadyTimes(ctx.ledger.clusters(live=False))
    except GpuopsError as error:
        ctx.out.say(f"note: how long machines took before is not known: {error.message}")
        return ReadyTimes(())


def _lines(ctx: Context, rows: list[Row], asked: float, hours: float | None) -> list[str]:
    from gpuops.offers import market_table

    if not rows:
        return []
    when = market_table.describe_time(asked)
    note = ""
    if hours is not None:
        unknown = any(row.ready_s is None for row in rows)
        note = f"; {hours:g} H is the cost of {hours:g} h" + (
            "" if not unknown else ", and of the time until they are ready where that is known"
        )
    return [
        *market_table.format_rows(rows, hours, ctx.out.columns(ctx.out.out)),
        f"all in, for all nodes, {when}{note}",
    ]


def _document(answers: list[Answer], rows: list[Row], asked: float, hours: float | None) -> dict[str, object]:
    from gpuops.offers import market_table

    return {
        "asked": asked,
        "hours": hours,
        "offers": [market_table.row_document(row) for row in rows],
        "left_out": [sentence for answer in answers for sentence in answer.dropped],
        "unasked": [
            {"provider": answer.provider, "say": answer.error.message, "hint": answer.error.hint}
            for answer in answers
            if answer.error
        ],
    }
