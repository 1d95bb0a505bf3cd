"""Spot requests, prices and scores."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from tests.fakes.aws import filters
from tests.fakes.aws.records import SpotRequest
from tests.fakes.aws.requests import Refusal, Request, tag_list
from tests.fakes.aws.routing import answers
from tests.fakes.aws.world import World

LINUX = ("Linux/UNIX", "Linux/UNIX (Amazon VPC)")
OTHERS = {"Windows": 1.6, "SUSE Linux": 1.2, "Red Hat Enterprise Linux": 1.3}
CHANGED_S = 5 * 3600.0
"""How long ago the price was another one."""


def _chosen(world: World, request: Request) -> list[SpotRequest]:
    wanted = request.parameters.get("SpotInstanceRequestIds") or []
    mine = {
        one.id: one
        for one in world.spot_requests.values()
        if one.region == request.region and world.now() >= one.created + world.lag_s
    }
    for one in wanted:
        if one not in mine:
            raise Refusal(
                "InvalidSpotInstanceRequestID.NotFound", f"The spot instance request ID '{one}' does not exist"
            )
    return [mine[one] for one in wanted] if wanted else list(mine.values())


@answers("ec2:DescribeSpotInstanceRequests")
def describe(world: World, request: Request) -> Any:
    rows = [
        _view(one)
        for one in _chosen(world, request)
        if filters.fits(
            request.parameters.get("Filters"),
            {
                "spot-instance-request-id": one.id,
                "state": one.state,
                "instance-id": one.instance,
                "status-code": one.code,
                "launch.instance-type": one.type,
                "launched-availability-zone": one.zone,
            },
            one.tags,
        )
    ]
    some, mark = filters.page(rows, request.parameters, 1000)
    return {"SpotInstanceRequests": some, "NextToken": mark}


def _view(one: SpotRequest) -> dict[str, Any]:
    created = datetime.fromtimestamp(one.created, UTC)
    return {
        "SpotInstanceRequestId": one.id,
        "State": one.state,
        "Status": {"Code": one.code, "Message": one.said, "UpdateTime": created},
        "Type": "one-time",
        "InstanceId": one.instance or None,
        "CreateTime": created,
        "LaunchedAvailabilityZone": one.zone,
        "ProductDescription": "Linux/UNIX",
        "InstanceInterruptionBehavior": "terminate",
        "SpotPrice": one.price or None,
        "LaunchSpecification": {
            "ImageId": one.image,
            "InstanceType": one.type,
            "SecurityGroups": one.groups,
            "SubnetId": one.subnet,
            "Placement": {"AvailabilityZone": one.zone},
        },
        "Tags": tag_list(one.tags),
    }


@answers("ec2:CancelSpotInstanceRequests")
def cancel(world: World, request: Request) -> Any:
    rows = []
    for one in _chosen(world, request):
        if one.state in ("open", "active"):
            one.state = "cancelled"
            machine = world.instances.get(one.instance)
            one.code = "request-canceled-and-instance-running" if machine and machine.lives else "canceled-by-user"
        rows.append({"SpotInstanceRequestId": one.id, "State": one.state})
    return {"CancelledSpotInstanceRequests": rows}


@answers("ec2:DescribeSpotPriceHistory")
def prices(world: World, request: Request) -> Any:
    """What was paid between two moments, and the price that held when they began."""
    asked = request.parameters
    now = world.now()
    begin = _moment(asked.get("StartTime"), now - 90 * 86400)
    until = _moment(asked.get("EndTime"), now)
    rows = []
    for zone, kind in sorted(world.offered(request.region)):
        if asked.get("InstanceTypes") and kind not in asked["InstanceTypes"]:
            continue
        if asked.get("AvailabilityZone", zone) != zone:
            continue
        for product, times in ({LINUX[0]: 1.0} | OTHERS).items():
            wanted = asked.get("ProductDescriptions")
            if wanted and product not in (one.removesuffix(" (Amazon VPC)") for one in wanted):
                continue
            values = {"instance-type": kind, "availability-zone": zone, "product-description": product}
            if filters.fits(asked.get("Filters"), values, {}):
                price = world.price[kind, zone] * times
                rows += (
                    [
                        _row(zone, kind, product, amount, at)
                        for amount, at, next_at in (
                            (price, now - CHANGED_S, now),
                            (price * 1.07, now - 3 * CHANGED_S, now - CHANGED_S),
                        )
                        if at <= until and next_at > begin
                    ]
                    if begin < now - 60
                    else [_row(zone, kind, product, price, now - CHANGED_S)]
                )
    some, mark = filters.page(rows, asked, 1000)
    return {"SpotPriceHistory": some, "NextToken": mark or ""}


def _row(zone: str, kind: str, product: str, amount: float, at: float) -> dict[str, Any]:
    return {
        "AvailabilityZone": zone,
        "InstanceType": kind,
        "ProductDescription": product,
        "SpotPrice": f"{amount:.6f}",
        "Timestamp": datetime.fromtimestamp(at, UTC),
    }


def _moment(given: Any, default: float) -> float:
    if given is None:
        return default
    if isinstance(given, datetime):
        return (given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp()
    return datetime.fromisoformat(str(given).replace("Z", "+00:00")).timestamp() if given else time.time()


@answers("ec2:GetSpotPlacementScores")
def scores(world: World, request: Request) -> Any:
    asked = request.parameters
    rows = []
    for region in asked.get("RegionNames") or [request.region]:
        if asked.get("SingleAvailabilityZone"):
            rows += [
                {
                    "Region": region,
                    "AvailabilityZoneId": zone.zone_id,
                    "Score": world.scores.get((region, zone.name), 5),
                }
                for zone in world.ec2(region).describe_availability_zones()
            ]
        else:
            rows.append({"Region": region, "Score": world.scores.get((region, ""), 5)})
    return {"SpotPlacementScores": rows}
