"""Prices: read from what AWS answers, and asked for in few questions."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from provisioners.aws import pricing

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def spot(price: str, hours_ago: float = 0, zone: str = "us-east-1a") -> dict[str, object]:
    return {
        "InstanceType": "g5.12xlarge",
        "AvailabilityZone": zone,
        "SpotPrice": price,
        "Timestamp": NOW - timedelta(hours=hours_ago),
    }


def test_the_last_price_that_was_said_counts() -> None:
    history = [spot("2.10", 5), spot("2.30", 1), spot("1.90", 9), spot("1.70", 2, "us-east-1b")]
    assert pricing.newest_spot_prices(history) == {
        ("g5.12xlarge", "us-east-1a"): 2.30,
        ("g5.12xlarge", "us-east-1b"): 1.70,
    }


@pytest.mark.parametrize("price", ["0.0000000", "", "-1", "inf", "nan", "much"])
def test_a_price_of_nothing_is_none(price: str) -> None:
    assert pricing.newest_spot_prices([spot(price)]) == {}


def product(name: str, dollars: str, **more: str) -> str:
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": dollars}}
    terms = {"OnDemand": {"A.B": {"priceDimensions": {"A.B.C": dimension}}}}
    return json.dumps({"product": {"attributes": {"instanceType": name, **more}}, "terms": terms})


def test_a_product_without_a_price_is_passed_over() -> None:
    listed = [product("g5.12xlarge", "0.0"), product("g5.12xlarge", "5.672"), product("g6.12xlarge", "4.602")]
    assert pricing.prices_by_type(listed) == {"g5.12xlarge": 5.672, "g6.12xlarge": 4.602}


@pytest.mark.parametrize("text", ["", "no JSON", "[]", "{}", '{"product": {}}', '{"product": {"attributes": null}}'])
def test_what_cannot_be_read_is_passed_over(text: str) -> None:
    assert pricing.prices_by_type([text]) == {}
    assert pricing.disk_hourly([text]) == pytest.approx(0.10 / 730)
