"""Security groups: seen late, in use, and without a network to be in."""

from __future__ import annotations

import re
from typing import Any

from tests.fakes.aws.requests import Answer, Refusal, Request
from tests.fakes.aws.routing import answers
from tests.fakes.aws.world import World


@answers("ec2:CreateSecurityGroup")
def create(world: World, request: Request) -> Any:
    backend = world.ec2(request.region)
    vpc = request.parameters.get("VpcId")
    if vpc is None:
        default = backend.get_default_vpc()
        if default is None:
            raise Refusal("VPCIdNotSpecified", "No default VPC for this user")
        vpc = default.id
    if vpc not in backend.vpcs:
        raise Refusal("InvalidVpcID.NotFound", f"The vpc ID '{vpc}' does not exist")
    name = request.parameters.get("GroupName", "")
    if any(held[1] == request.region and held[2] == vpc and held[4].name == name for held in world.withheld):
        raise Refusal("InvalidGroup.Duplicate", f"The security group '{name}' already exists for VPC '{vpc}'")
    answer = world.moto.ask(request)
    if answer.status < 300 and world.lag_s:
        found = re.search(rb"<groupId>(sg-[0-9a-f]+)</groupId>", answer.body)
        assert found, answer.body
        one = found.group(1).decode()
        held = (world.now() + world.lag_s, request.region, vpc, one, backend.groups[vpc].pop(one))
        world.withheld.append(held)
    return answer


@answers("ec2:DeleteSecurityGroup")
def delete(world: World, request: Request) -> Any:
    backend = world.ec2(request.region)
    one = request.parameters.get("GroupId") or ""
    group = backend.get_security_group_from_id(one)
    if group is not None:
        if any(one in (member.id for member in nic.group_set) for nic in backend.enis.values()):
            raise Refusal("DependencyViolation", f"resource {one} has a dependent object")
        others = [it for row in backend.groups.values() for it in row.values() if it.id != one]
        if any(_speaks_of(it, one) for it in others):
            raise Refusal("DependencyViolation", f"resource {one} has a dependent object")
        if group.is_default:
            raise Refusal("CannotDelete", f'the specified group: "{one}" name: "default" cannot be deleted by a user')
    return world.moto.ask(request)


def _speaks_of(group: Any, one: str) -> bool:
    return any(
        one == member.get("GroupId")
        for rule in [*group.ingress_rules, *group.egress_rules]
        for member in [rule.source_group or {}]
    )


@answers(
    "ec2:AuthorizeSecurityGroupIngress", "ec2:RevokeSecurityGroupIngress",
    "ec2:AuthorizeSecurityGroupEgress", "ec2:RevokeSecurityGroupEgress",
)  # fmt: skip
def change(world: World, request: Request) -> Answer:
    world.ec2(request.region)
    answer = world.moto.ask(request)
    if world.bodies and answer.status < 300:
        world.bodies.admit(request.region, request.parameters.get("GroupId", ""))
    return answer
