"""Regions are apart, and so are two fakes."""

from __future__ import annotations

from pathlib import Path

import boto3

from tests.fakes.aws import FakeAWS
from tests.integration.fakes.aws.renter import Renter, refused


def test_regions_are_apart(fake: FakeAWS, renter: Renter):
    west = Renter(fake, "us-west-2")
    renter.launch()
    (there,) = west.ids("c", 1)
    assert [one["InstanceId"] for one in west.told()] == [there]
    assert refused(renter.told, there)[0] == "InvalidInstanceID.NotFound"
    assert {one.region for one in fake.instances()} == {"us-east-1", "us-west-2"}
    assert fake.image("pytorch-2.9", "us-west-2") != fake.image("pytorch-2.9")
    wrong = west.asks("c", 1) | {"ImageId": fake.image("pytorch-2.9")}
    assert refused(west.ec2.run_instances, **wrong)[0] == "InvalidAMIID.NotFound"


def test_regions_that_one_has_to_ask_for(fake: FakeAWS, renter: Renter):
    names = {one["RegionName"] for one in renter.ec2.describe_regions()["Regions"]}
    assert "eu-west-1" in names
    assert "ap-east-1" not in names
    every = {one["RegionName"]: one["OptInStatus"] for one in renter.ec2.describe_regions(AllRegions=True)["Regions"]}
    assert every["ap-east-1"] == "not-opted-in"
    assert refused(fake.client("ec2", "ap-east-1").describe_vpcs) == ("AuthFailure", 401)
    fake.opted_in.add("ap-east-1")
    assert fake.client("ec2", "ap-east-1").describe_vpcs()["Vpcs"]


def test_two_fakes_know_nothing_of_each_other(fake: FakeAWS, renter: Renter, tmp_path: Path):
    renter.launch()
    fake.bucket("same-name")
    with FakeAWS(tmp_path / "other") as other:
        assert Renter(other).told() == []
        assert other.left() == []
        assert other.account != fake.account
        assert refused(boto3.client(
            "sts", "us-east-1", endpoint_url=other.url, aws_access_key_id=fake.key, aws_secret_access_key=fake.secret
        ).get_caller_identity)[0] == "InvalidClientTokenId"  # fmt: skip
    assert len(renter.told()) == 2
