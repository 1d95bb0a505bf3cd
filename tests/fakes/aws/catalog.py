"""What there is to be had: regions, types, where they are, images and their parameters."""

from __future__ import annotations

import json
from typing import Any

from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend

from tests.fakes.aws import filters, wire
from tests.fakes.aws.pictures import PARAMETERS, Picture
from tests.fakes.aws.requests import Answer, Refusal, Request
from tests.fakes.aws.routing import answers
from tests.fakes.aws.world import OPT_IN, World


def regions(world: World) -> dict[str, str]:
    """Name -> whether one has to ask for it."""
    names = sorted({region.name for region in RegionsAndZonesBackend.regions} | set(OPT_IN))
    plain = [name for name in names if not name.startswith(("cn-", "us-gov", "us-iso", "eu-isoe", "eusc"))]
    return {
        name: "opt-in-not-required" if name not in OPT_IN else "opted-in" if name in world.opted_in else "not-opted-in"
        for name in plain
        if name in OPT_IN or name in RegionsAndZonesBackend.regions_opt_in_not_required
    }


@answers("ec2:DescribeRegions")
def describe_regions(world: World, request: Request) -> Any:
    asked = request.parameters
    wanted = asked.get("RegionNames")
    found = regions(world)
    for one in wanted or []:
        if one not in found:
            raise Refusal("InvalidParameterValue", f"Invalid region provided: {one}")
    rows = [
        {"RegionName": name, "Endpoint": f"ec2.{name}.amazonaws.com", "OptInStatus": status}
        for name, status in found.items()
        if name in (wanted or world.only_regions or found)
        and (asked.get("AllRegions") or wanted or status != "not-opted-in")
        and filters.fits(
            asked.get("Filters"),
            {"opt-in-status": status, "region-name": name},
            {},
        )
    ]
    return {"Regions": rows}


_SEEN: dict[Any, Answer] = {}
"""Answers to DescribeInstanceTypes: they are the same for every fake, and take a second to write."""


@answers("ec2:DescribeInstanceTypes")
def types(world: World, request: Request) -> Any:
    asked = request.parameters
    here = {kind for _, kind in world.offered(request.region)}
    wanted = asked.get("InstanceTypes")
    unknown = [one for one in wanted or [] if one not in here]
    if unknown:
        raise Refusal(
            "InvalidInstanceType", f"The following supplied instance types do not exist: [{', '.join(unknown)}]"
        )
    key = (request.region, frozenset(world.not_offered), json.dumps({**asked, "ClientToken": ""}, sort_keys=True))
    if key not in _SEEN:
        _SEEN[key] = wire.result(request, _types(world, request, here))
    return _SEEN[key]


def _types(world: World, request: Request, here: set[str]) -> Any:
    asked = request.parameters
    wanted = asked.get("InstanceTypes")
    by_name = {one["Name"]: one["Values"] for one in asked.get("Filters") or []}
    backend = world.ec2(request.region)
    found = backend.describe_instance_types(list(wanted or []), {name: list(it) for name, it in by_name.items()})
    rows = sorted((one for one in found if one["InstanceType"] in here), key=lambda one: str(one["InstanceType"]))
    some, mark = filters.page(rows, asked, 100)
    return {"InstanceTypes": [dict(one) for one in some], "NextToken": mark}


@answers("ec2:DescribeInstanceTypeOfferings")
def offerings(world: World, request: Request) -> Any:
    asked = request.parameters
    kind = asked.get("LocationType", "region")
    ids = {zone.name: zone.zone_id for zone in world.ec2(request.region).describe_availability_zones()}
    place = {
        "region": lambda zone: request.region,  # noqa: ARG005
        "availability-zone": lambda zone: zone,
        "availability-zone-id": lambda zone: ids.get(zone, zone),
    }.get(kind)
    if place is None:
        raise Refusal("InvalidParameterValue", f"Invalid value '{kind}' for LocationType.")
    pairs = sorted({(place(zone), one) for zone, one in world.offered(request.region)})
    rows = [
        {"InstanceType": one, "LocationType": kind, "Location": where}
        for where, one in pairs
        if filters.fits(asked.get("Filters"), {"instance-type": one, "location": where}, {})
    ]
    some, mark = filters.page(rows, asked, 1000)
    return {"InstanceTypeOfferings": some, "NextToken": mark}


