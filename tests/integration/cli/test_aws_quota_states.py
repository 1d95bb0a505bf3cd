"""AWS's quotas as a user meets them, to the letter: by `gpuops quota aws` before anything is rented, and by `gpuops up
aws`, which looks at them before it launches. The advice is the opposite of that for capacity (test_aws_states): ask AWS
for more. What is typed and read stands in aws_quotas.txt.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuops.core.polling import Clock
from tests.fakes.aws.known import G_SPOT, G
from tests.integration.cli.tenant import Tenant

READ = Path(__file__).with_name("aws_quotas.txt")
"""By state: `== NAME (exit CODE)`, what is typed after `$`, what is printed, and after `!` what is said beside it."""
PASSING = ("asking ", "looking ", "creating ", "undoing ", "ending ")
"""How lines of progress begin: whether they are said is a matter of time."""


def quotas(**limits: float) -> Callable[[Tenant], object]:
    """A fresh account, but for these."""

    def set_up(tenant: Tenant) -> None:
        tenant.fake.fresh_account()
        for code, limit in limits.items():
            tenant.fake.quota["us-east-1", {"spot": G_SPOT, "demand": G}[code]] = limit

    return set_up


def busy(tenant: Tenant) -> None:
    """96 vCPU for spot, and a machine of 48 runs."""
    quotas(spot=96.0)(tenant)
    image = tenant.fake.image("pytorch-2.9", "us-east-1")
    tenant.fake.client("ec2").run_instances(
        ImageId=image, InstanceType="g5.12xlarge", MinCount=1, MaxCount=1, InstanceMarketOptions={"MarketType": "spot"}
    )


def lingering(tenant: Tenant) -> None:
    """The same, and it has ended; its spot request is not closed yet."""
    tenant.fake.close_s = 1000.0
    busy(tenant)
    (one,) = tenant.fake.instances()
    tenant.fake.terminate(one.id)
    tenant.fake.advance(60.0)


def asked_for(wanted: float) -> Callable[[Tenant], object]:
    """A fresh account that has asked for more two hours ago."""

    def set_up(tenant: Tenant) -> None:
        tenant.fake.fresh_account()
        tenant.fake.client("service-quotas").request_service_quota_increase(
            ServiceCode="ec2", QuotaCode=G_SPOT, DesiredValue=wanted
        )
        next(iter(tenant.fake.quota_requests.values())).created = time.time() - 7200

    return set_up


def decided(status: str) -> Callable[[Tenant], object]:
    """The same, and AWS decides at the first look."""

    def set_up(tenant: Tenant) -> None:
        asked_for(96.0)(tenant)
        (asked,) = tenant.fake.quota_requests

        def decide(request: Any, moment: str) -> None:
            if request.action == "GetRequestedServiceQuotaChange" and moment == "before":
                tenant.fake.decide(asked, status)

        tenant.fake.on_answer(decide)

    return set_up


def closed(tenant: Tenant) -> None:
    asked_for(96.0)(tenant)
    tenant.fake.decide(next(iter(tenant.fake.quota_requests)), "CASE_CLOSED")


def denied(*permissions: str, limits: Callable[[Tenant], object] = lambda _: None) -> Callable[[Tenant], object]:
    return lambda tenant: [limits(tenant), tenant.fake.deny(*permissions)]


MANY = denied("servicequotas:*", limits=quotas())
STATES: dict[str, Callable[[Tenant], object]] = {
    "a fresh account": quotas(),
    "a fresh account: up": quotas(),
    "spot and no on-demand": quotas(spot=96.0),
    "spot and no on-demand: up": quotas(spot=96.0),
    "on-demand and no spot": quotas(demand=96.0),
    "on-demand and no spot: up": quotas(demand=96.0),
    "used by what runs": busy,
    "used by what runs: up": busy,
    "used by spot requests that are not closed: up": lingering,
    "asked for already": asked_for(96.0),
    "asked for already: up": asked_for(96.0),
    "asked for already, and too little: up": asked_for(32.0),
    "asked for already: asking again": asked_for(96.0),
    "granted": decided("APPROVED"),
    "not granted": decided("DENIED"),
    "not granted, and looked at again": closed,
    "quotas that may not be read": MANY,
    "quotas that may not be read, and are 0: up": MANY,
    "quotas that may not be read, and are 0: up on demand": MANY,
    "nobody who may ask for more": denied("servicequotas:Request*", limits=quotas()),
    "nobody to be asked": quotas(),
    "P6 as spot, without a documented quota": quotas(),
    "P6 as spot: asking for more": quotas(),
    "P6 as spot: up": quotas(),
    "which quota": quotas(),
    "a quota in a region that is not switched on": quotas(),
}


@pytest.mark.parametrize("state", STATES)
def test_what_is_read(tenant: Tenant, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clock, "sleep", lambda *_: None)
    block = re.search(rf"^== {re.escape(state)} \(exit \d\)\n\$ gpuops (.*)\n(?:(?!== ).*\n)*", READ.read_text(), re.M)
    assert block, f"{READ.name} knows no {state}"
    STATES[state](tenant)
    said = tenant.type(*block[1].split())
    beside = [line for line in said.err.splitlines() if not line.startswith(PASSING)]
    read = [
        f"== {state} (exit {said.code})",
        f"$ gpuops {block[1]}",
        *said.out.splitlines(),
        *(f"! {line}" for line in beside),
    ]
    text = re.sub(r"(?<=displayId=)\d+", "1234567890", "\n".join(read))
    text = re.sub(r"(?<=; until ).*(?= at the latest)", "Mon 12:00", text)
    assert text.replace(tenant.fake.account, "123456789012") == block[0].rstrip()
    tenant.expect_nothing_left(said)


def test_every_state_of_the_file_is_played() -> None:
    assert re.findall(r"^== (.+) \(exit", READ.read_text(), re.M) == [*STATES]


@pytest.mark.parametrize(("market", "code", "name"), [
    ("--spot", G_SPOT, "All G and VT Spot Instance Requests"),
    ("--on-demand", G, "Running On-Demand G and VT instances"),
])  # fmt: skip
def test_spot_or_not_says_which_quota_where_nothing_else_is_said(
    tenant: Tenant, market: str, code: str, name: str
) -> None:
    tenant.fake.fresh_account()
    said = tenant.type("quota", "aws", market, "--request", "96", "--yes")
    (filed,) = tenant.fake.quota_requests.values()
    assert (filed.region, filed.code, filed.desired) == ("us-east-1", code, 96.0)
    assert said.out == f"asked for 96 vCPU of {name} ({code}) in us-east-1: request {filed.id}, PENDING\n"
    assert said.code == 0
