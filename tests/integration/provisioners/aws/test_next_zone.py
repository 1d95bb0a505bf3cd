"""`up aws` where a request for machines is not answered, and the next one says no: the core against the fake."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.cli.terminal.output import Output
from gpuops.clusters import creation
from gpuops.clusters.leftovers import clear_leftovers_once
from gpuops.core.context import Context
from gpuops.core.errors import NoCapacity, NodeError, QuotaExceeded
from gpuops.core.models import Request
from gpuops.core.signals import Signals
from gpuops.guard.services import WITHOUT_GUARD
from gpuops.offers.lease_limits import LeaseLimits
from gpuops.offers.price_approval import PriceApproval
from provisioners.aws import launch, network
from tests.fakes.aws import FakeAWS, Fault
from tests.fakes.aws.known import G_SPOT
from tests.fakes.provider import FakeClock
from tests.integration.provisioners.aws.conftest import OWNER, Tenant


@pytest.fixture
def world(tenant: Tenant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    """A command's world, whose time passes only where it waits."""
    for module in (launch, network):
        monkeypatch.setattr(module, "backoff_s", lambda _attempt: 0.01)
    return Context(
        home=tenant.home,
        owner=OWNER,
        folder=tmp_path,
        env=tenant.env,
        out=Output(),
        signals=Signals(),
        services=WITHOUT_GUARD,
        yes=True,
        clock=FakeClock(),
    )


class Shared(FakeClock):
    """A clock that AWS's goes with."""

    def __init__(self, fake: FakeAWS) -> None:
        super().__init__()
        self.fake = fake

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.fake.advance(seconds)


@pytest.mark.parametrize("lacks", ["capacity", "quota at the launch", "quota as it is told"])
def test_what_replaces_others_waits_for_capacity_and_for_a_quota_that_lags(
    fake: FakeAWS, tenant: Tenant, world: Context, lacks: str
) -> None:
    """Half an hour, without being told; a first `up` does not."""
    request = Request("aws", nodes=2, gpus=4, gpu_type="g5.12xlarge", spot=True, timeout_min=0.1)
    if lacks == "capacity":
        for zone in "acdf":
            fake.capacity[f"us-east-1{zone}", "g5.12xlarge"] = 0
    else:
        fake.quota["us-east-1", G_SPOT] = 96.0
        fake.close_s = 300.0 if lacks == "quota as it is told" else 0.0  # longer than its launch counts them
    for one in tenant.make()[1:]:
        fake.reclaim(one.id)
    world.clock, fake.pending_s, before = Shared(fake), 86400.0, len(fake.asked("RunInstances"))
    with pytest.raises(NoCapacity if lacks == "capacity" else QuotaExceeded):
        creation.bring_up(world, request, name="first", ephemeral=False, wish=LeaseLimits())
    replaces = PriceApproval(first=20.0, agreed=20.0, avoided=["us-east-1b"], settled=True)
    with pytest.raises(NodeError, match="was not ready after"):
        creation.bring_up(world, request, name="lab", ephemeral=False, wish=LeaseLimits(), approval=replaces)
    errors = {one.error for one in fake.asked("RunInstances")[before:]}
    assert (
        errors
        == {
            "capacity": {"InsufficientInstanceCapacity", ""},
            "quota at the launch": {"MaxSpotInstanceCountExceeded", ""},
            "quota as it is told": {""},
        }[lacks]
    )
    assert len(fake.world.instances) == 4


@pytest.mark.parametrize(
    ("then", "code"), [("capacity", ""), ("code", "InsufficientFreeAddressesInSubnet"), ("code", "Unsupported")]
)
def test_it_goes_on_to_the_next_zone(fake: FakeAWS, world: Context, then: str, code: str) -> None:
    fake.pending_s = 86400.0
    fake.price[("g5.12xlarge", "us-east-1b")], fake.price[("g5.12xlarge", "us-east-1c")] = 1.0, 1.1
    fake.play(Fault("RunInstances"), Fault("RunInstances", nth=2, what=then, code=code))
    request = Request("aws", nodes=2, gpus=4, gpu_type="g5.12xlarge", spot=True, timeout_min=0.1)
    with pytest.raises(NodeError, match="was not ready after"):
        creation.bring_up(world, request, name="lab", ephemeral=False, wish=LeaseLimits())
    asked = fake.asked("RunInstances")
    subnets = [one.parameters["NetworkInterfaces"][0]["SubnetId"] for one in asked]
    assert [len(asked), subnets[0] == subnets[1], subnets[1] == subnets[2]] == [3, True, False]
    assert {one.zone for one in fake.world.instances.values()} == {"us-east-1c"}
    assert len(fake.world.instances) == 2
    assert {one.state for one in fake.instances()} == {"shutting-down"}, "and nobody waits for that"
    (row,) = world.ledger.list_gone_with_leftovers()
    fake.advance(fake.ending_s)
    clear_leftovers_once(world, row)
    assert list(clear_leftovers_once(world, row)) == fake.left() == world.ledger.list_gone_with_leftovers() == []
