"""Spot: requests, machines that AWS takes back, prices by zone and moment."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.conftest import until
from tests.fakes.aws import FakeAWS
from tests.integration.fakes.aws.renter import G4, G5, G_SPOT, MINE, Renter, refused


def test_a_spot_request_lives_as_long_as_its_machine(renter: Renter):
    made = renter.launch("c")
    requests = [one["SpotInstanceRequestId"] for one in made]

    def told(**more: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = renter.ec2.describe_spot_instance_requests(**more)["SpotInstanceRequests"]
        return found

    (one, _) = told(SpotInstanceRequestIds=requests)
    assert (one["State"], one["Status"]["Code"], one["Type"]) == ("active", "fulfilled", "one-time")
    assert one["InstanceId"] == made[0]["InstanceId"]
    assert one["LaunchSpecification"]["InstanceType"] == G5
    assert {tag["Key"] for tag in one["Tags"]} == {"gpuops:managed", "gpuops:cluster"}
    active = [*MINE, {"Name": "state", "Values": ["open", "active"]}]
    assert len(told(Filters=active)) == 2
    renter.ec2.terminate_instances(InstanceIds=[it["InstanceId"] for it in made])
    until(lambda: not told(Filters=active), "the requests are closed")
    assert {it["Status"]["Code"] for it in told()} == {"instance-terminated-by-user"}
    wrong = {"SpotInstanceRequestIds": ["sir-12345678"]}
    assert refused(told, **wrong)[0] == "InvalidSpotInstanceRequestID.NotFound"
    assert refused(renter.ec2.stop_instances, InstanceIds=renter.ids(count=1))[0] == "UnsupportedOperation"


def test_a_machine_whose_spot_request_was_cancelled_under_it_only_stops(fake: FakeAWS, renter: Renter):
    (one,) = renter.launch(count=1)
    renter.ec2.cancel_spot_instance_requests(SpotInstanceRequestIds=[one["SpotInstanceRequestId"]])
    assert renter.states(one["InstanceId"]) <= {"pending", "running"}
    fake.power_off(one["InstanceId"])
    until(lambda: renter.states(one["InstanceId"]) == {"stopped"}, "it stops")
    assert any("volume" in line or "instance" in line for line in fake.left())


def test_aws_takes_a_machine_back_when_it_said_so(fake: FakeAWS, renter: Renter):
    taken, stays = renter.ids()
    at = fake.interrupt(taken, in_s=120.0)
    fake.rebalance(stays)
    assert fake.instance(taken).notices["instance-action"] == {
        "action": "terminate",
        "time": datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    assert "noticeTime" in fake.instance(stays).notices["rebalance"]
    fake.advance(100)
    assert renter.states(taken) == {"running"}
    fake.advance(21)
    until(lambda: renter.states(taken) == {"terminated"}, "it is gone")
    assert renter.told(taken)[0]["StateReason"]["Code"] == "Server.SpotInstanceTermination"
    assert renter.states(stays) == {"running"}
    gone = next(one for one in fake.spot_requests() if one.instance == taken)
    assert (gone.state, gone.code) == ("closed", "instance-terminated-no-capacity")
    fake.reclaim(stays)
    until(lambda: renter.states(stays) == {"terminated"}, "the other is gone without a notice")


def test_after_a_preemption_capacity_is_missing_and_its_vcpus_still_count(fake: FakeAWS, renter: Renter):
    fake.quota["us-east-1", G_SPOT] = 96.0
    for one in renter.ids("a"):
        fake.reclaim(one)
    assert refused(renter.launch, "b")[0] == "MaxSpotInstanceCountExceeded"
    fake.advance(fake.ending_s)
    assert refused(renter.launch, "b")[0] == "MaxSpotInstanceCountExceeded"
    fake.advance(fake.counted_s)
    assert refused(renter.launch, "a")[0] == "InsufficientInstanceCapacity"
    assert len(renter.launch("b", count=1)) == 1
    fake.advance(fake.dry_s)
    assert len(renter.launch("a", count=1)) == 1


def test_prices_of_spot_are_by_zone_and_moment(fake: FakeAWS, renter: Renter):
    fake.price[G5, "us-east-1a"] = 2.1
    now = datetime.now(UTC)
    asked = {"InstanceTypes": [G5, G4], "ProductDescriptions": ["Linux/UNIX"]}
    rows = renter.ec2.describe_spot_price_history(**asked, StartTime=now, EndTime=now)["SpotPriceHistory"]
    prices = {(one["InstanceType"], one["AvailabilityZone"]): float(one["SpotPrice"]) for one in rows}
    assert len(rows) == len(prices)
    assert prices[G5, "us-east-1a"] == 2.1
    assert prices[G5, "us-east-1b"] == pytest.approx(fake.price[G5, "us-east-1b"])
    assert all(one["Timestamp"] < now and one["ProductDescription"] == "Linux/UNIX" for one in rows)
    assert ("us-east-1e" in {zone for _, zone in prices}) == (("us-east-1e", G5) in fake.world.offered("us-east-1"))
    day = renter.ec2.describe_spot_price_history(InstanceTypes=[G5])["SpotPriceHistory"]
    assert len({one["ProductDescription"] for one in day}) > 1
    assert len([one for one in day if one["AvailabilityZone"] == "us-east-1a"]) > len(
        {one["ProductDescription"] for one in day}
    )
