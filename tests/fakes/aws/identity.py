"""Who asks: one user of one account."""

from __future__ import annotations

from typing import Any

from tests.fakes.aws.requests import Refusal, Request, Unreachable
from tests.fakes.aws.routing import answers
from tests.fakes.aws.world import World


@answers("sts:GetCallerIdentity")
def identity(world: World, request: Request) -> Any:  # noqa: ARG001
    return {"UserId": "AIDAEXAMPLEOFGPUOPS00", "Account": world.account, "Arn": world.arn()}


@answers("freetier:GetAccountPlanState")
def plan(world: World, request: Request) -> Any:
    if request.region != "us-east-1":
        raise Unreachable
    if not world.plan:
        raise Refusal("ResourceNotFoundException", "The account plan was not found.")
    return {"accountId": world.account, "accountPlanType": world.plan, "accountPlanStatus": "ACTIVE"}
