"""Capacity that was reserved: it says which machines and where, and a Capacity Block until when."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest

from gpuops.core.errors import NoCapacity, QuotaExceeded, Rejected
from gpuops.core.models import Offer, Request
from gpuops.offers.lease_limits import LeaseLimits, within_offer
from provisioners.aws.quotas import G_ON_DEMAND
from provisioners.aws.reservations import END_EARLY_S
from tests.fakes.aws import FakeAWS
from tests.integration.provisioners.aws.conftest import Tenant

ID = "cr-0123456789abcdef0"


def reserve(fake: FakeAWS, region: str = "us-east-1", **more: Any) -> None:
    fake.reservations[ID] = {
        "region": region, "InstanceType": "g5.12xlarge", "AvailabilityZone": f"{region}b", "State": "active",
        "InstancePlatform": "Linux/UNIX", "ReservationType": "default", "TotalInstanceCount": 2,
        "AvailableInstanceCount": 2, **more,
    }  # fmt: skip


def offers(tenant: Tenant, **more: Any) -> list[Offer]:
    request = Request("aws", **{"nodes": 2, "options": {"reservation": ID}, **more})
    return list(tenant.provider.offers(request))


def launched(fake: FakeAWS) -> dict[str, Any]:
    return [one for one in fake.requests if one.action == "RunInstances"][-1].parameters


def test_a_reservation_says_type_and_zone(fake: FakeAWS, tenant: Tenant) -> None:
    reserve(fake)
    (offer,) = offers(tenant)
    assert offer.id == "us-east-1/us-east-1b/g5.12xlarge/on-demand"
    assert offer.prices[0].per_hour == pytest.approx(2 * fake.on_demand["g5.12xlarge", "us-east-1"])
    assert offer.data["ends"] is None
    assert within_offer(LeaseLimits(), offer) == LeaseLimits()
    tenant.make(offer=offer)
    target = {"CapacityReservationTarget": {"CapacityReservationId": ID}}
    assert launched(fake)["CapacityReservationSpecification"] == target
    assert "InstanceMarketOptions" not in launched(fake)
    with pytest.raises(NoCapacity, match=f"the reservation {ID} has room for 0 machines now, and 2 are asked for"):
        offers(tenant)


def test_it_is_found_in_the_region_that_has_it(fake: FakeAWS, tenant: Tenant) -> None:
    reserve(fake, "us-west-2")
    (offer,) = offers(tenant, region="us-east-1,us-west-2")
    assert offer.region == "us-west-2"
    with pytest.raises(Rejected, match=f"there is no reservation {ID} in us-east-1") as caught:
        offers(tenant)
    assert caught.value.hint.startswith("name its region")


def test_a_capacity_block_is_paid_counts_nothing_and_bounds_the_lease(fake: FakeAWS, tenant: Tenant) -> None:
    ends = float(int(time.time()) + 7200)
    reserve(fake, ReservationType="capacity-block", EndDate=datetime.fromtimestamp(ends, UTC))
    fake.quota["us-east-1", G_ON_DEMAND.code] = 0.0
    (offer,) = offers(tenant)
    assert offer.prices[0].per_hour == 0 < offer.per_hour, "its disks and addresses cost what they always do"
    assert offer.notes == ()
    assert within_offer(LeaseLimits(max_hours=24), offer) == LeaseLimits(max_hours=24, until=ends - END_EARLY_S)
    assert within_offer(LeaseLimits(until=ends - 7000), offer).until == ends - 7000
    tenant.make(offer=offer)
    assert launched(fake)["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    fake.reservations[ID].update(ReservationType="default", AvailableInstanceCount=2)
    with pytest.raises(QuotaExceeded):
        offers(tenant)


@pytest.mark.parametrize(
    ("more", "say"),
    [
        ({"State": "expired"}, f"the reservation {ID} is expired"),
        (
            {"State": "scheduled", "StartDate": datetime(2027, 1, 2, 11, 30, tzinfo=UTC)},
            f"the reservation {ID} is scheduled and begins at 2027-01-02 11:30 UTC",
        ),
        (
            {"InstancePlatform": "Windows"},
            f"the reservation {ID} is for Windows, and gpuops starts Linux without a licence",
        ),
    ],
)
def test_one_that_cannot_be_used_is_said(fake: FakeAWS, tenant: Tenant, more: dict[str, Any], say: str) -> None:
    reserve(fake, **more)
    with pytest.raises(Rejected) as caught:
        offers(tenant)
    assert caught.value.message == say
    assert caught.value.hint