@answers("ec2:DescribeImages")
def images(world: World, request: Request) -> Any:
    asked, region = request.parameters, request.region
    wanted = asked.get("ImageIds") or []
    rows = {one.id(region): one.view(region, world.account) for one in world.pictures if one.state != "gone"}
    missing = [one for one in wanted if one not in rows]
    if missing:
        raise Refusal("InvalidAMIID.NotFound", f"The image id '[{', '.join(missing)}]' does not exist")
    chosen = [
        row
        for image, row in rows.items()
        if (not wanted or image in wanted)
        and _owned(row, asked.get("Owners") or [], world.account)
        and filters.fits(asked.get("Filters"), _image_values(row), {})
    ]
    some, mark = filters.page(chosen, asked, 1000)
    return {"Images": some, "NextToken": mark}


def _owned(row: dict[str, Any], owners: list[str], account: str) -> bool:
    real = [account if one == "self" else one for one in owners]
    return not real or row["OwnerId"] in real or row["ImageOwnerAlias"] in real


def _image_values(row: dict[str, Any]) -> dict[str, Any]:
    names = {
        "name": "Name", "image-id": "ImageId", "state": "State", "architecture": "Architecture", "owner-id": "OwnerId",
        "owner-alias": "ImageOwnerAlias", "root-device-type": "RootDeviceType", "image-type": "ImageType",
        "virtualization-type": "VirtualizationType", "description": "Description", "root-device-name": "RootDeviceName",
        "hypervisor": "Hypervisor",
    }  # fmt: skip
    values: dict[str, Any] = {name: row[key] for name, key in names.items()}
    values["is-public"] = "true" if row["Public"] else "false"
    values["ena-support"] = "true"
    return values


# ---- the parameters


@answers("ssm:GetParameter")
def parameter(world: World, request: Request) -> Any:
    name = request.parameters["Name"]
    found = _parameters(world).get(name)
    if found is None:
        raise Refusal("ParameterNotFound", "")
    return {"Parameter": _parameter_view(found, request.region)}


@answers("ssm:GetParameters")
def parameters(world: World, request: Request) -> Any:
    known = _parameters(world)
    names = request.parameters["Names"]
    return {
        "Parameters": [_parameter_view(known[name], request.region) for name in names if name in known],
        "InvalidParameters": [name for name in names if name not in known],
    }


@answers("ssm:GetParametersByPath")
def by_path(world: World, request: Request) -> Any:
    asked = request.parameters
    root = asked["Path"].rstrip("/") + "/"
    if int(asked.get("MaxResults", 10)) > 10:
        raise Refusal("ValidationException", "Member must have value less than or equal to 10")
    rows = [
        _parameter_view(one, request.region)
        for name, one in sorted(_parameters(world).items())
        if name.startswith(root) and (asked.get("Recursive") or "/" not in name.removeprefix(root))
    ]
    some, mark = filters.page(rows, asked, 10)
    return {"Parameters": some} | ({"NextToken": mark} if mark else {})


def _parameters(world: World) -> dict[str, Picture]:
    return {one.parameter: one for one in world.pictures if one.parameter}


def _parameter_view(one: Picture, region: str) -> dict[str, Any]:
    assert one.parameter.startswith(PARAMETERS)
    return {
        "Name": one.parameter,
        "Type": "String",
        "Value": one.id(region),
        "Version": 7,
        "LastModifiedDate": 1793300000.0,
        "ARN": f"arn:aws:ssm:{region}::parameter{one.parameter}",
        "DataType": "aws:ec2:image",
    }
