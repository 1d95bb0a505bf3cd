"""Machines that are there: told of, ended, stopped, and what they print."""

from __future__ import annotations

import base64
import re
from typing import Any

from tests.fakes.aws import course, filters
from tests.fakes.aws.records import BY_USER, CODES, Instance
from tests.fakes.aws.requests import Kept, Refusal, Request
from tests.fakes.aws.routing import answers
from tests.fakes.aws.world import World


def named(world: World, request: Request, ids: list[str] | None = None) -> list[Instance]:
    """The machines that a request names; refused where one is not there, or not there yet."""
    wanted = ids or request.parameters.get("InstanceIds") or []
    for one in wanted:
        if not re.fullmatch(r"i-[0-9a-f]{8,17}", one):
            raise Refusal("InvalidInstanceID.Malformed", f'Invalid id: "{one}"')
    missing = [one for one in wanted if not _there(world, request, one)]
    if missing:
        plural = "s" if len(missing) > 1 else ""
        verb = "do" if plural else "does"
        raise Refusal("InvalidInstanceID.NotFound", f"The instance ID{plural} '{', '.join(missing)}' {verb} not exist")
    return [world.instances[one] for one in wanted]


def _there(world: World, request: Request, one: str) -> bool:
    found = world.instances.get(one)
    return bool(found and found.region == request.region and world.visible(found))


def _dry(request: Request) -> None:
    if request.parameters.get("DryRun"):
        raise Refusal("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", 412)


@answers("ec2:DescribeInstances")
def describe(world: World, request: Request) -> Any:
    _dry(request)
    chosen = named(world, request)
    rows = []
    for reservation in world.ec2(request.region).reservations.values():
        members = [
            one.moto
            for one in (world.instances.get(made.id) for made in reservation.instances)
            if one
            and world.visible(one)
            and (not chosen or one in chosen)
            and filters.fits(request.parameters.get("Filters"), _values(one), one.tags)
        ]
        if members:
            rows.append({"ReservationId": reservation.id, "OwnerId": world.account, "Groups": [], "Instances": members})
    some, mark = filters.page(rows, request.parameters, 1000)
    return Kept({"Reservations": some, "NextToken": mark})


def _values(one: Instance) -> dict[str, Any]:
    return {
        "instance-id": one.id,
        "instance-state-name": one.state,
        "instance-state-code": str(CODES[one.state]),
        "instance-type": one.type,
        "availability-zone": one.zone,
        "instance-lifecycle": "spot" if one.market == "spot" else None,
        "client-token": one.moto.client_token,
        "spot-instance-request-id": one.request.id if one.request else None,
        "image-id": one.moto.image_id,
        "vpc-id": one.moto.vpc_id,
        "subnet-id": one.moto.subnet_id,
        "instance.group-id": one.groups,
        "private-ip-address": one.private_address,
        "ip-address": one.address,
    }


@answers("ec2:TerminateInstances")
def terminate(world: World, request: Request) -> Any:
    _dry(request)
    rows = []
    for one in named(world, request):
        before = one.state
        course.end(world, one, BY_USER)
        rows.append(_change(one, before, "terminated" if before == "terminated" else "shutting-down"))
    return {"TerminatingInstances": rows}


@answers("ec2:StopInstances")
def stop(world: World, request: Request) -> Any:
    _dry(request)
    chosen = named(world, request)
    for one in chosen:
        if one.market == "spot":
            raise Refusal(
                "UnsupportedOperation",
                f"You can't stop the Spot Instance '{one.id}' because it is associated with a one-time Spot Instance "
                "request. You can only stop Spot Instances associated with persistent Spot Instance requests.",
            )
    rows = []
    for one in chosen:
        before = one.state
        course.halt(world, one, BY_USER)
        rows.append(_change(one, before, one.state))
    return {"StoppingInstances": rows}


def _change(one: Instance, before: str, now: str) -> dict[str, Any]:
    return {
        "InstanceId": one.id,
        "PreviousState": {"Code": CODES[before], "Name": before},
        "CurrentState": {"Code": CODES[now], "Name": now},
    }


@answers("ec2:GetConsoleOutput")
def console(world: World, request: Request) -> Any:
    (one,) = named(world, request, [request.parameters["InstanceId"]])
    text = world.console.get(one.id, "")
    if world.bodies and not text:
        text = world.bodies.console(one)
    return {
        "InstanceId": one.id,
        "Output": base64.b64encode(text.encode()[-65536:]).decode(),
        "Timestamp": "2026-11-20T08:00:00Z",
    }


@answers("ec2:ModifyInstanceAttribute")
def modify(world: World, request: Request) -> Any:
    one = world.instances.get(request.parameters.get("InstanceId", ""))
    if one and one.market == "spot" and "InstanceInitiatedShutdownBehavior" in request.parameters:
        raise Refusal(
            "UnsupportedOperation", "Modifying instanceInitiatedShutdownBehavior is not supported for spot instances."
        )
    return world.moto.ask(request)
