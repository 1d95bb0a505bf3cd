"""A request's own options, checked before anything is asked."""

from __future__ import annotations

from typing import Any

import pytest

from gpuops.core.errors import UsageError
from gpuops.core.models import Request
from provisioners.aws.options import wishes


def test_what_is_asked_for() -> None:
    given = {
        "disk": 200,
        "subnet": "subnet-0123456789abcdef0, subnet-01234567",
        "public-ip": True,
        "zone": "us-east-1b",
        "security-group": "sg-01234567",
        "ssh-from": "203.0.113.7",
    }
    found = wishes(Request("aws", nodes=2, gpus=4, spot=True, options={**given, "ami": "ami-01234567", "user": "me"}))
    assert (found.nodes, found.gpus, found.spot, found.disk) == (2, 4, True, 200)
    assert (found.subnets, found.security_group) == (("subnet-0123456789abcdef0", "subnet-01234567"), "sg-01234567")
    assert (found.public_ip, found.zone) == (True, "us-east-1b")
    assert (found.ami, found.user, found.ssh_from) == ("ami-01234567", "me", "203.0.113.7/32")
    assert wishes(Request("aws")).disk == 100
    assert wishes(Request("aws", options={"instance-type": "C7i.large, m7i.large"})).types == ("c7i.large", "m7i.large")
    assert wishes(Request("aws", options={"ssh-from": "10.1.2.3/8"})).ssh_from == "10.0.0.0/8"
    assert wishes(Request("aws", options={"ssh-from": "2001:db8::1"})).ssh_from == "2001:db8::1/128"


@pytest.mark.parametrize(
    ("wish", "options", "says"),
    [
        ({"image": "x"}, {}, "AWS starts no container images"),
        ({"nodes": 0}, {}, "a cluster has at least one node"),
        ({"gpus": 0}, {}, "a machine is asked for with at least one GPU"),
        ({}, {"instance-type": "c7i"}, "--instance-type c7i is no instance type"),
        ({}, {"instance-type": "c7i.large, g5"}, "--instance-type g5 is no instance type"),
        (
            {"gpu_type": "t4"},
            {"instance-type": "c7i.large"},
            "--instance-type names the machine, and --gpu-type chooses one",
        ),
        (
            {"gpu_mem": 24},
            {"instance-type": "c7i.large"},
            "--instance-type names the machine, and --gpu-mem chooses one",
        ),
        ({}, {"disk": 0}, "no disk has 0 GB"),
        ({}, {"disk": 99999}, "no disk has 99999 GB"),
        ({}, {"subnet": "sg-01234567"}, "--subnet sg-01234567 is no id"),
        ({}, {"subnet": "subnet-01234567,vpc-01234567"}, "--subnet vpc-01234567 is no id"),
        (
            {},
            {"public-ip": True},
            "--public-ip is for a subnet of your own: the default network's machines have public addresses anyway",
        ),
        ({}, {"instance-profile": "a b"}, "--instance-profile a b is no name of one"),
        (
            {},
            {"instance-profile": "arn:aws:iam::123456789012:role/x"},
            "--instance-profile arn:aws:iam::123456789012:role/x is no name of one",
        ),
        ({}, {"placement-group": "nähe"}, "--placement-group 'nähe' is no name of one"),
        ({}, {"reservation": "r-1"}, "--reservation r-1 is no id"),
        (
            {"spot": True},
            {"reservation": "cr-01234567"},
            "--reservation says which machines, and where: --spot has no meaning beside it",
        ),
        (
            {},
            {"reservation": "cr-01234567", "zone": "us-east-1b"},
            "--reservation says which machines, and where: --zone has no meaning beside it",
        ),
        ({}, {"zone": "us-east-1"}, "--zone us-east-1 is no zone"),
        ({}, {"zone": "use1-az1"}, "--zone use1-az1 is no zone"),
        ({"gpus": 1}, {"cpu": True}, "--cpu asks for machines without a GPU, and --gpus for others"),
        ({"gpu_type": "t4"}, {"cpu": True}, "--cpu asks for machines without a GPU, and --gpu-type for others"),
        (
            {},
            {"cpu": True, "instance-type": "c7i.large"},
            "--cpu asks for machines without a GPU, and --instance-type for others",
        ),
        ({}, {"security-group": "default"}, "--security-group default is no id"),
        ({}, {"ami": "ubuntu"}, "--ami ubuntu is no id"),
        ({}, {"user": "ubuntu"}, "--user says who logs in to an image of your own"),
        ({}, {"ami": "ami-01234567", "user": "x; rm"}, "--user x; rm is no name of a login"),
        ({}, {"profile": "a b"}, "--profile 'a b' cannot be used here"),
        ({}, {"profile": "a@b"}, "--profile 'a@b' cannot be used here"),
        ({}, {"ssh-from": "here"}, "--ssh-from here is no network"),
    ],
)
def test_what_makes_no_sense(wish: dict[str, Any], options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        wishes(Request("aws", **wish, options=options))
    assert caught.value.message == says
    assert caught.value.hint
