"""RunInstances: all that it judges, and the machines that it makes."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from tests.fakes.aws import course, pricetable, wire
from tests.fakes.aws.quotatable import code
from tests.fakes.aws.records import Instance, SpotRequest
from tests.fakes.aws.requests import Answer, Kept, Refusal, Request, tags_of
from tests.fakes.aws.routing import answers
from tests.fakes.aws.world import World

MOST_USER_DATA = 16384
FREE = ("t3.micro", "t3.small", "t4g.micro", "t4g.small", "c7i-flex.large", "m7i-flex.large")
"""What an account on the Free Plan may start."""
OURS = ("Placement.Group", "IamInstanceProfile", "CapacityReservationSpecification")
"""Judged here, and unknown to moto."""
TAGGED = ("instance", "volume", "network-interface", "spot-instances-request", "elastic-gpu")


@answers("ec2:RunInstances")
def run_instances(world: World, request: Request) -> Any:
    asked = request.parameters
    backend = world.ec2(request.region)
    zone, subnet = _place(backend, asked)
    market = asked.get("InstanceMarketOptions", {}).get("MarketType", "on-demand")
    _check(world, backend, request, market)
    key = (request.region, zone, str(asked.get("ClientToken", "")))
    same = json.dumps({name: value for name, value in asked.items() if name != "ClientToken"}, default=str)
    if key[2] and key in world.tokens:
        before, reservation = world.tokens[key]
        if before != same:
            raise Refusal(
                "IdempotentParameterMismatch",
                "Arguments on this idempotent request are inconsistent with arguments used in previous request(s).",
            )
        return Kept(reservation)
    count = _count(world, request, zone, market)
    form = {**request.form, "MinCount": str(count), "MaxCount": str(count)}
    ours = (*OURS, "InstanceMarketOptions") if market == "capacity-block" else OURS
    form = {name: value for name, value in form.items() if not name.startswith(ours)}
    made = world.moto.ask(request, urlencode(form).encode())
    if made.status >= 300:
        return made
    reservation = list(backend.reservations.values())[-1]
    for one in reservation.instances:
        _register(world, request, one, market, subnet)
    if key[2]:
        world.tokens[key] = (same, reservation)
    if world.bodies:
        world.bodies.begin([world.instances[one.id] for one in reservation.instances])
    answer: Answer = wire.result(request, Kept(reservation))
    course.settle(world)
    return answer


def zone_of(world: World, request: Request) -> str:
    """The zone that a request for machines names; "" for any other."""
    if request.permission != "ec2:RunInstances":
        return ""
    try:
        return _place(world.ec2(request.region), request.parameters)[0]
    except Refusal:
        return ""


def _place(backend: Any, asked: Mapping[str, Any]) -> tuple[str, str]:
    """Zone and subnet."""
    nics = asked.get("NetworkInterfaces") or []
    wanted = asked.get("SubnetId") or (nics[0].get("SubnetId") if nics else None)
    if wanted:
        found = backend.describe_subnets(filters={"subnet-id": [wanted]})
        if not found:
            raise Refusal("InvalidSubnetID.NotFound", f"The subnet ID '{wanted}' does not exist")
        return str(found[0].availability_zone), str(wanted)
    zone = asked.get("Placement", {}).get("AvailabilityZone", "")
    defaults = backend.get_default_subnets()
    if not defaults:
        raise Refusal(
            "VPCIdNotSpecified",
            "No default VPC for this user. GroupName is only supported for EC2-Classic and default VPC.",
        )
    return zone, str((defaults.get(zone) or next(iter(defaults.values()))).id)


def _check(world: World, backend: Any, request: Request, market: str) -> None:
    asked = request.parameters
    for number in ("MinCount", "MaxCount"):
        if int(asked.get(number, 0)) < 1:
            raise Refusal("MissingParameter", f"The request must contain the parameter {number}")
    if len(base64.b64decode(asked.get("UserData") or "")) > MOST_USER_DATA:
        raise Refusal("InvalidParameterValue", "User data is limited to 16384 bytes")
    token = str(asked.get("ClientToken", ""))
    if len(token) > 64 or not token.isascii():
        raise Refusal("InvalidParameterValue", f"Value ({token}) for parameter clientToken is invalid.")
    image = asked.get("ImageId", "")
    picture = next((one for one in world.pictures if one.id(request.region) == image), None)
    if picture is None or picture.state == "gone":
        raise Refusal("InvalidAMIID.NotFound", f"The image id '[{image}]' does not exist")
    nics = asked.get("NetworkInterfaces") or []
    groups = [*asked.get("SecurityGroupIds", []), *(group for nic in nics for group in nic.get("Groups", []))]
    for group in groups:
        if backend.get_security_group_from_id(group) is None:
            raise Refusal("InvalidGroup.NotFound", f"The security group '{group}' does not exist")
    if nics and (asked.get("SecurityGroupIds") or asked.get("SubnetId")):
        raise Refusal(
            "InvalidParameterCombination",
            "Network interfaces and an instance-level security groups may not be specified on the same request",
        )
    for disk in asked.get("BlockDeviceMappings", []):
        size = disk.get("Ebs", {}).get("VolumeSize")
        if disk.get("DeviceName") == picture.root and size is not None and int(size) < picture.size:
            raise Refusal(
                "InvalidBlockDeviceMapping",
                f"Volume of size {size}GB is smaller than snapshot '{picture.snapshot}', "
                f"expect size>= {picture.size}GB",
            )
    for one in asked.get("TagSpecifications", []):
        kind = one.get("ResourceType")
        if kind not in TAGGED or (kind == "spot-instances-request" and market != "spot"):
            raise Refusal(
                "InvalidParameterValue", f"'{kind}' is not a valid taggable resource type for this operation."
            )
    profile = asked.get("IamInstanceProfile") or {}
    name = str(profile.get("Name") or str(profile.get("Arn") or "").rpartition("/")[2])
    if profile and name not in world.instance_profiles:
        field = "name" if profile.get("Name") else "arn"
        raise Refusal(
            "InvalidParameterValue",
            f"Value ({name}) for parameter iamInstanceProfile.{field} is invalid. Invalid IAM Instance Profile {field}",
        )
    group = asked.get("Placement", {}).get("GroupName")
    if group and group not in world.placement_groups:
        raise Refusal("InvalidPlacementGroup.Unknown", f"The Placement Group '{group}' is unknown.")
    _reserve(world, request, market)
    if asked.get("DryRun"):
        raise Refusal("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", 412)


def _reserve(world: World, request: Request, market: str) -> None:
    """Whether the reservation that is named has room for these machines, and what it lacks then."""
    asked = request.parameters
    target = asked.get("CapacityReservationSpecification", {}).get("CapacityReservationTarget", {})
    if not (wanted := target.get("CapacityReservationId")):
        return
    there = world.reservations.get(wanted)
    if there is None or there["region"] != request.region:
        raise Refusal("InvalidCapacityReservationId.NotFound", f"The capacity reservation '{wanted}' does not exist")
    if there["InstanceType"] != asked["InstanceType"] or (there["ReservationType"] == "capacity-block") != (
        market == "capacity-block"
    ):
        raise Refusal("InvalidParameterCombination", f"The instance does not match the reservation '{wanted}'")
    if there["AvailableInstanceCount"] < int(asked["MinCount"]):
        raise Refusal("ReservationCapacityExceeded", "Insufficient capacity in the reservation.")
    there["AvailableInstanceCount"] -= int(asked["MinCount"])


@answers("ec2:DescribeCapacityReservations")
def reservations(world: World, request: Request) -> Any:
    here = {id_: one for id_, one in world.reservations.items() if one["region"] == request.region}
    for wanted in request.parameters.get("CapacityReservationIds") or []:
        if wanted not in here:
            raise Refusal(
                "InvalidCapacityReservationId.NotFound", f"The capacity reservation '{wanted}' does not exist"
            )
    named = request.parameters.get("CapacityReservationIds") or here
    told = [{"CapacityReservationId": id_, **here[id_]} for id_ in named]
    return {"CapacityReservations": [{key: one[key] for key in one if key != "region"} for one in told]}


def _count(world: World, request: Request, zone: str, market: str) -> int:
    """How many machines there will be; refused where that is fewer than wanted."""
    asked, region = request.parameters, request.region
    kind, least, most = asked.get("InstanceType", "m1.small"), int(asked["MinCount"]), int(asked["MaxCount"])
    if not pricetable.known(kind):
        raise Refusal("InvalidParameterValue", f"Invalid value '{kind}' for InstanceType.")
    if world.plan == "FREE" and kind not in FREE:
        raise Refusal(
            "InvalidParameterCombination",
            "The specified instance type is not eligible for Free Tier. For a list of Free Tier instance types, run "
            "'describe-instance-types' with the filter 'free-tier-eligible=true'.",
        )
    zones = sorted(place for place, offered in world.offered(region) if offered == kind)
    if not zones:
        raise Refusal(
            "Unsupported",
            "The requested configuration is currently not supported. Please check the documentation for supported "
            "configurations.",
        )
    if zone and zone not in zones:
        raise Refusal(
            "Unsupported",
            f"Your requested instance type ({kind}) is not supported in your requested Availability Zone ({zone}). "
            f"Please retry your request by not specifying an Availability Zone or choosing {', '.join(zones)}.",
        )
    if market == "spot" and not world.spot_role:
        raise Refusal(
            "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
            "The provided credentials do not have permission to create the service-linked role for EC2 Spot Instances.",
            403,
        )
    if market != "capacity-block":
        _draw(world, region, kind, market, least)
    price = asked.get("InstanceMarketOptions", {}).get("SpotOptions", {}).get("MaxPrice")
    place = zone or zones[0]
    if market == "spot" and price and float(price) < world.price[kind, place]:
        raise Refusal(
            "SpotMaxPriceTooLow",
            f"Your Spot request price of {price} is lower than the minimum required Spot request fulfillment price of "
            f"{world.price[kind, place]}.",
        )
    free = world.free(place, kind)
    if free < least:
        others = [one for one in zones if one != place and world.free(one, kind) >= least]
        raise _no_capacity(kind, place, market, others)
    return min(most, free)


def _draw(world: World, region: str, kind: str, market: str, count: int) -> None:
    quota = code(kind, market)
    limit = world.quota[region, quota] if quota else None
    if limit is None or world.used(region, quota) + count * pricetable.vcpus(kind) <= limit:
        return
    if market == "spot":
        raise Refusal("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
    raise Refusal(
        "VcpuLimitExceeded",
        f"You have requested more vCPU capacity than your current vCPU limit of {limit:.0f} allows for the instance "
        "bucket that the specified instance type belongs to. Please visit "
        "http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit.",
    )


def _no_capacity(kind: str, zone: str, market: str, others: list[str]) -> Refusal:
    elsewhere = f" or choosing {', '.join(others)}" if others else ""
    if market == "spot":
        said = "There is no Spot capacity available that matches your request."
        return Refusal("InsufficientInstanceCapacity", said, 500)
    return Refusal(
        "InsufficientInstanceCapacity",
        f"We currently do not have sufficient {kind} capacity in the Availability Zone you requested ({zone}). Our "
        f"system will be working on provisioning additional capacity. You can currently get {kind} capacity by not "
        f"specifying an Availability Zone in your request{elsewhere}.",
        500,
    )


def _register(world: World, request: Request, made: Any, market: str, subnet: str) -> None:
    asked, now = request.parameters, world.now()
    specs = asked.get("TagSpecifications")
    nics = asked.get("NetworkInterfaces") or [{}]
    for at, nic in made.nics.items():
        nic.add_tags(tags_of(specs, "network-interface"))
        nic.delete_on_termination = (nics[at] if at < len(nics) else {}).get("DeleteOnTermination", True)
    picture = next(one for one in world.pictures if one.id(request.region) == made.image_id)
    said = {one.get("DeviceName"): one.get("Ebs", {}) for one in asked.get("BlockDeviceMappings", [])}
    for name, disk in made.get_block_device_mapping:
        if not said:
            world.ec2(request.region).volumes[disk.volume_id].size = picture.size
        if name == picture.root or not said:
            disk.delete_on_termination = said.get(name, {}).get("DeleteOnTermination", True)
    data = base64.b64decode(asked.get("UserData") or "").decode(errors="replace")
    zone = str(made.availability_zone)
    one = Instance(
        made.id, request.region, zone, made.instance_type, market, int(made.ami_launch_index),
        data, made.instance_initiated_shutdown_behavior, made, now,
    )  # fmt: skip
    made.state_reason = None
    made.lifecycle = "spot" if market == "spot" else None
    if market == "spot":
        options = asked["InstanceMarketOptions"].get("SpotOptions", {})
        groups = [{"GroupId": group, "GroupName": ""} for group in one.groups]
        one.request = SpotRequest(
            f"sir-{secrets.token_hex(4)}", request.region, zone, made.instance_type, made.image_id, subnet, groups,
            tags_of(specs, "spot-instances-request"), now, one.id, options.get("MaxPrice", ""),
        )  # fmt: skip
        world.spot_requests[one.request.id] = one.request
        made.spot_instance_request_id = one.request.id
    world.instances[one.id] = one
    if world.bodies:
        world.bodies.place(one)
    one.state = "pending"
    one.public, made.nics[0].public_ip = made.nics[0].public_ip, None
