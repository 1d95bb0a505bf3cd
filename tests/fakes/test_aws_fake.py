"""The fake of AWS behaves as the service is known to: quotas, capacity, tokens, spot, consistency, refusals, faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import BotoCoreError, ClientError, ConnectionClosedError, ReadTimeoutError
from botocore.parsers import ResponseParserError

from tests.conftest import HANG_S, until
from tests.fakes.aws import FakeAWS, Fault, Request, signatures
from tests.fakes.aws.signatures import check
from tests.lab.available import why_no_machines
from tests.lab.hosts import Lab

G5, G4, P5, P6 = "g5.12xlarge", "g4dn.12xlarge", "p5.48xlarge", "p6-b200.48xlarge"
G_SPOT, G_ON_DEMAND, P5_SPOT, P_ON_DEMAND = "L-3819A6DF", "L-DB2E81BA", "L-C4BD4855", "L-417A185B"
MARK = [{"Key": "gpuops:managed", "Value": "true"}, {"Key": "gpuops:cluster", "Value": "c1"}]
KINDS = ("instance", "volume", "network-interface")
MINE = [{"Name": "tag:gpuops:managed", "Values": ["true"]}]


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeAWS]:
    with FakeAWS(tmp_path / "aws") as one:
        yield one


class Renter:
    """Somebody who launches in one region as gpuops does."""

    def __init__(self, fake: FakeAWS, region: str = "us-east-1") -> None:
        self.fake, self.region = fake, region
        self.ec2 = fake.client("ec2", region)
        self.subnets = {
            one["AvailabilityZone"]: one["SubnetId"]
            for one in self.ec2.describe_subnets(Filters=[{"Name": "default-for-az", "Values": ["true"]}])["Subnets"]
        }
        self.vpc = self.ec2.describe_vpcs(Filters=[{"Name": "isDefault", "Values": ["true"]}])["Vpcs"][0]["VpcId"]

    def group(self, name: str = "gpuops-c1") -> str:
        tags = [{"ResourceType": "security-group", "Tags": MARK}]
        made = self.ec2.create_security_group(
            GroupName=name, Description="of a cluster", VpcId=self.vpc, TagSpecifications=tags
        )
        return str(made["GroupId"])

    def asks(self, zone: str = "a", count: int = 2, spot: bool = True, group: str = "", **more: Any) -> dict[str, Any]:
        nic = {"DeviceIndex": 0, "SubnetId": self.subnets[self.region + zone], "AssociatePublicIpAddress": True}
        kinds = (*KINDS, "spot-instances-request") if spot else KINDS
        asked = {
            "ImageId": self.fake.image("pytorch-2.9", self.region),
            "InstanceType": G5,
            "MinCount": count,
            "MaxCount": count,
            "UserData": "#cloud-config\n{}\n",
            "InstanceInitiatedShutdownBehavior": "terminate",
            "NetworkInterfaces": [nic | ({"Groups": [group]} if group else {})],
            "BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 100, "VolumeType": "gp3"}}],
            "TagSpecifications": [{"ResourceType": kind, "Tags": MARK} for kind in kinds],
        }
        if spot:
            options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
            asked["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
        return asked | more

    def launch(self, *where: Any, **more: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ec2.run_instances(**self.asks(*where, **more))["Instances"]
        return found

    def ids(self, *where: Any, **more: Any) -> list[str]:
        return [one["InstanceId"] for one in self.launch(*where, **more)]

    def told(self, *ids: str, **more: Any) -> list[dict[str, Any]]:
        asked = {"InstanceIds": list(ids)} if ids else {}
        rows = self.ec2.describe_instances(**asked, **more)["Reservations"]
        return [one for row in rows for one in row["Instances"]]

    def states(self, *ids: str) -> set[str]:
        return {one["State"]["Name"] for one in self.told(*ids)}


@pytest.fixture
def renter(fake: FakeAWS) -> Renter:
    return Renter(fake)


def refused(call: Callable[..., Any], *arguments: Any, **more: Any) -> tuple[str, int]:
    """Code and HTTP status."""
    with pytest.raises(ClientError) as caught:
        call(*arguments, **more)
    said = caught.value.response
    return said["Error"]["Code"], said["ResponseMetadata"]["HTTPStatusCode"]


def words(call: Callable[..., Any], *arguments: Any, **more: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(*arguments, **more)
    return str(caught.value.response["Error"]["Message"])


# ---- machines


def test_machines_of_one_launch_are_in_one_zone_numbered_and_tagged_with_all_that_comes_with_them(renter: Renter):
    made = renter.launch("b", group=renter.group())
    assert {one["State"]["Name"] for one in made} == {"pending"}
    assert not any("PublicIpAddress" in one or "StateReason" in one for one in made)
    ids = [one["InstanceId"] for one in made]
    until(lambda: renter.states(*ids) == {"running"}, "they run")
    found = renter.told(*ids)
    assert sorted(one["AmiLaunchIndex"] for one in found) == [0, 1]
    assert {one["Placement"]["AvailabilityZone"] for one in found} == {"us-east-1b"}
    assert all(one["PublicIpAddress"] and one["PrivateIpAddress"] and one["Tags"] for one in found)
    assert {one["InstanceLifecycle"] for one in found} == {"spot"}
    for describe, key in (
        (renter.ec2.describe_volumes, "Volumes"),
        (renter.ec2.describe_network_interfaces, "NetworkInterfaces"),
        (renter.ec2.describe_spot_instance_requests, "SpotInstanceRequests"),
    ):
        assert len(describe(Filters=MINE)[key]) == 2
    assert {one["Size"] for one in renter.ec2.describe_volumes(Filters=MINE)["Volumes"]} == {100}


def test_a_terminated_machine_takes_its_disk_and_card_along_and_can_be_terminated_again(renter: Renter):
    ids = renter.ids()
    said = renter.ec2.terminate_instances(InstanceIds=ids)["TerminatingInstances"]
    assert {one["CurrentState"]["Name"] for one in said} == {"shutting-down"}
    until(lambda: renter.states(*ids) == {"terminated"}, "they end")
    again = renter.ec2.terminate_instances(InstanceIds=ids)["TerminatingInstances"]
    assert {one["PreviousState"]["Name"] for one in again} == {"terminated"}
    (reason,) = {one["StateReason"]["Code"] for one in renter.told(*ids)}
    assert reason == "Client.UserInitiatedShutdown"
    assert renter.fake.left() == []
    assert not any("PublicIpAddress" in one for one in renter.told(*ids))
    renter.fake.advance(3601)
    assert renter.told() == []
    assert refused(renter.told, *ids)[0] == "InvalidInstanceID.NotFound"


def test_one_wrong_id_ends_none(renter: Renter):
    ids = renter.ids()
    assert refused(renter.ec2.terminate_instances, InstanceIds=[*ids, "i-0123456789abcdef0"]) == (
        "InvalidInstanceID.NotFound",
        400,
    )
    assert renter.states(*ids) <= {"pending", "running"}
    assert refused(renter.ec2.terminate_instances, InstanceIds=["node0"])[0] == "InvalidInstanceID.Malformed"


def test_a_power_off_from_inside_ends_a_machine_that_was_launched_so_and_stops_another(fake: FakeAWS, renter: Renter):
    (ends,) = renter.ids(count=1)
    (stops,) = renter.ids(count=1, spot=False, InstanceInitiatedShutdownBehavior="stop")
    fake.power_off(ends)
    fake.power_off(stops)
    until(lambda: (renter.states(ends), renter.states(stops)) == ({"terminated"}, {"stopped"}), "both are off")
    assert renter.told(ends)[0]["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"
    assert [one.id for one in fake.instances()] == [stops]


def test_a_machine_whose_spot_request_was_cancelled_under_it_only_stops(fake: FakeAWS, renter: Renter):
    (one,) = renter.launch(count=1)
    renter.ec2.cancel_spot_instance_requests(SpotInstanceRequestIds=[one["SpotInstanceRequestId"]])
    assert renter.states(one["InstanceId"]) <= {"pending", "running"}
    fake.power_off(one["InstanceId"])
    until(lambda: renter.states(one["InstanceId"]) == {"stopped"}, "it stops")
    assert any("volume" in line or "instance" in line for line in fake.left())


def test_a_group_in_use_stays(renter: Renter):
    group = renter.group()
    ids = renter.ids(group=group)
    assert refused(renter.ec2.delete_security_group, GroupId=group) == ("DependencyViolation", 400)
    renter.ec2.terminate_instances(InstanceIds=ids)
    until(lambda: renter.states(*ids) == {"terminated"}, "they end")
    renter.ec2.delete_security_group(GroupId=group)
    assert refused(renter.ec2.delete_security_group, GroupId=group)[0] == "InvalidGroup.NotFound"


def test_a_group_that_another_speaks_of_stays(renter: Renter):
    one, other = renter.group("one"), renter.group("other")
    rule = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": one}]}
    renter.ec2.authorize_security_group_ingress(GroupId=other, IpPermissions=[rule])
    assert refused(renter.ec2.delete_security_group, GroupId=one)[0] == "DependencyViolation"
    own = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": other}]}
    renter.ec2.authorize_security_group_ingress(GroupId=other, IpPermissions=[own])
    renter.ec2.delete_security_group(GroupId=other)  # its own rule about itself is no hindrance
    renter.ec2.delete_security_group(GroupId=one)


def test_what_is_new_is_seen_late(fake: FakeAWS, renter: Renter):
    fake.lag_s = 30.0
    group = renter.group()
    assert refused(renter.ec2.describe_security_groups, GroupIds=[group])[0] == "InvalidGroup.NotFound"
    assert renter.ec2.describe_security_groups(Filters=MINE)["SecurityGroups"] == []
    assert refused(renter.launch, group=group)[0] == "InvalidGroup.NotFound"
    assert refused(renter.group)[0] == "InvalidGroup.Duplicate"
    fake.advance(31)
    ids = renter.ids(group=group)
    assert renter.told() == []
    assert refused(renter.told, *ids)[0] == "InvalidInstanceID.NotFound"
    assert refused(renter.ec2.terminate_instances, InstanceIds=ids)[0] == "InvalidInstanceID.NotFound"
    assert len(fake.left()) == 5, fake.left()  # it is all there, and known to the fake
    fake.advance(31)
    assert [one["InstanceId"] for one in renter.told(*ids)] == ids


def test_filters_know_wildcards_tags_and_life_cycles(renter: Renter):
    renter.launch("a", 1)
    renter.launch("b", 1, spot=False, ClientToken="mine")

    def some(name: str, *values: str) -> int:
        return len(renter.told(Filters=[{"Name": name, "Values": list(values)}]))

    assert some("instance-lifecycle", "spot") == 1
    assert some("client-token", "mine") == 1
    assert some("tag:gpuops:cluster", "c*") == 2
    assert some("tag-key", "gpuops:managed") == 2
    assert some("instance-type", "g5.*") == 2
    assert some("availability-zone", "us-east-1b", "us-east-1c") == 1
    assert some("tag:gpuops:cluster", "c2") == 0
    assert refused(some, "colour", "red")[0] == "InvalidParameterValue"


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


# ---- launching: tokens, counts, wrong parameters


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


# ---- quotas


def quota(fake: FakeAWS, code: str, region: str = "us-east-1") -> float:
    asked = fake.client("service-quotas", region).get_service_quota(ServiceCode="ec2", QuotaCode=code)
    return float(asked["Quota"]["Value"])


def test_a_fresh_account_has_nothing_for_gpus(fake: FakeAWS, renter: Renter):
    assert quota(fake, G_SPOT) > 1000
    fake.fresh_account()
    assert [quota(fake, code) for code in (G_SPOT, G_ON_DEMAND, "L-1216C47A")] == [0.0, 0.0, 5.0]
    assert refused(renter.launch) == ("MaxSpotInstanceCountExceeded", 400)
    assert refused(renter.launch, spot=False) == ("VcpuLimitExceeded", 400)
    assert "current vCPU limit of 0 allows" in words(renter.launch, spot=False)
    client = fake.client("service-quotas")
    assert client.get_aws_default_service_quota(ServiceCode="ec2", QuotaCode=G_SPOT)["Quota"]["Value"] == 0.0
    names = {one["QuotaCode"]: one["QuotaName"] for one in client.list_service_quotas(ServiceCode="ec2")["Quotas"]}
    assert names[G_SPOT] == "All G and VT Spot Instance Requests"


def test_quota_is_drawn_by_market_family_and_region(fake: FakeAWS, renter: Renter):
    fake.quota["us-east-1", G_SPOT] = 96.0
    fake.quota["us-east-1", G_ON_DEMAND] = 48.0
    fake.quota["us-east-1", P5_SPOT] = 0.0
    ids = renter.ids(count=2)
    assert refused(renter.launch, count=1)[0] == "MaxSpotInstanceCountExceeded"
    assert refused(renter.launch, count=1, InstanceType=G4)[0] == "MaxSpotInstanceCountExceeded"
    assert renter.ids(count=1, spot=False)
    assert refused(renter.launch, count=1, spot=False)[0] == "VcpuLimitExceeded"
    assert refused(renter.launch, count=1, InstanceType=P5)[0] == "MaxSpotInstanceCountExceeded"
    assert Renter(fake, "us-west-2").ids(count=2)
    renter.ec2.terminate_instances(InstanceIds=ids)
    until(lambda: renter.states(*ids) == {"terminated"}, "they end")
    assert renter.ids(count=2)


def test_p6_on_spot_has_no_quota_that_is_documented(fake: FakeAWS, renter: Renter):
    fake.fresh_account()
    assert {zone for zone, kind in fake.world.offered("us-east-1") if kind == P6}
    zone = next(zone for zone, kind in sorted(fake.world.offered("us-east-1")) if kind == P6)
    assert renter.ids(zone[-1], 1, InstanceType=P6)
    assert refused(renter.launch, zone[-1], 1, spot=False, InstanceType=P6)[0] == "VcpuLimitExceeded"


def test_a_request_that_lingers_draws_on(fake: FakeAWS, renter: Renter):
    fake.quota["us-east-1", G_SPOT] = 96.0
    fake.close_s = 60.0
    ids = renter.ids(count=2)
    renter.ec2.terminate_instances(InstanceIds=ids)
    until(lambda: renter.states(*ids) == {"terminated"}, "they end")
    assert refused(renter.launch, count=1)[0] == "MaxSpotInstanceCountExceeded"
    requests = [one["SpotInstanceRequestId"] for one in renter.told(*ids)]
    renter.ec2.cancel_spot_instance_requests(SpotInstanceRequestIds=requests)
    assert renter.ids(count=1)


def test_more_quota_is_asked_for_once_and_decided_later(fake: FakeAWS, renter: Renter):
    fake.fresh_account()
    client = fake.client("service-quotas")
    asked = {"ServiceCode": "ec2", "QuotaCode": G_SPOT, "DesiredValue": 96.0}
    made = client.request_service_quota_increase(**asked)["RequestedQuota"]
    assert (made["Status"], made["DesiredValue"]) == ("PENDING", 96.0)
    assert isinstance(made["Created"], datetime)
    assert refused(client.request_service_quota_increase, **asked)[0] == "ResourceAlreadyExistsException"
    history = client.list_requested_service_quota_change_history_by_quota
    assert [one["Id"] for one in history(ServiceCode="ec2", QuotaCode=G_SPOT)["RequestedQuotas"]] == [made["Id"]]
    assert history(ServiceCode="ec2", QuotaCode=G_ON_DEMAND)["RequestedQuotas"] == []
    fake.decide(made["Id"], "CASE_OPENED")
    opened = client.get_requested_service_quota_change(RequestId=made["Id"])["RequestedQuota"]
    assert opened["Status"] == "CASE_OPENED"
    assert opened["CaseId"]
    assert quota(fake, G_SPOT) == 0.0
    fake.decide(made["Id"], "APPROVED")
    assert quota(fake, G_SPOT) == 96.0
    assert quota(fake, G_SPOT, "eu-west-1") == 0.0
    assert renter.ids()
    assert refused(client.request_service_quota_increase, **asked)[0] == "IllegalArgumentException"


def test_a_request_that_is_turned_down_or_granted_in_part(fake: FakeAWS):
    fake.fresh_account()
    client = fake.client("service-quotas")
    for status, value, now in (("DENIED", None, 0.0), ("CASE_CLOSED", 32.0, 32.0)):
        made = client.request_service_quota_increase(ServiceCode="ec2", QuotaCode=G_SPOT, DesiredValue=96.0)
        fake.decide(made["RequestedQuota"]["Id"], status, value)
        assert quota(fake, G_SPOT) == now
    fake.advance(91 * 86400)
    assert client.list_requested_service_quota_change_history(ServiceCode="ec2")["RequestedQuotas"] == []


def test_quotas_that_are_not_there(fake: FakeAWS):
    fake.quota["us-east-1", G_SPOT] = None
    assert refused(quota, fake, G_SPOT)[0] == "NoSuchResourceException"
    assert refused(quota, fake, "L-DEADBEEF")[0] == "NoSuchResourceException"
    client = fake.client("service-quotas")
    assert client.get_aws_default_service_quota(ServiceCode="ec2", QuotaCode=G_SPOT)["Quota"]["Value"] == 0.0


# ---- spot


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


# ---- the catalog


def test_types_come_in_pages_and_only_those_of_the_region(renter: Renter):
    asked = {"Filters": [{"Name": "instance-type", "Values": ["g5.*", "g6.*", "g6e.*", "p*"]}]}
    pages = list(
        renter.ec2.get_paginator("describe_instance_types").paginate(**asked, PaginationConfig={"PageSize": 10})
    )
    types = {one["InstanceType"]: one for page in pages for one in page["InstanceTypes"]}
    assert len(pages) > 2
    assert sum(gpu["Count"] for gpu in types[G5]["GpuInfo"]["Gpus"]) == 4
    assert types[G5]["VCpuInfo"]["DefaultVCpus"] == 48
    wrong = {"InstanceTypes": ["g5.13xlarge"]}
    assert refused(renter.ec2.describe_instance_types, **wrong)[0] == "InvalidInstanceType"


def test_regions_that_one_has_to_ask_for(fake: FakeAWS, renter: Renter):
    names = {one["RegionName"] for one in renter.ec2.describe_regions()["Regions"]}
    assert "eu-west-1" in names
    assert "ap-east-1" not in names
    every = {one["RegionName"]: one["OptInStatus"] for one in renter.ec2.describe_regions(AllRegions=True)["Regions"]}
    assert every["ap-east-1"] == "not-opted-in"
    assert refused(fake.client("ec2", "ap-east-1").describe_vpcs) == ("AuthFailure", 401)
    fake.opted_in.add("ap-east-1")
    assert fake.client("ec2", "ap-east-1").describe_vpcs()["Vpcs"]


def test_images_have_their_parameters_in_pages_of_ten(fake: FakeAWS, renter: Renter):
    ssm = fake.client("ssm", "eu-west-1")
    root = "/aws/service/deeplearning/ami"
    pages = list(ssm.get_paginator("get_parameters_by_path").paginate(Path=root, Recursive=True))
    rows = {one["Name"]: one["Value"] for page in pages for one in page["Parameters"]}
    name = f"{root}/x86_64/oss-nvidia-driver-gpu-pytorch-2.9-ubuntu-24.04/latest/ami-id"
    assert rows[name] == ssm.get_parameter(Name=name)["Parameter"]["Value"] == fake.image("pytorch-2.9", "eu-west-1")
    (image,) = fake.client("ec2", "eu-west-1").describe_images(ImageIds=[rows[name]])["Images"]
    assert image["RootDeviceName"] == "/dev/sda1"
    assert image["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] == 75
    assert refused(ssm.get_parameter, Name=name.replace("2.9", "1.9"))[0] == "ParameterNotFound"
    fake.pictures[:] = [one for one in fake.pictures if "pytorch-2.9" not in one.line]
    assert refused(ssm.get_parameter, Name=name)[0] == "ParameterNotFound"
    pattern = [{"Name": "name", "Values": ["Deep Learning OSS*PyTorch 2.9*"]}]
    found = renter.ec2.describe_images(Owners=["amazon"], Filters=pattern)["Images"]
    assert [one["CreationDate"][:10] for one in found] == ["2026-01-03"]
    own = renter.ec2.describe_images(Owners=["self"])["Images"]
    assert [(one["OwnerId"], one["Public"]) for one in own] == [(fake.account, False)]


def test_the_price_list_holds_what_is_easily_taken_for_the_price(fake: FakeAWS):
    fake.on_demand[G5, "us-east-1"] = 5.67
    client = fake.client("pricing")

    def products(service: str, **fields: str) -> list[dict[str, Any]]:
        filters = [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in fields.items()]
        pages = client.get_paginator("get_products").paginate(ServiceCode=service, Filters=filters)
        return [json.loads(row) for page in pages for row in page["PriceList"]]

    def price(product: dict[str, Any]) -> float:
        (term,) = product["terms"]["OnDemand"].values()
        (dimension,) = term["priceDimensions"].values()
        return float(dimension["pricePerUnit"]["USD"])

    every = products("AmazonEC2", instanceType=G5, regionCode="us-east-1")
    assert 0.0 in [price(one) for one in every]
    plain = {"operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used"}
    exact = products("AmazonEC2", instanceType=G5, regionCode="us-east-1", marketoption="OnDemand", **plain)
    assert [price(one) for one in exact] == [5.67]
    disk = products("AmazonEC2", regionCode="us-east-1", volumeApiName="gp3", productFamily="Storage")
    assert [price(one) for one in disk] == [0.08]
    address = products("AmazonVPC", regionCode="us-east-1", group="VPCPublicIPv4Address")
    assert {price(one) for one in address} == {0.005}
    with pytest.raises(BotoCoreError):  # the price list is in three regions only
        fake.client("pricing", "us-west-2").get_products(ServiceCode="AmazonEC2")


def test_what_a_machine_printed(fake: FakeAWS, renter: Renter):
    (one,) = renter.ids(count=1)
    assert renter.ec2.get_console_output(InstanceId=one, Latest=True).get("Output", "") == ""
    fake.console[one] = "-----BEGIN SSH HOST KEY KEYS-----\n"
    assert renter.ec2.get_console_output(InstanceId=one, Latest=True)["Output"] == fake.console[one]


# ---- who may ask


SERVICES: dict[str, Callable[[FakeAWS], Any]] = {
    "ec2": lambda fake: fake.client("ec2").describe_instances(),
    "sts": lambda fake: fake.client("sts").get_caller_identity(),
    "quotas": lambda fake: quota(fake, G_SPOT),
    "s3": lambda fake: fake.client("s3").list_objects_v2(Bucket="b-of-ours"),
}


@pytest.mark.parametrize(
    ("state", "codes"),
    [
        ("expired", ("RequestExpired", "ExpiredToken", "ExpiredTokenException", "ExpiredToken")),
        ("unknown", ("AuthFailure", "InvalidClientTokenId", "UnrecognizedClientException", "InvalidAccessKeyId")),
        ("secret", ("AuthFailure", "SignatureDoesNotMatch", "InvalidSignatureException", "SignatureDoesNotMatch")),
        ("denied", ("UnauthorizedOperation", "AccessDenied", "AccessDeniedException", "AccessDenied")),
    ],
)
def test_keys_that_are_no_good_are_refused_in_the_words_of_each_service(
    fake: FakeAWS, state: str, codes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    fake.bucket("b-of-ours")
    for ask in SERVICES.values():
        ask(fake)
    if state == "expired":
        fake.expired = True
    elif state == "unknown":
        fake.wrong_keys()
    elif state == "secret":  # the service compares with another one than the client signs with
        right = fake.secret
        monkeypatch.setattr(signatures, "check", lambda request, _, now: check(request, right[::-1], now))
    else:
        fake.deny("*")
    assert tuple(refused(ask, fake)[0] for ask in SERVICES.values()) == codes


def test_a_denial_names_the_permission_also_where_it_is_the_tags_that_are_denied(fake: FakeAWS, renter: Renter):
    fake.deny("ec2:CreateTags")
    assert refused(renter.launch) == ("UnauthorizedOperation", 403)
    assert f"{fake.world.arn()} is not authorized to perform: ec2:CreateTags" in words(renter.launch)
    assert renter.told() == []
    fake.permit("ec2:CreateTags")
    assert renter.launch()
    fake.deny("ec2:Terminate*")
    assert refused(renter.ec2.terminate_instances, InstanceIds=["i-0123456789abcdef0"])[0] == "UnauthorizedOperation"


def test_profiles_and_a_program_that_knows_only_the_environment(fake: FakeAWS):
    program = """
        import boto3, urllib.request, os
        print(boto3.client("sts").get_caller_identity()["Account"])
        print(boto3.Session(profile_name="work").region_name)
        print(urllib.request.urlopen(os.environ["GPUOPS_CHECKIP_URL"]).read().decode().strip())
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    # boto3 prefers the environment's region to a profile's
    for region, leave_out in (
        ("us-east-1", ()),
        ("us-west-2", ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION")),
    ):
        env = environment | {name: value for name, value in fake.env.items() if name not in leave_out}
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)], env=env, capture_output=True, text=True, timeout=HANG_S
        )
        assert done.stdout.split() == [fake.account, region, "203.0.113.7"], done.stderr
    assert all(any(secret in value for value in fake.env.values()) for secret in fake.secrets)


