"""Somebody who launches at the fake, and how its refusals are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.fakes.aws import FakeAWS

G5, G4, P5, P6 = "g5.12xlarge", "g4dn.12xlarge", "p5.48xlarge", "p6-b200.48xlarge"
G_SPOT, G_ON_DEMAND, P5_SPOT = "L-3819A6DF", "L-DB2E81BA", "L-C4BD4855"
MARK = [{"Key": "gpuops:managed", "Value": "true"}, {"Key": "gpuops:cluster", "Value": "c1"}]
KINDS = ("instance", "volume", "network-interface")
MINE = [{"Name": "tag:gpuops:managed", "Values": ["true"]}]


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


def quota(fake: FakeAWS, code: str, region: str = "us-east-1") -> float:
    asked = fake.client("service-quotas", region).get_service_quota(ServiceCode="ec2", QuotaCode=code)
    return float(asked["Quota"]["Value"])
