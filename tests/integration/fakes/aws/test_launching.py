"""A launch: tokens, counts, capacity, wrong parameters, and what an account lacks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.aws import FakeAWS
from tests.integration.fakes.aws.renter import G4, G5, MARK, MINE, Renter, refused, words


def test_a_client_token_makes_a_launch_happen_once_in_a_zone(renter: Renter):
    first = renter.ids("a", ClientToken="t")
    assert renter.ids("a", ClientToken="t") == first
    other = renter.ids("b", ClientToken="t")
    assert not set(other) & set(first)
    assert refused(renter.launch, "a", ClientToken="t", InstanceType=G4) == ("IdempotentParameterMismatch", 400)
    assert len(renter.told()) == 4
    renter.ec2.terminate_instances(InstanceIds=first)
    assert {one["State"]["Name"] for one in renter.launch("a", ClientToken="t")} <= {"shutting-down", "terminated"}


def test_all_or_none_and_as_many_as_there_are(fake: FakeAWS, renter: Renter):
    fake.capacity["us-east-1a", G5] = 3
    assert refused(renter.launch, "a", 4) == ("InsufficientInstanceCapacity", 500)
    assert renter.told() == []
    assert len(renter.launch("a", MinCount=2, MaxCount=8)) == 3
    assert refused(renter.launch, "a", 1)[0] == "InsufficientInstanceCapacity"
    assert len(renter.launch("b", 2)) == 2


def test_no_capacity_names_the_zone_and_is_repeated_by_a_client_that_retries(fake: FakeAWS, renter: Renter):
    fake.capacity["us-east-1a", G5] = 0
    said = words(renter.launch, "a", spot=False)
    assert "in the Availability Zone you requested (us-east-1a)" in said
    assert "us-east-1b" in said
    before = len(fake.asked("RunInstances"))
    retrying = fake.client("ec2", retries={"mode": "standard", "total_max_attempts": 3})
    assert refused(retrying.run_instances, **renter.asks("a")) == ("InsufficientInstanceCapacity", 500)
    assert len(fake.asked("RunInstances")) == before + 3


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"ImageId": "ami-0123456789abcdef0"}, "InvalidAMIID.NotFound"),
        ({"InstanceType": "g5.13xlarge"}, "InvalidParameterValue"),
        ({"UserData": "x" * 16385}, "InvalidParameterValue"),
        ({"ClientToken": "x" * 65}, "InvalidParameterValue"),
        ({"SubnetId": "subnet-0123456789abcdef0"}, "InvalidParameterCombination"),
        ({"NetworkInterfaces": [{"DeviceIndex": 0, "SubnetId": "subnet-01234567"}]}, "InvalidSubnetID.NotFound"),
        (
            {"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 30}}]},
            "InvalidBlockDeviceMapping",
        ),
        ({"DryRun": True}, "DryRunOperation"),
        (
            {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": {"MaxPrice": "0.01"}}},
            "SpotMaxPriceTooLow",
        ),
    ],
)
def test_a_launch_with_a_wrong_parameter_is_refused_and_makes_nothing(
    renter: Renter, change: dict[str, Any], code: str
):
    if "SubnetId" in change:
        change = {"SubnetId": renter.subnets["us-east-1a"]}
    assert refused(renter.launch, **change)[0] == code
    assert renter.told() == []


def test_only_a_spot_launch_has_a_spot_request_to_tag(renter: Renter):
    specification = [{"ResourceType": "spot-instances-request", "Tags": MARK}]
    assert refused(renter.launch, spot=False, TagSpecifications=specification)[0] == "InvalidParameterValue"


def test_a_disk_is_as_big_as_the_image_where_nothing_else_is_said(renter: Renter):
    asked = renter.asks(count=1)
    del asked["BlockDeviceMappings"]
    renter.ec2.run_instances(**asked)
    assert {one["Size"] for one in renter.ec2.describe_volumes(Filters=MINE)["Volumes"]} == {75}


def test_a_type_that_a_zone_does_not_have(fake: FakeAWS, renter: Renter):
    fake.not_offered.add(("us-east-1a", G5))
    assert refused(renter.launch, "a") == ("Unsupported", 400)
    said = words(renter.launch, "a")
    assert (
        f"Your requested instance type ({G5}) is not supported in your requested Availability Zone (us-east-1a)" in said
    )
    assert "us-east-1b" in said
    filters = [{"Name": "instance-type", "Values": [G5]}]
    rows = renter.ec2.describe_instance_type_offerings(LocationType="availability-zone", Filters=filters)
    assert "us-east-1a" not in {one["Location"] for one in rows["InstanceTypeOfferings"]}
    assert "us-east-1b" in {one["Location"] for one in rows["InstanceTypeOfferings"]}


def test_an_account_without_the_role_for_spot(fake: FakeAWS, renter: Renter):
    fake.spot_role = False
    assert refused(renter.launch) == ("AuthFailure.ServiceLinkedRoleCreationNotPermitted", 403)
    assert len(renter.launch(spot=False)) == 2


def test_no_default_network(fake: FakeAWS):
    fake.client("ec2").describe_vpcs()  # before and after a region is first seen
    fake.default_vpc = False
    for region in ("us-east-1", "eu-west-1"):
        ec2 = fake.client("ec2", region)
        assert ec2.describe_vpcs(Filters=[{"Name": "isDefault", "Values": ["true"]}])["Vpcs"] == []
        assert ec2.describe_subnets()["Subnets"] == []
        assert refused(ec2.create_security_group, GroupName="g", Description="d")[0] == "VPCIdNotSpecified"
        image = fake.image("pytorch-2.9", region)
        asked = {"ImageId": image, "InstanceType": G5, "MinCount": 1, "MaxCount": 1}
        assert refused(ec2.run_instances, **asked)[0] == "VPCIdNotSpecified"
    fake.default_vpc = True
    assert Renter(fake).ids()