# ---- S3


def test_parts_go_to_s3_by_addresses_that_were_signed_at_home_and_end(fake: FakeAWS):
    bucket = fake.bucket("results-of-ours")
    s3 = fake.client("s3", signature_version="s3v4")
    upload = s3.create_multipart_upload(Bucket=bucket, Key="run/1 of 2.tar")["UploadId"]
    parts, content = [], [b"x" * 5 * 1024 * 1024, b"the rest"]
    for number, data in enumerate(content, 1):
        names = {"Bucket": bucket, "Key": "run/1 of 2.tar", "UploadId": upload, "PartNumber": number}
        url = s3.generate_presigned_url("upload_part", Params=names, ExpiresIn=600)
        with urllib.request.urlopen(urllib.request.Request(url, data=data, method="PUT")) as answer:
            parts.append({"ETag": answer.headers["ETag"], "PartNumber": number})
    s3.complete_multipart_upload(Bucket=bucket, Key="run/1 of 2.tar", UploadId=upload, MultipartUpload={"Parts": parts})
    assert fake.objects(bucket) == {"run/1 of 2.tar": b"".join(content)}
    assert [one.action for one in fake.asked("s3:UploadPart")] == ["UploadPart"] * 2
    for spoiled in (url.replace("run/1", "run/2"), url.split("?")[0]):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(urllib.request.Request(spoiled, data=b"mine", method="PUT"))
        assert caught.value.code == 403
    fake.advance(601)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(url, data=b"late", method="PUT"))
    assert b"Request has expired" in caught.value.read()
    assert fake.objects(bucket) == {"run/1 of 2.tar": b"".join(content)}


