"""What is offered, whatever Vast.ai answers: its filters are looked at once more."""

from __future__ import annotations

from typing import Any

import pytest

from gpuops.core.errors import NoCapacity
from gpuops.core.models import Offer, Request
from provisioners.vast.offers import Wishes, offers, search_body

ASK: dict[str, Any] = {
    "id": 1, "gpu_name": "A10", "gpu_ram": 23028, "num_gpus": 1, "dph_base": 0.2, "dph_total": 0.22, "min_bid": 0.08,
    "reliability2": 0.99, "verification": "verified", "hosting_type": 1, "geolocation": "Sweden, SE",
    "machine_id": 7, "end_date": 1_900_000_000,
}  # fmt: skip


def made(*changes: dict[str, Any], **wish: Any) -> list[Offer]:
    return offers([{**ASK, **change} for change in changes], Wishes.parse(Request("vast", **wish)))


@pytest.mark.parametrize(
    ("change", "wish"),
    [
        ({"num_gpus": 2}, {}),
        ({"reliability2": 0.97}, {}),
        ({"verification": "deverified"}, {}),
        ({"hosting_type": 0}, {"options": {"datacenter": True}}),
        ({"dph_base": None}, {}),
        ({"gpu_name": "Tesla V100"}, {}),
        ({"min_bid": 0}, {"spot": True}),
        ({"min_bid": 0.3}, {"spot": True, "options": {"bid": 0.2}}),
    ],
)
def test_what_is_not_as_wanted_is_left_out(change: dict[str, Any], wish: dict[str, Any]) -> None:
    with pytest.raises(NoCapacity):
        made(change, **wish)
    assert len(made(change, {"min_bid": 0.1}, **wish)) == 1


def test_a_bid_is_never_without_a_price_nor_below_the_least() -> None:
    """Vast.ai takes an order without one for one on demand, at another price."""
    assert made({})[0].data["bid"] is None
    (offer,) = made({"min_bid": 0.123456}, spot=True)
    assert (offer.data["bid"], offer.prices[0].per_hour) == (0.1235, 0.1235)
    assert made({}, spot=True, options={"bid": 0.5})[0].prices[0].per_hour == 0.5


def test_an_offer_tells_its_end_and_its_machine() -> None:
    assert (made({})[0].data["ends"], made({})[0].data["place"]) == (1_900_000_000, "machine 7")
    assert "ends" not in made({"end_date": None})[0].data


def test_a_disk_is_never_without_a_price() -> None:
    """Where the total says nothing of it, its price for a month does."""
    assert made({"dph_total": None, "storage_cost": 7.3})[0].prices[1].per_hour == pytest.approx(1.0)
    assert made({"dph_total": 0.1, "storage_cost": 7.3})[0].per_hour == pytest.approx(1.2)


def test_the_cheapest_is_first_disk_included() -> None:
    found = made({"id": 1, "dph_total": 0.4}, {"id": 2, "dph_base": 0.3, "dph_total": 0.31})
    assert [offer.id for offer in found] == ["2", "1"]


@pytest.mark.parametrize(
    ("wish", "name", "rule"),
    [
        ({"image": "nvidia/cuda:12.4.1-devel"}, "cuda_max_good", {"gte": 12.4}),
        ({"image": "own/image:7"}, "cuda_max_good", {"gte": 12.8}),
        ({"gpu_mem": 24}, "gpu_ram", {"gte": 22855}),
        ({"region": "se, no"}, "geolocation", {"in": ["SE", "NO"]}),
        ({"options": {"unverified": True}}, "verified", {"in": [True, False]}),
    ],
)
def test_what_is_searched_for(wish: dict[str, Any], name: str, rule: dict[str, Any]) -> None:
    assert search_body(Wishes.parse(Request("vast", **wish)), [])[name] == rule
