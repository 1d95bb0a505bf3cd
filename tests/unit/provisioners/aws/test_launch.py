"""The one request that starts machines: what it says, and that it never makes anything twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from gpuops.core.errors import AuthFailed, NoCapacity, ProviderError, QuotaExceeded, RateLimited, Rejected, Unknown
from gpuops.core.models import Intent, Offer, Price
from provisioners.aws import launch, tags
from tests.fakes.provider import FakeClock

TOKEN = "0123456789abcdef0123456789abcdef-12345678"
INTENT = Intent("0a1b2c3d", "c-one", TOKEN, 1_900_000_000.5, Path("agent"))
DATA = {
    "zone": "us-east-1b", "type": "g5.12xlarge", "market": "spot", "ami": "ami-1", "user": "ubuntu", "public": True,
    "root_device": "/dev/sda1", "disk": 200, "subnet": "subnet-1", "vpc": "vpc-1", "devices": ["/dev/sdf"],
}  # fmt: skip
OFFER = Offer("aws", "x", "2 x g5.12xlarge", 2, 4, "us-east-1", (Price("machines", 4.5),), DATA)
TOLD = tags.build_tags(INTENT, host_key="ssh-ed25519 AAAA", user="ubuntu", price=2.25, public=True)
EBS = {"DeleteOnTermination": True, "Encrypted": True}


def asked(**more: Any) -> dict[str, Any]:
    offer = Offer("aws", "x", "2 x g5.12xlarge", 2, 4, "us-east-1", (), {**DATA, **more})
    return launch.run_parameters(launch.parse_offer(offer), INTENT, "sg-1", "#cloud-config", TOLD)


def test_all_nodes_or_none_once_and_one_time() -> None:
    found = asked()
    assert (found["MinCount"], found["MaxCount"], found["ClientToken"]) == (2, 2, TOKEN)
    assert len(TOKEN) <= 64
    assert found["InstanceMarketOptions"] == {
        "MarketType": "spot",
        "SpotOptions": {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"},
    }
    assert found["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert "KeyName" not in found
    assert "InstanceMarketOptions" not in asked(market="on-demand", spot_most=2.5)
    assert asked(spot_most=2.5)["InstanceMarketOptions"]["SpotOptions"]["MaxPrice"] == "2.5000"


def test_its_metadata_can_be_asked_by_its_own_processes_alone() -> None:
    assert asked()["MetadataOptions"] == {
        "HttpEndpoint": "enabled",
        "HttpTokens": "required",
        "HttpPutResponseHopLimit": 1,
        "InstanceMetadataTags": "disabled",
    }


def test_every_disk_and_address_goes_with_its_machine() -> None:
    found = asked(public=False)
    assert found["BlockDeviceMappings"] == [
        {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 200, "VolumeType": "gp3", **EBS}},
        {"DeviceName": "/dev/sdf", "Ebs": EBS},
    ]
    (card,) = found["NetworkInterfaces"]
    assert (card["SubnetId"], card["Groups"], card["DeleteOnTermination"]) == ("subnet-1", ["sg-1"], True)
    assert card["AssociatePublicIpAddress"] is False
    assert "SubnetId" not in found
    assert "SecurityGroupIds" not in found


@pytest.mark.parametrize(
    ("market", "kinds"),
    [
        ("spot", ["instance", "volume", "network-interface", "spot-instances-request"]),
        ("on-demand", ["instance", "volume", "network-interface"]),
    ],
)
def test_everything_is_marked_in_the_call_that_makes_it(market: str, kinds: list[str]) -> None:
    found = asked(market=market)["TagSpecifications"]
    assert [one["ResourceType"] for one in found] == kinds
    for one in found:
        assert {tag["Key"]: tag["Value"] for tag in one["Tags"]} == {
            "Name": "gpuops-0a1b2c3d-c-one",
            "gpuops:managed": "true",
            "gpuops:owner": "0a1b2c3d",
            "gpuops:cluster": "c-one",
            "gpuops:token": TOKEN,
            "gpuops:host-key": "ssh-ed25519 AAAA",
            "gpuops:user": "ubuntu",
            "gpuops:price": "2.25",
            "gpuops:end": "1900000000",
            "gpuops:public": "true",
        }


class Aws:
    """Answers RunInstances with what comes next, and remembers what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, Any]] = []
        self.takes: Callable[[], None] = lambda: None

    def run_instances(self, **parameters: Any) -> Any:
        self.asked.append(parameters)
        self.takes()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def says(code: str, status: int = 400) -> ClientError:
    response = {"Error": {"Code": code, "Message": "so"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(response, "RunInstances")  # type: ignore[arg-type]


LOST = ReadTimeoutError(endpoint_url="u")
GOOD = {"Instances": [{"InstanceId": "i-1"}]}
STARTED = ["i-1"]


def start(aws: Aws, *, group_is_new: bool = True, each_s: float = 0.0, took_s: float = 0.0) -> list[str]:
    clock = FakeClock()
    began = clock.monotonic()
    aws.takes = lambda: clock.sleep(each_s) if each_s else None
    try:
        started = launch.run_instances(
            aws, asked(), "start", group_is_new=group_is_new, clock=clock, began=began - took_s
        )
        return [instance.id for instance in started]
    finally:
        assert clock.monotonic() - began < 150


@pytest.mark.parametrize(
    "first", [says("RequestLimitExceeded", 503), says("InternalError", 500), LOST, says("Unavailable", 503)]
)
def test_what_may_have_gone_wrong_on_the_way_is_asked_again_with_the_same_token(first: Exception) -> None:
    aws = Aws(first, first, GOOD)
    assert start(aws) == STARTED
    assert len(aws.asked) == 3
    assert aws.asked[0] == aws.asked[1] == aws.asked[2]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (says("InsufficientInstanceCapacity", 500), NoCapacity),
        (says("MaxSpotInstanceCountExceeded"), QuotaExceeded),
        (says("VcpuLimitExceeded"), QuotaExceeded),
        (says("UnauthorizedOperation", 403), AuthFailed),
        (says("InvalidParameterValue"), Rejected),
        (says("InvalidSubnetID.NotFound"), Rejected),
        (says("IdempotentParameterMismatch"), Unknown),
    ],
)
def test_a_clear_no_is_not_asked_again(answer: Exception, kind: type[ProviderError]) -> None:
    aws = Aws(answer)
    with pytest.raises(kind) as caught:
        start(aws)
    assert type(caught.value) is kind
    assert len(aws.asked) == 1


