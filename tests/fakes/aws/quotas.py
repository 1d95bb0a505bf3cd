"""Service Quotas: what an account may run, and its requests for more."""

from __future__ import annotations

import secrets
from typing import Any

from tests.fakes.aws import filters
from tests.fakes.aws.quotatable import DEFAULTS, NAMES, OPEN, QuotaRequest
from tests.fakes.aws.requests import Refusal, Request
from tests.fakes.aws.routing import answers
from tests.fakes.aws.world import World

EC2 = {"ServiceCode": "ec2", "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)"}
REMEMBERED_S = 90 * 86400


def _code(request: Request) -> str:
    asked = request.parameters
    if asked.get("ServiceCode") != "ec2":
        raise Refusal("NoSuchResourceException", "The request failed because the specified service does not exist.")
    if asked.get("QuotaCode") not in NAMES:
        raise Refusal(
            "NoSuchResourceException",
            "The request failed because the specified quota does not exist or is not available in this region.",
        )
    return str(asked["QuotaCode"])


def _view(world: World, region: str, code: str, value: float) -> dict[str, Any]:
    classes = {"L-3819A6DF": "G/Spot", "L-DB2E81BA": "G/OnDemand", "L-417A185B": "P/OnDemand", "L-7212CCBC": "P/Spot"}
    dimensions = {"Service": "EC2", "Resource": "vCPU", "Type": "Resource", "Class": classes.get(code, "Standard")}
    return {
        **EC2,
        "QuotaArn": f"arn:aws:servicequotas:{region}:{world.account}:ec2/{code}",
        "QuotaCode": code,
        "QuotaName": NAMES[code],
        "Value": float(value),
        "Unit": "None",
        "Adjustable": True,
        "GlobalQuota": False,
        "QuotaAppliedAtLevel": "ACCOUNT",
        "UsageMetric": {
            "MetricNamespace": "AWS/Usage",
            "MetricName": "ResourceCount",
            "MetricDimensions": dimensions,
            "MetricStatisticRecommendation": "Maximum",
        },
    }


@answers("servicequotas:GetServiceQuota")
def applied(world: World, request: Request) -> Any:
    settle(world)
    code = _code(request)
    value = world.quota[request.region, code]
    if value is None:
        raise Refusal("NoSuchResourceException", "The request failed because the specified quota does not exist.")
    return {"Quota": _view(world, request.region, code, value)}


@answers("servicequotas:GetAWSDefaultServiceQuota")
def default(world: World, request: Request) -> Any:
    code = _code(request)
    return {"Quota": _view(world, request.region, code, DEFAULTS[code])}


@answers("servicequotas:ListServiceQuotas")
def listed(world: World, request: Request) -> Any:
    settle(world)
    values = {code: world.quota[request.region, code] for code in NAMES}
    rows = [_view(world, request.region, code, value) for code, value in values.items() if value is not None]
    return _page("Quotas", rows, request)


@answers("servicequotas:ListAWSDefaultServiceQuotas")
def defaults(world: World, request: Request) -> Any:
    return _page("Quotas", [_view(world, request.region, code, value) for code, value in DEFAULTS.items()], request)


@answers("servicequotas:RequestServiceQuotaIncrease")
def ask_for_more(world: World, request: Request) -> Any:
    code, wanted = _code(request), float(request.parameters["DesiredValue"])
    for one in world.quota_requests.values():
        if (one.region, one.code) == (request.region, code) and one.status in OPEN:
            raise Refusal(
                "ResourceAlreadyExistsException", "Only one open service quota increase request is allowed per quota."
            )
    has = world.quota[request.region, code]
    if wanted <= (DEFAULTS[code] if has is None else has):
        raise Refusal(
            "IllegalArgumentException", "You must provide a quota value greater than the current quota value."
        )
    now = world.now()
    made = QuotaRequest(secrets.token_hex(16) + secrets.token_hex(4), request.region, code, wanted, now, updated=now)
    world.quota_requests[made.id] = made
    return {"RequestedQuota": _request_view(world, made)}


def _request_view(world: World, one: QuotaRequest) -> dict[str, Any]:
    view = {
        **EC2,
        "Id": one.id,
        "QuotaCode": one.code,
        "QuotaName": NAMES[one.code],
        "DesiredValue": one.desired,
        "Status": one.status,
        "Created": one.created,
        "LastUpdated": max(one.updated, one.created),
        "Requester": f'{{"accountId":"{world.account}","callerArn":"{world.arn()}"}}',
        "QuotaArn": f"arn:aws:servicequotas:{one.region}:{world.account}:ec2/{one.code}",
        "GlobalQuota": False,
        "Unit": "None",
        "QuotaRequestedAtLevel": "ACCOUNT",
    }
    return view | ({"CaseId": one.case} if one.case else {})


@answers(
    "servicequotas:ListRequestedServiceQuotaChangeHistoryByQuota",
    "servicequotas:ListRequestedServiceQuotaChangeHistory",
)
def history(world: World, request: Request) -> Any:
    asked = request.parameters
    if request.action.endswith("ByQuota"):
        _code(request)
    rows = [
        _request_view(world, one)
        for one in sorted(world.quota_requests.values(), key=lambda one: -one.created)
        if one.region == request.region
        and asked.get("QuotaCode", one.code) == one.code
        and asked.get("Status", one.status) == one.status
        and (one.status in OPEN or one.updated > world.now() - REMEMBERED_S)
    ]
    return _page("RequestedQuotas", rows, request)


@answers("servicequotas:GetRequestedServiceQuotaChange")
def one_request(world: World, request: Request) -> Any:
    found = world.quota_requests.get(request.parameters.get("RequestId", ""))
    if found is None or found.region != request.region:
        raise Refusal("NoSuchResourceException", "The request failed because the specified resource does not exist.")
    return {"RequestedQuota": _request_view(world, found)}


def settle(world: World) -> None:
    """What was granted takes effect when its time has come."""
    for grant in list(world.grants):
        at, region, code, value = grant
        if world.now() >= at:
            world.quota[region, code] = value
            world.grants.remove(grant)


def decide(world: World, one: str, status: str, value: float | None = None) -> None:
    """AWS's answer to a request; APPROVED is in force after `grants_s`, with another value where one is given."""
    found = world.quota_requests[one]
    found.status, found.updated = status, world.now()
    if status in ("CASE_OPENED", "CASE_CLOSED", "DENIED") and not found.case:
        found.case = str(secrets.randbelow(9 * 10**9) + 10**9)
    if status == "APPROVED" or value is not None:
        granted = found.desired if value is None else value
        world.grants.append((world.now() + world.grants_s, found.region, found.code, granted))
        settle(world)


def _page(key: str, rows: list[dict[str, Any]], request: Request) -> dict[str, Any]:
    some, mark = filters.page(rows, request.parameters, 100)
    return {key: some} | ({"NextToken": mark} if mark else {})
