"""What a region offers for a request: types, zones, prices, image, network, and the account's quotas there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpuops.core.errors import NoCapacity, ProviderError, UsageError
from provisioners.aws import catalog, images, network, pricing, quotas
from provisioners.aws.account import Account
from provisioners.aws.api import split_region
from provisioners.aws.catalog import InstanceType
from provisioners.aws.instance_alternatives import Demand, RegionSurvey
from provisioners.aws.options import Wishes
from provisioners.aws.quotas import is_unreadable, quota_class_of
from provisioners.kit.calls import ask_all, require

ELSEWHERE_HINT = "ask for another --gpu-type, or look elsewhere with --region A,B"
UNPRICED_HINT = "say what you would pay at most, which is then counted as the price: --max-price 5; or take --spot"


@dataclass(frozen=True)
class RegionBase:
    """What every offer in a region needs besides a type."""

    region: str
    image: images.Image
    subnets: Mapping[str, network.Subnet]
    """By zone."""
    disk: float
    """$/h for a GB."""


@dataclass(frozen=True)
class PricedType:
    """An instance type in one zone."""

    kind: InstanceType
    zone: str
    per_hour: float
    """$/h of one machine; 0 where it is paid already."""


@dataclass(frozen=True)
class RegionStock:
    """What a region offers for a request: types by zone with their $/h, and the account's quotas there."""

    base: RegionBase
    place: RegionSurvey
    priced: Sequence[PricedType]
    unpriced: str = ""
    """Why the prices are the highest that the user would pay, and not AWS's; empty where they are AWS's."""


def read_stock(account: Account, region: str, given: Wishes, asked: Demand) -> RegionStock:
    """A region's stock, by two rounds of calls. Raises ProviderError, UsageError."""
    first: dict[str, Any] = ask_all(
        {
            "kinds": partial(catalog.list_instance_types, account, region, given.types),
            "image": partial(images.find_image, account, region, given),
            "nets": partial(network.find_subnets, account, region, given),
            "disk": partial(pricing.read_disk_price, account, region),
        }
    )
    kinds: dict[str, InstanceType] = require(first["kinds"])
    selected = _with_driver_support(
        catalog.select_instance_types(
            kinds.values(),
            gpus=asked.gpus,
            gpu_type=asked.gpu_type,
            gpu_mem=asked.gpu_mem,
            market=asked.market,
            types=asked.types,
            where=f"in {split_region(region)[0]}",
        ),
        given,
    )
    base = RegionBase(region, require(first["image"]), require(first["nets"]), require(first["disk"]))
    types = [kind.type for kind in selected]
    classes = list(dict.fromkeys(quota_class_of(kind.type, asked.market) for kind in selected))
    ask_price = (
        partial(pricing.read_spot_prices, account, region, types)
        if given.spot
        else partial(pricing.read_on_demand_prices, account, region, () if is_prepaid(given) else selected)
    )
    second: dict[str, Any] = ask_all(
        {
            "zones": partial(catalog.list_zones_by_type, account, region, types),
            "prices": ask_price,
            "standing": partial(
                quotas.read_account_quotas,
                account,
                region,
                classes,
                lambda: {name: kind.vcpus for name, kind in kinds.items()},
                history=False,
            ),
        }
    )
    place = RegionSurvey(region, tuple(kinds.values()), {asked.market: selected}, require(second["standing"]))
    prices, unpriced = second["prices"], ""
    if isinstance(prices, ProviderError) and not given.spot and is_unreadable(prices):
        unpriced = prices.message
        prices = _price_caps(account, selected, prices, base, given)
    priced = _price_by_zone(selected, require(second["zones"]), require(prices), base, given)
    return RegionStock(base, place, priced, unpriced)


def _price_caps(
    account: Account, selected: Sequence[InstanceType], error: ProviderError, base: RegionBase, given: Wishes
) -> dict[str, float]:
    """What the user would pay for each type, where AWS's prices cannot be read; without those that even spot machines
    show to be dearer. Raises the error where the user has not said."""
    if given.max_price is None:
        error.hint = f"{error.hint}; or {UNPRICED_HINT}"
        raise error
    besides = base.disk * max(given.disk, base.image.root_gb) + pricing.ADDRESS_HOURLY
    most = math.floor((given.max_price / given.nodes - besides) * 1e4) / 1e4
    spot: Mapping[tuple[str, str], float] = {}
    with suppress(ProviderError):
        spot = pricing.read_spot_prices(account, base.region, [kind.type for kind in selected])
    dear = {type for (type, _), price in spot.items() if price > most}
    return {kind.type: most for kind in selected if most > 0 and kind.type not in dear}


def _with_driver_support(kinds: Sequence[InstanceType], given: Wishes) -> list[InstanceType]:
    """Without those that AWS's image has no driver for. Raises UsageError where none is left."""
    fit = [kind for kind in kinds if given.ami or not catalog.is_legacy(kind)]
    if not fit:
        raise UsageError(
            f"AWS's image has no driver for the {kinds[0].gpu} of {kinds[0].type}", "name an image of your own: --ami"
        )
    return fit


def _price_by_zone(
    selected: Sequence[InstanceType],
    zones: Mapping[str, set[str]],
    prices: Mapping[Any, float],
    base: RegionBase,
    given: Wishes,
) -> list[PricedType]:
    """Each kind with its price in each zone that has it and a subnet of ours. Raises NoCapacity."""
    where = split_region(base.region)[0]
    names = ", ".join(kind.type for kind in selected[:4]) + (" or others" if len(selected) > 4 else "")
    offered = [(kind, zone) for kind in selected for zone in sorted(zones.get(kind.type, ()))]
    if not offered:
        raise NoCapacity(f"no zone of {where} has {names}", ELSEWHERE_HINT)
    reached = [(kind, zone) for kind, zone in offered if zone in base.subnets]
    if not reached:
        there = ", ".join(sorted({zone for _, zone in offered}))
        if given.zone:
            raise NoCapacity(
                f"{given.zone} has no {names}: {where} has them in {there}", "leave out --zone, or name another"
            )
        raise NoCapacity(
            f"{where} has {names} in {there} only, and our subnets are in {', '.join(sorted(base.subnets)) or 'none'}",
            "name a subnet there (--subnet), or make the default one: aws ec2 create-default-subnet "
            f"--availability-zone {offered[0][1]}",
        )
    priced = [
        PricedType(kind, zone, prices.get((kind.type, zone) if given.spot else kind.type, 0.0))
        for kind, zone in reached
    ]
    known = [entry for entry in priced if entry.per_hour or is_prepaid(given)]
    if not known:
        what = "no spot price" if given.spot else "no price in its price list"
        raise NoCapacity(f"AWS has {what} for {names} in {where} now", ELSEWHERE_HINT)
    return known


def is_prepaid(given: Wishes) -> bool:
    """Whether the machines are paid already: those of a Capacity Block."""
    return given.reserved is not None and given.reserved.block
