"""Offers of several providers side by side, with what they cost in all: rows, their order, table and document. Pure."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gpuops.core.format import money, one_line, span, table
from gpuops.core.models import Offer
from gpuops.ledger.rows import ClusterRow
from gpuops.offers.machine_facts import MAX_TEXT_CHARS, MachineFacts, read_facts

MAX_ROWS = 20
"""Longer tables are cut: `--json` has all of them."""
SPARE = ("DISK", "RAM", "VCPU", "LINK", "READY IN", "MARKET", "WHERE")
"""Columns that a narrow terminal leaves out, in this order."""
UNKNOWN = "-"


class Order(StrEnum):
    """By what the table is sorted."""

    TOTAL = "total"
    PRICE = "price"
    READY = "ready"
    GPU = "gpu"


@dataclass(frozen=True)
class Row:
    """An offer beside others."""

    offer: Offer
    facts: MachineFacts
    ready_s: float | None = None
    """How long such machines took to be ready before; None: none was ever rented here."""
    total: float | None = None
    """$ of all machines for the asked hours, and until they are ready; None without hours."""
    rentable: bool = True

    @property
    def per_hour(self) -> float:
        return self.offer.per_hour


class ReadyTimes:
    """How long machines took to be ready here, by the ledger's past: the median of the same GPU's at a provider."""

    def __init__(self, past: Iterable[ClusterRow]) -> None:
        self._seconds: dict[tuple[str, str], list[float]] = {}
        for row in past:
            if row.ready is not None and row.ready > row.created:
                self._seconds.setdefault((row.provider, _gpu_of(row)), []).append(row.ready - row.created)

    def of(self, offer: Offer) -> float | None:
        """Seconds; None where there were no such machines."""
        known = self._seconds.get((offer.provider, read_facts(offer).gpu))
        return statistics.median(known) if known else None


def _gpu_of(row: ClusterRow) -> str:
    data = row.offer.get("data")
    return read_facts(Offer(row.provider, "", "", 1, 0, data=data)).gpu if isinstance(data, Mapping) else ""


def make_row(
    offer: Offer, ready_of: Callable[[Offer], float | None], hours: float | None = None, *, rentable: bool = True
) -> Row:
    """A row. Disk and all else that bills by the hour is in the price; until machines are ready they bill, too."""
    ready_s = ready_of(offer)
    total = None if hours is None else offer.per_hour * (hours + (ready_s or 0.0) / 3600)
    return Row(offer, read_facts(offer), ready_s, total, rentable)


def sort_rows(rows: Iterable[Row], order: Order) -> list[Row]:
    """The rows in that order, the cheaper first where they are equal; what is not known comes last."""

    def key(row: Row) -> tuple[Any, ...]:
        cost = row.per_hour if row.total is None else row.total
        if order is Order.READY:
            return row.ready_s is None, row.ready_s or 0.0, cost
        if order is Order.GPU:
            return not row.facts.gpu, row.facts.gpu.lower(), cost
        return (row.per_hour if order is Order.PRICE else cost, row.per_hour)

    return sorted(rows, key=key)


def format_rows(rows: Sequence[Row], hours: float | None = None, width: int | None = None) -> list[str]:
    """The table; columns of which nothing is known are left out. `hours`: those of the rows' whole cost."""
    every = _with_places_joined([_cells(row, hours) for row in rows])
    cells = every[:MAX_ROWS]
    headings = [heading for heading in cells[0] if any(row[heading] not in ("", UNKNOWN) for row in cells)]
    lines = [headings, *([row[heading] or UNKNOWN for heading in headings] for row in cells)]
    more = len(every) - MAX_ROWS
    return [*table(lines, width, gives=1, spare=SPARE), *([f"and {more} more (--json has all)"] if more > 0 else [])]


def _with_places_joined(cells: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """One line for all that differs in its place alone: `us-east-1a or 4 more`."""
    places: dict[tuple[str, ...], list[str]] = {}
    first: dict[tuple[str, ...], dict[str, str]] = {}
    for row in cells:
        key = tuple(text for heading, text in row.items() if heading != "WHERE")
        places.setdefault(key, []).append(row["WHERE"])
        first.setdefault(key, row)
    return [
        {**row, "WHERE": places[key][0] + (f" or {len(places[key]) - 1} more" if len(places[key]) > 1 else "")}
        for key, row in first.items()
    ]


def _cells(row: Row, hours: float | None) -> dict[str, str]:
    facts, offer = row.facts, row.offer
    counts = [*([str(offer.nodes)] if offer.nodes > 1 else []), *([str(offer.gpus)] if offer.gpus else [])]
    machine = " x ".join([*counts, facts.gpu]) if facts.gpu else one_line(offer.say, MAX_TEXT_CHARS)
    market = "spot" if facts.spot else ("" if row.rentable else "no key")
    return {
        "PROVIDER": offer.provider,
        "MACHINES": machine,
        "MEMORY": _gigabytes(facts.gpu_mem),
        "LINK": facts.interconnect,
        "VCPU": "" if facts.vcpus is None else f"{facts.vcpus:g}",
        "RAM": _gigabytes(facts.ram),
        "DISK": _gigabytes(facts.disk),
        "MARKET": f"{market}, {facts.risk}" if facts.risk else market,
        "WHERE": facts.where,
        "READY IN": UNKNOWN if row.ready_s is None else span(row.ready_s),
        "$/H": money(row.per_hour),
        **({} if hours is None or row.total is None else {f"{hours:g} H": money(row.total)}),
    }


def _gigabytes(amount: float | None) -> str:
    return "" if amount is None else f"{amount:g} GB"


def describe_time(now: float) -> str:
    """When prices were asked for: `asked 14:03 UTC`."""
    return f"asked {time.strftime('%H:%M', time.gmtime(now))} UTC"


def row_document(row: Row) -> dict[str, Any]:
    """A row as `--json` prints it."""
    offer = row.offer
    return {
        "provider": offer.provider,
        "id": offer.id,
        "say": offer.say,
        "nodes": offer.nodes,
        "gpus": offer.gpus,
        "region": offer.region,
        **dataclasses.asdict(row.facts),
        "prices": [dataclasses.asdict(price) for price in offer.prices],
        "per_hour": row.per_hour,
        "ready_s": row.ready_s,
        "total": row.total,
        "rentable": row.rentable,
        "notes": list(offer.notes),
    }
