"""Which image machines start from: AWS's own with PyTorch in it, and what is said of others."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gpuops.core.errors import Rejected, UsageError
from gpuops.core.models import Request
from provisioners.aws import images
from provisioners.aws.options import Wishes, wishes

NONE = wishes(Request("aws"))
TOLD: dict[str, Any] = {
    "ImageId": "ami-01234567",
    "Name": "mine-ubuntu",
    "Architecture": "x86_64",
    "State": "available",
    "RootDeviceType": "ebs",
    "RootDeviceName": "/dev/sda1",
    "BlockDeviceMappings": [
        {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 45}},
        {"DeviceName": "/dev/sdb", "VirtualName": "ephemeral0"},
        {"DeviceName": "/dev/sdf", "Ebs": {"VolumeSize": 500, "DeleteOnTermination": False}},
    ],
}


def wish(**more: Any) -> Wishes:
    return dataclasses.replace(NONE, ami="ami-01234567", **more)


def use(document: dict[str, Any], wishes: Wishes) -> images.Image:
    return images.use_image(images.parse_image(document), wishes)


def line(name: str) -> str:
    return f"{images.PARAMETER_PATH}/{name}/latest/ami-id"


def test_the_newest_of_awss_parameters() -> None:
    told = {
        line("oss-nvidia-driver-gpu-pytorch-2.9-ubuntu-24.04"): "nine",
        line("oss-nvidia-driver-gpu-pytorch-2.10-ubuntu-22.04"): "older system",
        line("oss-nvidia-driver-gpu-pytorch-2.10-ubuntu-24.04"): "ten",
        line("oss-nvidia-driver-gpu-pytorch-2.10-amazon-linux-2023"): "another system",
        line("base-oss-nvidia-driver-gpu-ubuntu-26.04"): "base",
        line("oss-nvidia-driver-gpu-tensorflow-2.18-ubuntu-26.04"): "not torch",
        f"{images.PARAMETER_PATH}/oss-nvidia-driver-gpu-pytorch-2.11-ubuntu-24.04/latest/ami-name": "no id",
    }
    assert images.rank_parameters(told) == ["ten", "older system", "another system", "nine"]
    assert images.rank_parameters({line("base-oss-nvidia-driver-gpu-ubuntu-24.04"): "base"}) == []


def test_the_latest_of_what_ec2_lists_is_never_a_base() -> None:
    name = "Deep Learning OSS Nvidia Driver AMI GPU PyTorch 2.9 (Ubuntu 24.04) 2026"
    listed = [
        {**TOLD, "ImageId": "ami-1", "Name": f"{name}0101", "CreationDate": "2026-01-01T00:00:00Z"},
        {**TOLD, "ImageId": "ami-2", "Name": f"{name}0301", "CreationDate": "2026-03-01T00:00:00Z"},
        {
            **TOLD,
            "ImageId": "ami-3",
            "Name": "Deep Learning Base PyTorch (Ubuntu)",
            "CreationDate": "2026-09-01T00:00:00Z",
        },
        {**TOLD, "ImageId": "ami-4", "Name": f"{name}0401", "CreationDate": "2026-04-01T00:00:00Z", "State": "pending"},
    ]
    newest = images.select_newest([images.parse_image(document) for document in listed])
    assert newest is not None
    assert newest.id == "ami-2"
    assert images.select_newest([]) is None


@pytest.mark.parametrize(
    ("name", "user"),
    [
        ("ubuntu/images/hvm-ssd/jammy", "ubuntu"),
        ("al2023-ami-2023.1-x86_64", "ec2-user"),
        ("amzn2-ami-hvm", "ec2-user"),
        ("Deep Learning AMI (Amazon Linux 2023)", "ec2-user"),
        ("debian-12-amd64", "admin"),
    ],
)
def test_the_login_is_the_images(name: str, user: str) -> None:
    assert use({**TOLD, "Name": name}, wish()).user == user
    assert use({**TOLD, "Name": name}, wish(user="me")).user == "me"


def test_an_image_that_says_nothing_of_its_login() -> None:
    with pytest.raises(UsageError) as caught:
        use({**TOLD, "Name": "golden-7"}, wish())
    assert caught.value.message == "who logs in to the image golden-7?"
    assert caught.value.hint.startswith("say it: --user ")


def test_its_disks() -> None:
    found = use(TOLD, wish())
    assert (found.root_device, found.root_gb, found.devices) == ("/dev/sda1", 45, ("/dev/sdf",))


def test_a_base_image_that_is_named_gets_a_note() -> None:
    name = "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) 20260101"
    found = use({**TOLD, "Name": name}, wish())
    assert found.note == (
        f"the image {name} brings no PyTorch: gpuops makes an environment with one on each machine, which takes minutes"
    )
    assert use(TOLD, wish()).note == ""


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"Platform": "windows"}, "is Windows; gpuops needs Linux"),
        ({"Architecture": "arm64"}, "is for arm64; the machines with NVIDIA GPUs that gpuops rents are x86_64"),
        ({"State": "deregistered"}, "is deregistered"),
        ({"RootDeviceType": "instance-store"}, "has no disk of its own (EBS)"),
    ],
)
def test_an_image_that_cannot_be_used(more: dict[str, str], why: str) -> None:
    with pytest.raises(Rejected) as caught:
        use({**TOLD, **more}, wish())
    assert caught.value.message == f"the image mine-ubuntu (ami-01234567) {why}"
