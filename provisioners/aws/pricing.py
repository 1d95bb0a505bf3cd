"""Prices: spot prices by zone, on-demand prices from its price list, disks and addresses. Pure, but for the
questions at the end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from gpuops.core.errors import ProviderError, UsageError
from provisioners.aws.account import Account
from provisioners.aws.api import join_region, pages, split_region
from provisioners.aws.catalog import InstanceType
from provisioners.kit.calls import ask_all
from provisioners.kit.documents import price as price_of

PRICE_LISTS = ("us-east-1", "eu-central-1", "ap-south-1")
"""Regions that serve the price list of all regions, tried in turn: an organization may forbid the first."""
ADDRESS_HOURLY = 0.005
"""$/h of a public IPv4 address, the same in every region."""
DISK_MONTHLY = 0.10
"""$ a month for a GB of gp3, where the price list does not say: 0.08 in us-east-1, more in others."""
HOURS_PER_MONTH = 730.0
MAX_SINGLE_LOOKUPS = 40
"""Types looked up one by one because the lookup by number of GPUs missed them: whether every product has that
attribute is not documented."""
PLAIN_MACHINE = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
}
"""What makes a product of the price list the plain machine: else reservations and capacity blocks come first."""


def newest_spot_prices(history: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], float]:
    """The last known price by type and zone. A price of 0 counts as unknown."""
    found: dict[tuple[str, str], tuple[Any, float]] = {}
    for entry in history:
        key = (str(entry.get("InstanceType")), str(entry.get("AvailabilityZone")))
        price, timestamp = price_of(entry.get("SpotPrice")), entry.get("Timestamp")
        known = found.get(key)
        if price and (known is None or (timestamp is not None and known[0] is not None and timestamp > known[0])):
            found[key] = (timestamp, price)
    return {key: price for key, (_, price) in found.items()}


def parse_product(product: str) -> tuple[Mapping[str, Any], float]:
    """What a product of the price list is (its attributes), and its on-demand price per unit; 0 if it has none.

    The list's entries are JSON in text.
    """
    try:
        document = json.loads(product)
        attributes = dict(document["product"]["attributes"])
        terms = document.get("terms", {}).get("OnDemand", {})
        prices = [
            price_of(dimension.get("pricePerUnit", {}).get("USD"))
            for term in terms.values()
            for dimension in term.get("priceDimensions", {}).values()
        ]
    except (ValueError, KeyError, AttributeError, TypeError):
        return {}, 0.0
    return attributes, max(prices, default=0.0)


def prices_by_type(products: Iterable[str]) -> dict[str, float]:
    """$/h by instance type; of several the cheapest that costs anything."""
    found: dict[str, float] = {}
    for product in products:
        attributes, price = parse_product(product)
        name = str(attributes.get("instanceType") or "")
        if name and price:
            found[name] = min(price, found.get(name, price))
    return found


def disk_hourly(products: Iterable[str]) -> float:
    """$/h for a GB of gp3. Where the list does not say, a price that is rather too high."""
    monthly = [price for price in (parse_product(product)[1] for product in products) if price]
    return min(monthly, default=DISK_MONTHLY) / HOURS_PER_MONTH


# Questions.

READ_PRICE_LIST = "read AWS's price list"


def read_spot_prices(account: Account, region: str, types: Iterable[str]) -> dict[tuple[str, str], float]:
    """The present spot price of a machine in $/h, by type and zone. Raises ProviderError."""
    now = datetime.now(UTC)
    history = pages(
        "see the spot prices",
        account.client("ec2", region),
        "describe_spot_price_history",
        "SpotPriceHistory",
        InstanceTypes=sorted(types),
        ProductDescriptions=["Linux/UNIX"],
        StartTime=now,
        EndTime=now,
    )
    return newest_spot_prices(history)


def read_on_demand_prices(account: Account, region: str, kinds: Iterable[InstanceType]) -> dict[str, float]:
    """On-demand $/h of a machine by type, from the price list; unlisted types are left out. Raises ProviderError."""
    wanted = {kind.type: kind for kind in kinds}
    found: dict[str, float] = {}
    for gpus in sorted({kind.gpus for kind in wanted.values() if kind.gpus}):
        found |= prices_by_type(_list_products(account, region, **PLAIN_MACHINE, gpu=str(gpus)))
    missing = sorted((type for type in wanted if type not in found), key=lambda type: wanted[type].vcpus)[
        :MAX_SINGLE_LOOKUPS
    ]
    calls = {type: partial(_list_products, account, region, **PLAIN_MACHINE, instanceType=type) for type in missing}
    for answer in ask_all(calls).values():
        if isinstance(answer, ProviderError | UsageError):
            raise answer
        found |= prices_by_type(answer)
    return {type: price for type, price in found.items() if type in wanted}


def read_disk_price(account: Account, region: str) -> float:
    """$/h for a GB of gp3 in a region. Where that cannot be read, a price that is rather too high."""
    try:
        return disk_hourly(_list_products(account, region, productFamily="Storage", volumeApiName="gp3"))
    except ProviderError:
        return disk_hourly(())


def _list_products(account: Account, region: str, **attributes: str) -> list[str]:
    name, profile = split_region(region)
    filters = [
        {"Type": "TERM_MATCH", "Field": field, "Value": value}
        for field, value in {"regionCode": name, **attributes}.items()
    ]
    refused: ProviderError | None = None
    for region_serving in (account.price_list, *(other for other in PRICE_LISTS if other != account.price_list)):
        client = account.client("pricing", join_region(region_serving, profile))
        try:
            found = pages(
                READ_PRICE_LIST, client, "get_products", "PriceList", ServiceCode="AmazonEC2", Filters=filters
            )
        except ProviderError as error:
            refused = refused or error
        else:
            account.price_list = region_serving
            return found
    assert refused is not None
    raise refused
