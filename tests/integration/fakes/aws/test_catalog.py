"""What there is to rent: types, images, the price list."""

from __future__ import annotations

import json
from typing import Any

import pytest
from botocore.exceptions import BotoCoreError

from tests.fakes.aws import FakeAWS
from tests.integration.fakes.aws.renter import G5, Renter, refused


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
