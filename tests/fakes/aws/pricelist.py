"""The price list: on-demand machines with everything that is easily taken for one, gp3 disks, public addresses."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from functools import cache
from typing import Any

from tests.fakes.aws import catalog, filters, pricetable
from tests.fakes.aws.requests import Refusal, Request, Unreachable
from tests.fakes.aws.routing import answers
from tests.fakes.aws.world import World

ENDPOINTS = ("us-east-1", "eu-central-1", "ap-south-1")
PLACES = {
    "us-east-1": "US East (N. Virginia)", "us-east-2": "US East (Ohio)", "us-west-1": "US West (N. California)",
    "us-west-2": "US West (Oregon)", "eu-west-1": "EU (Ireland)", "eu-central-1": "EU (Frankfurt)",
}  # fmt: skip

DISKS = (
    ("Storage", {"volumeApiName": "gp2", "usagetype": "EBS:VolumeUsage.gp2"}, "GB-Mo", 0.1),
    ("Storage", {"volumeApiName": "gp3", "usagetype": "EBS:VolumeUsage.gp3"}, "GB-Mo", pricetable.GP3),
    (
        "System Operation",
        {"volumeApiName": "gp3", "group": "EBS IOPS", "usagetype": "EBS:VolumeP-IOPS.gp3"},
        "IOPS-Mo",
        0.005,
    ),
)


@answers("pricing:GetProducts")
def products(world: World, request: Request) -> Any:
    if request.region not in ENDPOINTS:
        raise Unreachable
    asked = request.parameters
    wanted = [(one["Type"], one["Field"], one["Value"]) for one in asked.get("Filters") or []]
    service = asked.get("ServiceCode", "")
    rows = [one for one in _all(world, service, wanted) if all(_fits(one["product"], *it) for it in wanted)]
    some, mark = filters.page(rows, asked, 100)
    found = {"FormatVersion": "aws_v1", "PriceList": [json.dumps(one) for one in some]}
    return found | ({"NextToken": mark} if mark else {})


def _fits(product: dict[str, Any], how: str, field: str, value: str) -> bool:
    has = product["productFamily"] if field == "productFamily" else product["attributes"].get(field)
    if has is None:
        return how == "NONE_OF"
    if how in ("TERM_MATCH", "EQUALS"):
        return bool(has.lower() == value.lower())
    some = [one.lower() for one in value.split(",")]
    if how == "CONTAINS":
        return any(one in has.lower() for one in some)
    if how not in ("ANY_OF", "NONE_OF"):
        raise Refusal("InvalidParameterException", f"Unknown filter type {how}")
    return (has.lower() in some) == (how == "ANY_OF")


def _all(world: World, service: str, wanted: list[tuple[str, str, str]]) -> Iterator[dict[str, Any]]:
    """Of what a filter pins down only that: there are a million of them."""
    exact: dict[str, list[str]] = {
        field: value.split(",") if how == "ANY_OF" else [value]
        for how, field, value in wanted
        if how in ("TERM_MATCH", "EQUALS", "ANY_OF")
    }
    places = {name: region for region, name in PLACES.items()}
    where = exact.get("regionCode") or [places[one] for one in exact.get("location", []) if one in places]
    for region in where or list(catalog.regions(world)):
        if service == "AmazonEC2":
            for kind in sorted({kind for _, kind in world.offered(region)}):
                if kind in exact.get("instanceType", [kind]):
                    yield from _machine(region, kind, world.on_demand[kind, region])
            for family, attributes, unit, price in DISKS:
                yield _product(family, region, attributes, unit, price * pricetable.factor(region))
        if service == "AmazonVPC":
            for group, kind in (("VPCPublicIPv4Address", "InUseAddress"), ("VPCPublicIPv4Address", "IdleAddress")):
                yield _product(
                    "VpcPublicIPv4Address", region, {"group": group, "usagetype": f"PublicIPv4:{kind}"},
                    "Hrs", pricetable.ADDRESS,
                )  # fmt: skip


@cache
def _machine(region: str, kind: str, price: float) -> list[dict[str, Any]]:
    """Made once for all fakes of a process: nobody changes them."""
    plain = {
        "instanceType": kind, "operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA",
        "capacitystatus": "Used", "marketoption": "OnDemand", "licenseModel": "No License required",
        "currentGeneration": "Yes", "vcpu": str(pricetable.vcpus(kind)), "operation": "RunInstances",
        "usagetype": f"BoxUsage:{kind}",
    }  # fmt: skip
    rows: tuple[tuple[dict[str, str], float], ...] = (
        ({"capacitystatus": "AllocatedCapacityReservation", "usagetype": f"Reservation:{kind}"}, 0.0),
        ({"capacitystatus": "UnusedCapacityReservation", "usagetype": f"UnusedBox:{kind}"}, 1.0),
        ({}, 1.0),
        ({"marketoption": "CapacityBlock", "usagetype": f"CapacityBlock:{kind}"}, 0.0),
        ({"operatingSystem": "Windows", "operation": "RunInstances:0002"}, 1.7),
        ({"operatingSystem": "RHEL", "operation": "RunInstances:0010"}, 1.2),
        ({"tenancy": "Dedicated", "usagetype": f"DedicatedUsage:{kind}"}, 1.1),
        ({"preInstalledSw": "SQL Std", "operation": "RunInstances:0004"}, 2.0),
    )
    return [_product("Compute Instance", region, plain | more, "Hrs", price * times) for more, times in rows]


def _product(family: str, region: str, attributes: dict[str, str], unit: str, price: float) -> dict[str, Any]:
    service = "AmazonVPC" if family.startswith("Vpc") else "AmazonEC2"
    sku = f"{zlib.crc32(f'{family} {region} {sorted(attributes.items())}'.encode()):012X}"
    place = {"regionCode": region, "location": PLACES.get(region, region), "locationType": "AWS Region"}
    dimension = {
        "unit": unit, "beginRange": "0", "endRange": "Inf", "description": f"${price:.4f} per {unit}",
        "appliesTo": [], "rateCode": f"{sku}.JRTCKXETXF.6YS6EN2CT7", "pricePerUnit": {"USD": f"{price:.10f}"},
    }  # fmt: skip
    term = {
        "sku": sku, "offerTermCode": "JRTCKXETXF", "effectiveDate": "2026-11-01T00:00:00Z", "termAttributes": {},
        "priceDimensions": {f"{sku}.JRTCKXETXF.6YS6EN2CT7": dimension},
    }  # fmt: skip
    return {
        "product": {"productFamily": family, "sku": sku, "attributes": {"servicecode": service, **place, **attributes}},
        "serviceCode": service,
        "terms": {"OnDemand": {f"{sku}.JRTCKXETXF": term}},
        "version": "20261101000000",
        "publicationDate": "2026-11-01T00:00:00Z",
    }
