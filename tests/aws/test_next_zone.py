"""`up aws` where a request for machines is not answered, and the next one says no: the core against the fake."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from gpuops import cluster as clusters
from gpuops.errors import NodeError
from gpuops.guard import LOCK
from gpuops.models import Request
from gpuops.output import Output
from gpuops.signals import Signals
from gpuops.terms import LeaseWish
from gpuops.world import World
from provisioners.aws import launch, network
from tests.aws.conftest import OWNER, Tenant
from tests.fakes.aws import FakeAWS, Fault
from tests.fakes.provider import FakeClock


@pytest.fixture
def world(tenant: Tenant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A command's world, whose time passes only where it waits."""
    for module in (launch, network):
        monkeypatch.setattr(module, "lull", lambda _attempt: 0.01)
    with FileLock(tenant.home / LOCK):  # to hold it is to be the guard
        yield World(home=tenant.home, owner=OWNER, folder=tmp_path, env=tenant.env, out=Output(), signals=Signals(),
                    yes=True, clock=FakeClock())  # fmt: skip


@pytest.mark.parametrize(
    ("then", "code"), [("capacity", ""), ("code", "InsufficientFreeAddressesInSubnet"), ("code", "Unsupported")]
)
def test_it_goes_on_to_the_next_zone(fake: FakeAWS, world: World, then: str, code: str) -> None:
    fake.pending_s = 86400.0
    fake.price[("g5.12xlarge", "us-east-1b")], fake.price[("g5.12xlarge", "us-east-1c")] = 1.0, 1.1
    fake.play(Fault("RunInstances"), Fault("RunInstances", nth=2, what=then, code=code))
    request = Request("aws", nodes=2, gpus=4, gpu_type="g5.12xlarge", spot=True, timeout_min=0.1)
    with pytest.raises(NodeError, match="was not ready after"):
        clusters.bring_up(world, request, name="lab", ephemeral=False, wish=LeaseWish())
    asked = fake.asked("RunInstances")
    subnets = [one.parameters["NetworkInterfaces"][0]["SubnetId"] for one in asked]
    assert [len(asked), subnets[0] == subnets[1], subnets[1] == subnets[2]] == [3, True, False]
    assert {one.zone for one in fake.world.instances.values()} == {"us-east-1c"}
    assert len(fake.world.instances) == 2
    assert fake.left() == []
