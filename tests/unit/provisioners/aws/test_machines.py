"""A machine, a group and a spot request as AWS tells of them: what they are for us, by nothing but their tags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuops.core.models import Intent, Resource
from provisioners.aws import ec2, machines, tags

TOKEN = "0123456789abcdef0123456789abcdef-12345678"
INTENT = Intent("0a1b2c3d", "c-one", TOKEN, 1_900_000_000.0, Path("agent"))
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIx"
HOME = Path("/home/me/.gpuops")
MINE = {"id": "123456789012", "profile": ""}


def told(state: str = "running", reason: str = "", **more: Any) -> dict[str, Any]:
    marks = tags.build_tags(INTENT, host_key=KEY, user="ubuntu", price=2.25, public=more.pop("public", True))
    return {
        "InstanceId": "i-1",
        "AmiLaunchIndex": 1,
        "State": {"Name": state},
        "StateReason": {"Code": reason, "Message": f"{reason}: so it is"} if reason else {},
        "InstanceType": "g5.12xlarge",
        "InstanceLifecycle": "spot",
        "SpotInstanceRequestId": "sir-1",
        "Placement": {"AvailabilityZone": "us-east-1b"},
        "PublicIpAddress": "203.0.113.5",
        "PrivateIpAddress": "172.31.0.5",
        "Tags": tags.tag_list(marks),
        **more,
    }


def seen(state: str = "running", reason: str = "", known: dict[str, Any] | None = None, **more: Any) -> Resource:
    previous = Resource("machine", "i-1", "us-east-1@work", "", True, data=known) if known else None
    return machines.machine_resource(
        ec2.parse_instance(told(state, reason, **more)), "us-east-1@work", HOME, MINE, previous
    )


def test_a_machine_by_its_tags_alone() -> None:
    found = seen()
    assert (found.kind, found.id, found.region, found.name) == (
        "machine",
        "i-1",
        "us-east-1@work",
        "gpuops-0a1b2c3d-c-one-1",
    )
    assert (found.state, found.address, found.port, found.private_address) == (
        "running",
        "203.0.113.5",
        22,
        "172.31.0.5",
    )
    assert (found.bills, found.per_hour) == (True, 2.25)
    assert found.data["target"] == {
        "host": "203.0.113.5",
        "port": 22,
        "user": "ubuntu",
        "identities": ["/home/me/.gpuops/ssh/id_ed25519"],
        "identities_only": True,
        "host_keys": [KEY],
    }
    want = {
        "connection": "ssh", "ssh_folder": "/home/me/.gpuops/ssh", "token": f"{TOKEN}-1", "revives": True,
        "boot_watch": "/var/lib/gpuops", "throwaway_key": True, "account": MINE, "zone": "us-east-1b",
        "type": "g5.12xlarge", "market": "spot", "spot_request": "sir-1",
        "notices": {"kind": "ec2", "url": "http://169.254.169.254"}, "hopeless": "", "reclaimed": False,
        "why_ended": "", "env": {"NCCL_NET": "Socket"}, "scratch": "/opt/dlami/nvme",
    }  # fmt: skip
    assert {name: found.data[name] for name in want} == want


def test_one_without_a_public_address_is_reached_by_its_own() -> None:
    found = seen(public=False, PublicIpAddress=None)
    assert found.address == found.data["target"]["host"] == "172.31.0.5"


def test_one_whose_public_address_is_not_there_yet_has_none() -> None:
    found = seen(PublicIpAddress=None)
    assert (found.address, found.port) == ("", 0)
    assert "target" not in found.data


def test_without_the_host_key_nobody_could_log_in() -> None:
    assert "target" not in seen(Tags=[{"Key": "Name", "Value": "x"}]).data


@pytest.mark.parametrize(
    ("state", "ours", "phase", "per_hour"),
    [
        ("pending", "starting", "AWS is starting it", 2.25),
        ("running", "running", "", 2.25),
        ("shutting-down", "leaving", "AWS shuts it down", 0.0),
        ("stopping", "unknown", "AWS calls it stopping", 2.25),
        ("stopped", "unknown", "AWS calls it stopped", 2.25),
        ("terminated", "ended", "", 0.0),
        ("new-word", "unknown", "AWS calls it new-word", 2.25),
    ],
)
def test_states(state: str, ours: str, phase: str, per_hour: float) -> None:
    found = seen(state)
    assert (found.state, found.data["phase"], found.per_hour) == (ours, phase, per_hour)


@pytest.mark.parametrize("reason", ["Server.SpotInstanceTermination", "Server.SpotInstanceShutdown"])
@pytest.mark.parametrize("state", ["shutting-down", "terminated"])
def test_one_that_aws_takes_back(state: str, reason: str) -> None:
    found = seen(state, reason)
    assert found.data["reclaimed"] is True
    assert found.data["why_ended"] == "AWS took it back: a spot machine, whose capacity others pay more for"
    assert found.data["hopeless"] == found.data["why_ended"]
    assert found.address == ""
    assert "target" not in found.data


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("Client.UserInitiatedShutdown", "somebody has ended it"),
        ("Client.InstanceInitiatedShutdown", "it has switched itself off"),
        ("Server.InsufficientInstanceCapacity", "AWS had no capacity for it after all"),
        ("Client.VolumeLimitExceeded", "the account may not have more disks in that region"),
        ("Server.InternalError", "AWS failed to start it"),
        ("Client.InvalidSnapshot.NotFound", "its image's disk is not there"),
        ("Server.Odd", "Server.Odd: so it is"),
        ("", ""),
    ],
)
def test_why_one_has_ended(reason: str, why: str) -> None:
    found = seen("terminated", reason)
    assert found.data["why_ended"] == why
    assert found.data["hopeless"] == (why or "AWS is ending it")
    assert found.data["reclaimed"] is reason.startswith("Server."), "AWS's own doing"


def test_a_running_one_has_no_reason_to_end() -> None:
    assert seen("running", "Client.UserInitiatedShutdown").data["why_ended"] == ""


def test_what_was_known_is_not_forgotten() -> None:
    known = {"throwaway_key": False, "token": "kept", "spot_request": "sir-kept"}
    found = seen(known=known, Tags=[], SpotInstanceRequestId=None)
    assert (found.data["throwaway_key"], found.data["token"], found.data["spot_request"]) == (False, "kept", "sir-kept")


def test_what_is_not_ours_has_no_mark() -> None:
    assert seen(Tags=[{"Key": "gpuops:owner", "Value": "0a1b2c3d"}]).name == ""


def test_a_group_and_a_request_cost_nothing() -> None:
    marks = tags.build_tags(INTENT, host_key=KEY, user="ubuntu", price=2.25, public=True)
    group = machines.group_resource(ec2.SecurityGroup("sg-1", "vpc-1", (), marks), "us-east-1", MINE)
    asked = ec2.parse_spot_request({"SpotInstanceRequestId": "sir-1", "Tags": tags.tag_list(marks)})
    request = machines.request_resource(asked, "us-east-1", MINE)
    assert (group.kind, group.name, group.bills) == ("group", "gpuops-0a1b2c3d-c-one-group", False)
    assert (request.kind, request.name, request.bills) == ("spot-request", "gpuops-0a1b2c3d-c-one-spot", False)
    assert group.data["token"].startswith(TOKEN)
    assert request.data["token"].startswith(TOKEN)


def test_a_cluster_by_the_mark_of_anything_of_it() -> None:
    assert tags.cluster_of("gpuops-0a1b2c3d-c-one-group") == ("0a1b2c3d", "c-one")
    assert tags.cluster_of("gpuops-0a1b2c3d-x-0") == ("0a1b2c3d", "x")