# ---- faults


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


# ---- with machines behind it

LAUNCH = """
import os, sys, urllib.request
import boto3
ec2 = boto3.client("ec2")
subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
group = ec2.create_security_group(GroupName="g", Description="d")["GroupId"]
own = urllib.request.urlopen(os.environ["GPUOPS_CHECKIP_URL"]).read().decode().strip() + "/32"
ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[
    {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": own}]},
])
ec2.run_instances(
    ImageId=sys.argv[1], UserData=sys.argv[2], InstanceType="g5.12xlarge", MinCount=2, MaxCount=2,
    InstanceInitiatedShutdownBehavior="terminate", InstanceMarketOptions={"MarketType": "spot"},
    NetworkInterfaces=[
        {"DeviceIndex": 0, "SubnetId": subnet, "Groups": [group], "AssociatePublicIpAddress": True},
    ],
)
print(group)
"""


@pytest.mark.skipif(bool(why_no_machines()), reason=str(why_no_machines()))
def test_instances_are_machines_behind_their_group_until_they_power_off_or_are_taken_back(tmp_path: Path):
    with Lab(tmp_path / "lab") as lab, FakeAWS(tmp_path / "aws", lab=lab) as fake:
        environment = {**os.environ, **fake.env}
        data = f"#cloud-config\nssh_authorized_keys: [{json.dumps(str(lab.login))}]\n"

        def typed(*words: str) -> subprocess.CompletedProcess[str]:
            command = [*lab.enter, *words]
            return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG_S)

        def ssh(address: str, command: str) -> str:
            options = "-oStrictHostKeyChecking=no -oUserKnownHostsFile=/dev/null -oBatchMode=yes -oConnectTimeout=2"
            return typed("ssh", *options.split(), "-i", str(lab.identity), f"ubuntu@{address}", command).stdout.strip()

        done = typed(sys.executable, "-c", LAUNCH, fake.image("pytorch-2.9"), data)
        assert done.returncode == 0, done.stderr
        group = done.stdout.strip()
        one, other = fake.instances()
        until(lambda: ssh(one.address, "id -un") == "ubuntu", "somebody can log in")
        assert one.address != one.private_address
        assert "SSH HOST KEY KEYS" in fake.world.bodies.console(one)
        rule = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": f"{lab.laptop.address}/32"}]}
        shut = f"ec2.revoke_security_group_ingress(GroupId={group!r}, IpPermissions=[{rule}])"
        assert typed(sys.executable, "-c", f"import boto3; ec2 = boto3.client('ec2'); {shut}").returncode == 0
        assert ssh(one.address, "id -un") == ""
        fake.interrupt(one.id, in_s=1.0)
        fake.power_off(other.id)
        until(lambda: fake.instances() == [], "both are gone")
        assert one.reason[0] == "Server.SpotInstanceTermination"
        assert other.reason[0] == "Client.InstanceInitiatedShutdown"
        until(lambda: not any(fake.world.bodies.machines.up(it.id) for it in (one, other)), "the machines too")
