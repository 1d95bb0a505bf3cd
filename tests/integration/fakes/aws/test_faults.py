"""What goes wrong with a request, who may spoil it, and what the fake keeps of it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from botocore.exceptions import BotoCoreError, ConnectionClosedError, ReadTimeoutError
from botocore.parsers import ResponseParserError

from tests.conftest import HANG_S, until
from tests.fakes.aws import FakeAWS, Fault, Request
from tests.integration.fakes.aws.renter import G4, G5, Renter, refused


@pytest.mark.parametrize(
    ("what", "heard", "there"),
    [
        ("500", ("InternalError", 500), 0),
        ("broken", ("InternalError", 500), 2),
        ("503", ("ServiceUnavailable", 503), 0),
        ("throttle", ("RequestLimitExceeded", 503), 0),
        ("denied", ("UnauthorizedOperation", 403), 0),
        ("capacity", ("InsufficientInstanceCapacity", 500), 0),
        ("lost", None, 2),
        ("cut", None, 0),
        ("silent", None, 2),
        ("timeout", None, 0),
        ("half", None, 2),
        ("garbage", None, 0),
    ],
)
def test_a_fault_is_heard_and_done_or_not_done(
    fake: FakeAWS, renter: Renter, what: str, heard: tuple[str, int] | None, there: int
):
    patient, hangs = renter.ec2, what in ("silent", "timeout")
    fake.play(Fault("RunInstances", nth=2, what=what, hang_s=10 * HANG_S))
    renter.ids("a")
    if hangs:
        renter.ec2 = fake.client("ec2", read_timeout=0.5)
    if heard:
        assert refused(renter.launch, "b") == heard
    else:
        with pytest.raises((BotoCoreError, ResponseParserError)) as caught:
            renter.launch("b")
        if what in ("lost", "cut"):
            assert isinstance(caught.value, ConnectionClosedError)
        assert isinstance(caught.value, ReadTimeoutError) == hangs
    renter.ec2 = patient
    until(lambda: len([one for one in fake.instances() if one.zone == "us-east-1b"]) == there, f"{there} are there")
    assert len(renter.launch("c")) == 2  # the third is none of the fault's


def test_faults_can_be_of_one_zone_type_region_or_of_many(fake: FakeAWS, renter: Renter):
    fake.play(
        Fault("RunInstances", zone="us-east-1a", times=None, what="capacity"),
        Fault("ec2:Describe*", region="eu-west-1", what="throttle"),
        Fault("RunInstances", type=G4, what="code", code="InstanceLimitExceeded", http=400),
    )
    assert [refused(renter.launch, "a")[0] for _ in range(2)] == ["InsufficientInstanceCapacity"] * 2
    assert renter.launch("b")
    assert refused(renter.launch, "b", InstanceType=G4)[0] == "InstanceLimitExceeded"
    assert refused(fake.client("ec2", "eu-west-1").describe_vpcs)[0] == "RequestLimitExceeded"
    assert fake.client("ec2", "eu-west-1").describe_vpcs()["Vpcs"]


def test_callbacks_know_who_asks_and_may_drop_lose_or_spoil(fake: FakeAWS, renter: Renter):
    moments: list[tuple[str, str, int]] = []

    def called(request: Request, moment: str) -> None:
        moments.append((request.permission, moment, request.client_pid))
        if moment == "before" and request.action == "RunInstances":
            zone = request.parameters["NetworkInterfaces"][0]["SubnetId"]
            if zone == renter.subnets["us-east-1a"]:
                request.drop()
            elif zone == renter.subnets["us-east-1b"]:
                request.lose()
            else:
                request.fault = Fault("RunInstances", what="broken")

    fake.on_answer(called)
    for zone in "ab":
        with pytest.raises(ConnectionClosedError):
            renter.launch(zone)
    assert refused(renter.launch, "c")[0] == "InternalError"
    assert sorted(one.zone for one in fake.instances()) == ["us-east-1b"] * 2 + ["us-east-1c"] * 2
    until(lambda: moments[-1][1] == "sent", "the last is told, a moment after its answer")
    launches = [moment for action, moment, _ in moments if action == "ec2:RunInstances"]
    assert launches == ["before", "before", "after", "before", "after", "sent"]
    assert {pid for _, _, pid in moments} == {os.getpid()}


def test_an_unknown_request_is_refused_and_told_at_the_end(tmp_path: Path):
    fake = FakeAWS(tmp_path / "aws")
    assert refused(fake.client("ec2").describe_capacity_blocks)[0] == "InvalidAction"
    with pytest.raises(AssertionError, match="DescribeCapacityBlocks"):
        fake.close()


def test_time_passes_for_nobody_asking(fake: FakeAWS, renter: Renter):
    ids = renter.ids()
    fake.interrupt(ids[0], in_s=0.2)
    deadline = time.monotonic() + HANG_S
    while fake.world.instances[ids[0]].state != "terminated":  # not by asking the fake, which would settle it
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_requests_are_kept_with_what_was_asked_and_answered(fake: FakeAWS, renter: Renter):
    fake.capacity["us-east-1a", G5] = 0
    refused(renter.launch, "a", ClientToken="t")
    (one,) = fake.asked("ec2:RunInstances")
    assert (one.region, one.status, one.error) == ("us-east-1", 500, "InsufficientInstanceCapacity")
    assert one.parameters["ClientToken"] == "t"
    assert one.parameters["MinCount"] == 2
