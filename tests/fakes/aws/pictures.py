"""Images that machines start from, the Deep Learning AMIs foremost, and the parameters that name the newest of each."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from moto.ec2.models.amis import Ami

PARAMETERS = "/aws/service/deeplearning/ami"
AMAZON = "898082745236"
CANONICAL = "099720109477"
OURS = "self"


@dataclass(frozen=True)
class Picture:
    """An image of the same kind in every region, each with an id of its own."""

    line: str
    """Of the parameter: oss-nvidia-driver-gpu-pytorch-2.9-ubuntu-24.04; "": no parameter names it."""
    name: str
    built: str
    """The day."""
    size: int = 75
    """GB, of its root disk's snapshot."""
    owner: str = AMAZON
    root: str = "/dev/sda1"
    architecture: str = "x86_64"
    state: str = "available"
    """`gone`: a parameter still names it, and EC2 does not know it."""

    def id(self, region: str) -> str:
        return "ami-0" + hashlib.sha256(f"{region} {self.name}".encode()).hexdigest()[:16]

    @property
    def snapshot(self) -> str:
        return "snap-0" + hashlib.sha256(self.name.encode()).hexdigest()[:16]

    @property
    def parameter(self) -> str:
        return f"{PARAMETERS}/{self.architecture}/{self.line}/latest/ami-id" if self.line else ""

    @property
    def created(self) -> str:
        return f"{self.built}T18:04:11.000Z"

    def register(self, backend: Any, region: str) -> None:
        """moto is to know it too: what a machine inherits of its image it takes from there."""
        if self.id(region) not in backend.amis:
            backend.amis[self.id(region)] = Ami(
                backend, self.id(region), name=self.name, owner_id=self.owner, public=True, state=self.state,
                architecture=self.architecture, root_device_name=self.root, root_device_type="ebs",
                virtualization_type="hvm", region_name=f"{region}a",
                creation_date=datetime.fromisoformat(self.created.replace("Z", "+00:00")).astimezone(UTC),
            )  # fmt: skip

    def view(self, region: str, account: str) -> dict[str, Any]:
        """As DescribeImages tells it."""
        disk = {
            "SnapshotId": self.snapshot, "VolumeSize": self.size, "VolumeType": "gp3", "DeleteOnTermination": True,
            "Encrypted": False, "Iops": 3000, "Throughput": 125,
        }  # fmt: skip
        owner = account if self.owner == OURS else self.owner
        return {
            "ImageId": self.id(region),
            "Name": self.name,
            "Description": self.name,
            "State": self.state,
            "OwnerId": owner,
            "ImageOwnerAlias": "amazon" if owner == AMAZON else None,
            "ImageLocation": f"amazon/{self.name}",
            "Public": owner != account,
            "Architecture": self.architecture,
            "PlatformDetails": "Linux/UNIX",
            "UsageOperation": "RunInstances",
            "ImageType": "machine",
            "VirtualizationType": "hvm",
            "Hypervisor": "xen",
            "EnaSupport": True,
            "RootDeviceType": "ebs",
            "RootDeviceName": self.root,
            "BlockDeviceMappings": [
                {"DeviceName": self.root, "Ebs": disk},
                {"DeviceName": "/dev/sdb", "VirtualName": "ephemeral0"},
            ],
            "CreationDate": self.created,
            "ImdsSupport": "v2.0",
        }


def _torch(torch: str, system: str, built: str, **more: Any) -> Picture:
    short = {"Ubuntu 24.04": "ubuntu-24.04", "Ubuntu 22.04": "ubuntu-22.04", "Amazon Linux 2023": "amazon-linux-2023"}
    return Picture(
        f"oss-nvidia-driver-gpu-pytorch-{torch}-{short[system]}",
        f"Deep Learning OSS Nvidia Driver AMI GPU PyTorch {torch} ({system}) {built.replace('-', '')}",
        built,
        **more,
    )


USUAL = (
    _torch("2.6", "Ubuntu 22.04", "2025-09-12"),
    _torch("2.7", "Ubuntu 22.04", "2026-02-07"),
    _torch("2.8", "Ubuntu 24.04", "2026-06-20"),
    _torch("2.9", "Ubuntu 24.04", "2026-10-31"),
    _torch("2.10", "Ubuntu 24.04", "2026-11-02"),
    _torch("2.9", "Amazon Linux 2023", "2026-10-31", root="/dev/xvda"),
    Picture(
        "base-oss-nvidia-driver-gpu-ubuntu-24.04",
        "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) 20261030", "2026-10-30", 65,
    ),
    Picture(
        "base-oss-nvidia-driver-gpu-ubuntu-22.04",
        "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) 20261030", "2026-10-30", 65,
    ),
    Picture(
        "oss-nvidia-driver-gpu-pytorch-2.9-ubuntu-24.04",
        "Deep Learning ARM64 AMI OSS Nvidia Driver GPU PyTorch 2.9 (Ubuntu 24.04) 20261031", "2026-10-31",
        architecture="arm64",
    ),
    Picture("", "Deep Learning OSS Nvidia Driver AMI GPU PyTorch 2.9 (Ubuntu 24.04) 20260103", "2026-01-03"),
    Picture("", "ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server-20261015", "2026-10-15", 8, CANONICAL),
    Picture("", "our-torch-2026-11", "2026-11-01", 50, OURS),
)  # fmt: skip
