"""Offers of several providers as a table: what they cost in all, their order, and what a provider does not tell."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuops.core.models import Lease, Offer, Price
from gpuops.ledger.rows import ClusterRow, ClusterState
from gpuops.offers import offer_table
from gpuops.offers.machine_facts import MachineFacts, read_facts
from gpuops.offers.market_table import (
    MAX_ROWS,
    Order,
    ReadyTimes,
    describe_time,
    format_rows,
    make_row,
    row_document,
    sort_rows,
)


def offer(provider: str, gpu: str, per_hour: float, nodes: int = 1, **machine: Any) -> Offer:
    data = {"machine": {"gpu": gpu, **machine}} if gpu else {}
    return Offer(provider, gpu, f"a machine of {provider}", nodes, 4, "", (Price("machines", per_hour),), data)


def past(provider: str, gpu: str, took_s: float | None, created: float = 1000.0) -> ClusterRow:
    ready = None if took_s is None else created + took_s
    return ClusterRow(
        1, "c", provider, Path(), ClusterState.GONE, True, "t", {}, dataclasses.asdict(offer(provider, gpu, 1.0)), 0.0,
        Lease(), None, created, ready, None, "",
    )  # fmt: skip


TIMES = ReadyTimes(
    [
        *(past("runpod", "RTX 4090", took) for took in (90.0, 3600.0, 120.0)),
        past("runpod", "H100", None),
        past("aws", "RTX 4090", 900.0),
        past("aws", "T4", -5.0),
        dataclasses.replace(past("vast", "L4", 60.0), offer={}),
    ]
)


def test_how_long_such_machines_took_is_the_median_of_the_same_gpu_there() -> None:
    known = [("runpod", "RTX 4090"), ("runpod", "H100"), ("aws", "RTX 4090"), ("aws", "T4"), ("vast", "L4")]
    assert [TIMES.of(offer(name, gpu, 1.0)) for name, gpu in known] == [120.0, None, 900.0, None, None]


@pytest.mark.parametrize(
    ("provider", "hours", "total"),
    [("runpod", None, None), ("runpod", 3.0, 2.0 * (3 + 120 / 3600)), ("vast", 3.0, 6.0), ("aws", 0.5, 1.5)],
)
def test_the_whole_cost_is_that_of_the_hours_and_of_the_start(
    provider: str, hours: float | None, total: float | None
) -> None:
    row = make_row(offer(provider, "RTX 4090", 2.0), TIMES.of, hours)
    assert row.total == (None if total is None else pytest.approx(total))


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (Order.PRICE, ["aws", "vast", "runpod"]),
        (Order.TOTAL, ["vast", "runpod", "aws"]),
        (Order.READY, ["runpod", "aws", "vast"]),
        (Order.GPU, ["vast", "runpod", "aws"]),
    ],
)
def test_orders(order: Order, expected: list[str]) -> None:
    """At AWS a quarter of an hour passes before such machines are ready, and is paid for."""
    rows = [
        make_row(offer("runpod", "RTX 4090", 2.1), TIMES.of, 0.2),
        make_row(offer("aws", "RTX 4090", 2.0), TIMES.of, 0.2),
        make_row(offer("vast", "L4", 2.05), TIMES.of, 0.2),
    ]
    assert [row.offer.provider for row in sort_rows(rows, order)] == expected
    without_hours = [make_row(row.offer, TIMES.of) for row in rows]
    if order is Order.TOTAL:
        assert [row.offer.provider for row in sort_rows(without_hours, order)] == ["aws", "vast", "runpod"]


def test_a_table_leaves_out_what_nobody_tells() -> None:
    rows = [
        make_row(offer("runpod", "RTX 4090", 1.5, gpu_mem=24, where="secure cloud"), TIMES.of, 3.0),
        make_row(offer("aws", "A10G", 2.0, nodes=2, gpu_mem=24, spot=True, risk="<5 %"), TIMES.of, 3.0),
        make_row(offer("tent", "", 9.0), TIMES.of, 3.0, rentable=False),
    ]
    assert format_rows(rows, 3.0) == [
        "PROVIDER  MACHINES           MEMORY  MARKET      WHERE         READY IN  $/H    3 H",
        "runpod    4 x RTX 4090       24 GB   -           secure cloud  2 min     $1.50  $4.55",
        "aws       2 x 4 x A10G       24 GB   spot, <5 %  -             -         $2.00  $6.00",
        "tent      a machine of tent  -       no key      -             -         $9.00  $27.00",
    ]
    narrow = format_rows(rows, 3.0, 50)
    assert narrow[0].split() == ["PROVIDER", "MACHINES", "MEMORY", "$/H", "3", "H"]
    many = [make_row(offer("aws", f"GPU {number}", 1.0), TIMES.of) for number in range(27)]
    assert format_rows(many)[-1] == f"and {27 - MAX_ROWS} more (--json has all)"


def test_what_differs_in_its_place_alone_is_one_line() -> None:
    rows = [make_row(offer("aws", "T4", price, where=zone), TIMES.of) for zone, price in (("a", 1), ("b", 2), ("c", 1))]
    assert format_rows(rows)[1:] == ["aws       4 x T4    a or 1 more  $1.00", "aws       4 x T4    b            $2.00"]


def test_offers_of_several_providers_share_columns_wherever_they_are_shown() -> None:
    own = {"columns": {"GPU": "RTX 4090", "MEMORY": "24 GB", "CLOUD": "secure"}}
    alone = Offer("runpod", "a", "a", 1, 4, prices=(Price("", 1.5),), data=own)
    assert offer_table.format_offers([alone])[0] == "GPU       MEMORY  CLOUD   $/H"
    both = offer_table.format_offers([alone, offer("aws", "A10G", 2.0)])
    assert both[:2] == ["PROVIDER  MACHINES      MEMORY  $/H", "runpod    4 x RTX 4090  24 GB   $1.50"]


@pytest.mark.parametrize(
    ("data", "facts"),
    [
        ({}, MachineFacts()),
        ({"machine": "a word", "columns": ["GPU"]}, MachineFacts()),
        ({"machine": {"gpu": 7, "gpu_mem": float("nan"), "vcpus": True, "ram": -1, "spot": "yes"}}, MachineFacts()),
        ({"machine": {"gpu": "A\x1b[31m\nB", "ram": 64}}, MachineFacts(gpu="A?[31m B", ram=64.0)),
        ({"columns": {"gpu": "T4", "Memory": "16 GB", "MARKET": "spot"}, "place": "east"},
         MachineFacts(gpu="T4", gpu_mem=16.0, spot=True, where="east")),
    ],
)  # fmt: skip
def test_what_a_provider_tells_is_read_as_far_as_it_makes_sense(data: Mapping[str, Any], facts: MachineFacts) -> None:
    assert read_facts(Offer("p", "i", "s", 1, 1, data=data)) == facts


def test_the_document_and_the_time() -> None:
    row = make_row(offer("runpod", "RTX 4090", 1.5, gpu_mem=24), TIMES.of)
    assert row_document(row).keys() == {
        "provider", "id", "say", "nodes", "gpus", "region", "gpu", "gpu_mem", "interconnect", "vcpus", "ram", "disk",
        "spot", "risk", "where", "prices", "per_hour", "ready_s", "total", "rentable", "notes",
    }  # fmt: skip
    assert describe_time(14 * 3600 + 3 * 60) == "asked 14:03 UTC"
