"""A request's own options, checked before anything is asked."""

from __future__ import annotations

from typing import Any

import pytest

from gpuops.errors import UsageError
from gpuops.models import Request
from provisioners.aws.options import wishes


def test_what_is_asked_for() -> None:
    given = {
        "disk": 200,
        "subnet": "subnet-0123456789abcdef0",
        "security-group": "sg-01234567",
        "ssh-from": "203.0.113.7",
    }
    found = wishes(Request("aws", nodes=2, gpus=4, spot=True, options={**given, "ami": "ami-01234567", "user": "me"}))
    assert (found.nodes, found.gpus, found.spot, found.disk) == (2, 4, True, 200)
    assert (found.subnet, found.security_group) == ("subnet-0123456789abcdef0", "sg-01234567")
    assert (found.ami, found.user, found.ssh_from) == ("ami-01234567", "me", "203.0.113.7/32")
    assert wishes(Request("aws")).disk == 100
    assert wishes(Request("aws", options={"ssh-from": "10.1.2.3/8"})).ssh_from == "10.0.0.0/8"
    assert wishes(Request("aws", options={"ssh-from": "2001:db8::1"})).ssh_from == "2001:db8::1/128"


@pytest.mark.parametrize(
    ("wish", "options", "says"),
    [
        ({"image": "x"}, {}, "AWS starts no container images"),
        ({"nodes": 0}, {}, "a cluster has at least one node"),
        ({"gpus": 0}, {}, "a machine is asked for with at least one GPU"),
        ({}, {"disk": 0}, "no disk has 0 GB"),
        ({}, {"disk": 99999}, "no disk has 99999 GB"),
        ({}, {"subnet": "sg-01234567"}, "--subnet sg-01234567 is no id"),
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
    assert caught.value.say == says
    assert caught.value.hint
