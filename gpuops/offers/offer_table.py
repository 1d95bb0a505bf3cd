"""Offers as people read them: a table in the order in which they are tried, and why the first one is first. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from gpuops.core.context import Context
from gpuops.core.format import money, table
from gpuops.core.models import Offer, Payer
from gpuops.offers import market_table

MAX_ROWS = 12
"""Longer tables are cut: a person reads the first offers only."""
PLAIN_HEADINGS = ("OFFER", "GPUS", "REGION", "$/H")
"""Headings for offers without columns of their own."""


def show_offers(ctx: Context, offers: Sequence[Offer]) -> None:
    """Print several offers, and why the first is first. A single one is told with its price, by the question."""
    if len(offers) < 2:
        return
    for line in format_offers(offers, ctx.out.columns(ctx.out.err)):
        ctx.out.say(line)
    if chosen := explain_choice(offers):
        ctx.out.say(chosen)


def format_offers(offers: Sequence[Offer], width: int | None = None) -> list[str]:
    """The table of offers, those of several providers in columns that all of them share; empty for a single offer
    without columns of its own."""
    if len({offer.provider for offer in offers}) > 1:
        return market_table.format_rows([market_table.make_row(offer, lambda _: None) for offer in offers], width=width)
    if len(offers) < 2 and not any(offer.data.get("columns") for offer in offers):
        return []
    cells = [_cells(offer) for offer in offers[:MAX_ROWS]]
    headings = list(dict.fromkeys(heading for row in cells for heading in row))
    headings = [heading for heading in headings if any(row.get(heading) for row in cells)]
    rows = [headings, *([row.get(heading, "") for heading in headings] for row in cells)]
    more = len(offers) - MAX_ROWS
    return [*table(rows, width, gives=0), *([f"and {more} more"] if more > 0 else [])]


def format_dry_run(offers: Sequence[Offer], payer: Payer | None, width: int | None) -> list[str]:
    """The lines of a dry run: all offers, and the one that is tried first."""
    first = offers[0]
    price = f"{money(first.per_hour)}/h" if first.per_hour else "free"
    why = [explain_choice(offers)] if len(offers) > 1 else []
    notes = [f"note: {note}" for note in first.notes]
    return [*format_offers(offers, width), f"would create: {first.say}, {price}{format_payer(payer)}", *notes, *why]


def format_payer(payer: Payer | None) -> str:
    """What follows a price: whose account it is."""
    return f", {payer}" if payer else ""


def _cells(offer: Offer) -> dict[str, str]:
    """Heading to cell of one offer: the provider's own columns, and always the price."""
    own = offer.data.get("columns")
    price = money(offer.per_hour) if offer.per_hour else "free"
    if isinstance(own, Mapping) and own:
        cells = {str(heading).upper(): str(text) for heading, text in own.items()}
        return cells if "$/H" in cells else {**cells, "$/H": price}
    gpus = str(offer.gpus) if offer.gpus else ""
    return dict(zip(PLAIN_HEADINGS, (offer.say, gpus, offer.region, price), strict=True))


def explain_choice(offers: Sequence[Offer]) -> str:
    """Why the first offer is tried first; empty for a single offer."""
    if len(offers) < 2:
        return ""
    first = offers[0]
    cheapest = first.per_hour <= min(offer.per_hour for offer in offers)
    why = str(first.data.get("why") or ("the cheapest" if cheapest else f"what {first.provider} puts first"))
    return f"the top one is tried first: {why}; the next ones follow where it cannot be had"


def order_avoided_last(offers: Sequence[Offer], avoided: Sequence[str]) -> list[Offer]:
    """The offers in their order, but those in `avoided` places last, the latest of these places at the very end."""
    later = {place: number for number, place in enumerate(avoided, 1)}
    order = sorted(offers, key=lambda offer: later.get(str(offer.data.get("place") or ""), 0))
    if order and order[0] != offers[0]:
        why = f"the best elsewhere than {avoided[-1]}"
        order[0] = dataclasses.replace(order[0], data={**order[0].data, "why": why})
    return order
