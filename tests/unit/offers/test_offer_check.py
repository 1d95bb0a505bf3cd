"""Offers that cannot be true: each is left out with its reason, and none of them breaks a table or a document."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpuops.core.models import Offer, Price, Request
from gpuops.offers.market_table import Order, format_rows, make_row, row_document, sort_rows
from gpuops.offers.offer_check import MAX_GPUS, drop_false, select_fitting
from gpuops.offers.price_approval import max_price_flag

WISH = Request("p", gpus=4)
TRUE: dict[str, Any] = {
    "provider": "p", "id": "i", "say": "s", "nodes": 1, "gpus": 4, "region": "r", "prices": (Price("machine", 1.0),),
}  # fmt: skip


class Whatever:
    """What no document can hold."""

    per_hour, what = 1.0, "machine"


@pytest.mark.parametrize("parts", [(0.1, 0.2), (1.1, 2.2), (0.7, 0.1), (0.289, 0.001)])
def test_the_price_that_a_refusal_names_is_enough(parts: tuple[float, float]) -> None:
    """$0.10 for the GPU and $0.20 for the disk are $0.30, and not a little more."""
    offer = Offer(**{**TRUE, "prices": tuple(Price("part", part) for part in parts)})
    flag = max_price_flag(offer.per_hour)
    assert select_fitting(Request("p", gpus=4, max_price=float(flag.split()[1])), [offer]) == [offer]


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        ({"prices": (Price("m", "1.0"),)}, "it has no price"),
        ({"prices": (Price("m", True),)}, "it has no price"),
        ({"prices": (Price("m", float("inf")),)}, "it has no price"),
        ({"prices": 1.0}, "it cannot be read"),
        ({"prices": (Whatever(),)}, "it cannot be read"),
        ({"prices": (Price("m", 1e-9),)}, "nothing is sold for $1e-09/h"),
        ({"prices": (Price("m", 1e300),)}, "nothing is sold for $1e+300/h"),
        ({"gpus": 10**9}, "no machine has 1,000,000,000 GPUs"),
        ({"gpus": "4"}, "it cannot be read"),
        ({"gpus": 4.5}, "it cannot be read"),
        ({"nodes": None}, "it is for None nodes, not for 1"),
        ({"say": None}, "it cannot be read"),
        ({"id": 7}, "it cannot be read"),
        ({"region": ["r"]}, "it cannot be read"),
        ({"notes": None}, "it cannot be read"),
        ({"notes": "a word"}, "it cannot be read"),
        ({"notes": (Whatever(),)}, "it cannot be read"),
        ({"data": {"machine": Whatever()}}, "it cannot be read"),
        ({"data": ["a word"]}, "it cannot be read"),
        ({"data": {"ends": "tomorrow"}}, "it cannot be read"),
        ({"data": {"queue_s": "soon"}}, "it cannot be read"),
        ({"data": {"queue_s": float("inf")}}, "it cannot be read"),
        ({"data": {"idle_min": float("nan")}}, "it cannot be read"),
    ],
)
def test_a_lie_neither_wins_nor_breaks_the_table(lie: dict[str, Any], why: str) -> None:
    true = Offer(**TRUE)
    told, dropped = drop_false(WISH, [Offer(**{**TRUE, **lie}), true])
    assert told == [true]
    assert [line.partition(" is left out: ")[2] for line in dropped] == [why]


@pytest.mark.parametrize("odd", [{"gpus": MAX_GPUS}, {"prices": (Price("m", 1e6),)}, {"say": "\x1b[2J" * 99}])
def test_what_is_odd_is_shown(odd: dict[str, Any]) -> None:
    told, dropped = drop_false(WISH, [Offer(**{**TRUE, **odd})])
    assert dropped == []
    rows = sort_rows([make_row(offer, lambda _: None, 1e6) for offer in told], Order.TOTAL)
    assert "\x1b" not in "".join(format_rows(rows, 1e6))
    assert json.dumps(row_document(rows[0]), allow_nan=False)
