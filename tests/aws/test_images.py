"""Which image machines start from: AWS's own with PyTorch in it, and what is said of others."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gpuops.core.errors import AuthFailed, ProviderError, Rejected, UsageError
from gpuops.core.models import Request
from provisioners.aws import images
from provisioners.aws.options import Wishes, wishes
from tests.aws.conftest import Tenant
from tests.fakes.aws import FakeAWS

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


def line(name: str) -> str:
    return f"{images.PATH}/{name}/latest/ami-id"


def find(tenant: Tenant, given: Wishes = NONE, region: str = "us-east-1") -> images.Image:
    return images.find(tenant.provider._account, region, given)


def test_the_image_is_awss_own_with_pytorch_and_its_own_in_every_region(fake: FakeAWS, tenant: Tenant) -> None:
    found = {region: find(tenant, region=region) for region in ("us-east-1", "eu-west-1")}
    for region, image in found.items():
        client = fake.client("ec2", region)
        told = client.describe_images(ImageIds=[image.id])["Images"][0]
        assert "PyTorch" in told["Name"]
        assert "Base" not in told["Name"]
        assert (image.user, image.root_device) == ("ubuntu", told["RootDeviceName"])
        assert image.root_gb >= 1
        assert image.note == ""
    assert found["us-east-1"].id != found["eu-west-1"].id


def test_of_those_that_are_known_good_the_best_that_is_there_counts(
    monkeypatch: pytest.MonkeyPatch, tenant: Tenant
) -> None:
    first = find(tenant)
    monkeypatch.setattr(images, "CANDIDATES", ("9.9-ubuntu-99.04", *images.CANDIDATES))
    assert find(tenant) == first


def test_where_none_of_them_is_there_any_more_the_newest_counts(
    monkeypatch: pytest.MonkeyPatch, fake: FakeAWS, tenant: Tenant
) -> None:
    monkeypatch.setattr(images, "CANDIDATES", ("1.0-ubuntu-16.04",))
    assert "PyTorch" in find(tenant).name
    assert len(fake.asked("GetParametersByPath")) >= 1


@pytest.mark.parametrize("only", ["2.10", "2."])
def test_where_aws_names_an_image_that_is_gone_the_next_counts(fake: FakeAWS, tenant: Tenant, only: str) -> None:
    """`2.`: all that have a parameter are gone, and what EC2 lists is left."""
    first = find(tenant)
    fake.pictures = [
        dataclasses.replace(one, state="gone") if f"pytorch-{only}" in one.line else one for one in fake.pictures
    ]
    found = find(tenant)
    assert found.id != first.id
    assert "PyTorch" in found.name
    assert found.id in [one.id("us-east-1") for one in fake.pictures if one.state == "available"]


def test_without_the_permission_for_parameters_ec2_is_asked(fake: FakeAWS, tenant: Tenant) -> None:
    fake.deny("ssm:*")
    found = find(tenant)
    assert "PyTorch" in found.name
    assert "Base" not in found.name


def test_without_both_it_says_what_is_missing(fake: FakeAWS, tenant: Tenant) -> None:
    fake.deny("ssm:*", "ec2:DescribeImages")
    with pytest.raises(AuthFailed, match="lack the permission ec2:DescribeImages"):
        find(tenant)


def test_the_newest_of_awss_parameters() -> None:
    told = {
        line("oss-nvidia-driver-gpu-pytorch-2.9-ubuntu-24.04"): "nine",
        line("oss-nvidia-driver-gpu-pytorch-2.10-ubuntu-22.04"): "older system",
        line("oss-nvidia-driver-gpu-pytorch-2.10-ubuntu-24.04"): "ten",
        line("oss-nvidia-driver-gpu-pytorch-2.10-amazon-linux-2023"): "another system",
        line("base-oss-nvidia-driver-gpu-ubuntu-26.04"): "base",
        line("oss-nvidia-driver-gpu-tensorflow-2.18-ubuntu-26.04"): "not torch",
        f"{images.PATH}/oss-nvidia-driver-gpu-pytorch-2.11-ubuntu-24.04/latest/ami-name": "no id",
    }
    assert images.ranked(told) == ["ten", "older system", "another system", "nine"]
    assert images.ranked({line("base-oss-nvidia-driver-gpu-ubuntu-24.04"): "base"}) == []


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
    assert images.latest(listed) == listed[1]
    assert images.latest([]) is None


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
    assert images.read({**TOLD, "Name": name}, wish()).user == user
    assert images.read({**TOLD, "Name": name}, wish(user="me")).user == "me"


def test_an_image_that_says_nothing_of_its_login() -> None:
    with pytest.raises(UsageError) as caught:
        images.read({**TOLD, "Name": "golden-7"}, wish())
    assert caught.value.say == "who logs in to the image golden-7?"
    assert caught.value.hint.startswith("say it: --user ")


def test_its_disks() -> None:
    found = images.read(TOLD, wish())
    assert (found.root_device, found.root_gb, found.devices) == ("/dev/sda1", 45, ("/dev/sdf",))


def test_a_base_image_that_is_named_gets_a_note() -> None:
    name = "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) 20260101"
    found = images.read({**TOLD, "Name": name}, wish())
    assert found.note == (
        f"the image {name} brings no PyTorch: gpuops makes an environment with one on each machine, which takes minutes"
    )
    assert images.read(TOLD, wish()).note == ""


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
        images.read({**TOLD, **more}, wish())
    assert caught.value.say == f"the image mine-ubuntu (ami-01234567) {why}"


def test_an_image_that_is_not_in_that_region(tenant: Tenant) -> None:
    with pytest.raises(ProviderError, match="the image \\(AMI\\) is not there in that region"):
        find(tenant, wish())
