"""What tests/unit/provisioners/aws/test_images.py leaves to real processes or sockets."""

from __future__ import annotations

import dataclasses

import pytest

from gpuops.core.errors import AuthFailed, ProviderError
from provisioners.aws import images
from provisioners.aws.options import Wishes
from tests.fakes.aws import FakeAWS
from tests.integration.provisioners.aws.conftest import Tenant
from tests.unit.provisioners.aws.test_images import NONE, wish


def find(tenant: Tenant, given: Wishes = NONE, region: str = "us-east-1") -> images.Image:
    return images.find_image(tenant.provider._account, region, given)


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


def test_an_image_that_is_not_in_that_region(tenant: Tenant) -> None:
    with pytest.raises(ProviderError, match="the image \\(AMI\\) is not there in that region"):
        find(tenant, wish())