@pytest.mark.parametrize(("answer", "kind"), [(says("RequestLimitExceeded", 503), RateLimited), (LOST, Unknown)])
def test_it_ends_some_time(answer: Exception, kind: type[ProviderError]) -> None:
    aws = Aws(answer)
    with pytest.raises(kind):
        start(aws)
    assert len(aws.asked) == launch.MAX_ATTEMPTS


def test_slow_answers_end_it_sooner() -> None:
    aws = Aws(LOST)
    with pytest.raises(Unknown):
        start(aws, each_s=40.0)
    assert 1 < len(aws.asked) < launch.MAX_ATTEMPTS


def test_what_took_long_before_leaves_one_request() -> None:
    aws = Aws(LOST)
    with pytest.raises(Unknown):
        start(aws, took_s=500.0)
    assert len(aws.asked) == 1


@pytest.mark.parametrize(
    ("then", "instead"),
    [
        (says("InsufficientInstanceCapacity", 500), NoCapacity),
        (says("MaxSpotInstanceCountExceeded"), QuotaExceeded),
        (says("RequestLimitExceeded", 503), RateLimited),
        (says("ExpiredToken", 400), AuthFailed),
    ],
)
def test_once_a_request_was_not_answered_no_later_no_is_certain(then: Exception, instead: type[ProviderError]) -> None:
    aws = Aws(LOST, then)
    with pytest.raises(Unknown) as caught:
        start(aws)
    assert caught.value.message.endswith("; and a request before was not answered")
    assert type(caught.value.instead) is instead, "what holds once nothing of it is found"


def test_a_group_that_was_just_made_may_not_be_known_yet() -> None:
    aws = Aws(says("InvalidGroup.NotFound"), says("InvalidGroup.NotFound"), GOOD)
    assert start(aws) == STARTED
    with pytest.raises(Rejected):
        start(Aws(says("InvalidGroup.NotFound")), group_is_new=False)


def test_throttled_and_then_full_is_full() -> None:
    with pytest.raises(NoCapacity):
        start(Aws(says("RequestLimitExceeded", 503), says("InsufficientInstanceCapacity", 500)))


def test_what_is_started_in_words() -> None:
    assert launch.parse_offer(OFFER).say == "start 2 x g5.12xlarge in us-east-1b"


def test_pauses_differ() -> None:
    assert len({launch.backoff_s(3) for _ in range(20)}) > 1
    assert all(0 < launch.backoff_s(attempt) <= 16 for attempt in range(20))


def test_what_an_offer_keeps_of_its_machines_is_read_again() -> None:
    data = {**DATA, "vcpus": 48, "spot_most": 1.5, "ami_ours": True, "security_group": "sg-2", "ssh_from": "10.0.0.0/8",
            "launch": {"Placement": {"GroupName": "near"}}, "public": False}  # fmt: skip
    assert launch.parse_offer(dataclasses.replace(OFFER, data=data)).document() == data
