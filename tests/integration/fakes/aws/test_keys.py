"""Who may ask: keys that are no good, permissions, profiles."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import HANG_S
from tests.fakes.aws import FakeAWS, signatures
from tests.fakes.aws.signatures import check
from tests.integration.fakes.aws.renter import G_SPOT, Renter, quota, refused, words

SERVICES: dict[str, Callable[[FakeAWS], Any]] = {
    "ec2": lambda fake: fake.client("ec2").describe_instances(),
    "sts": lambda fake: fake.client("sts").get_caller_identity(),
    "quotas": lambda fake: quota(fake, G_SPOT),
    "s3": lambda fake: fake.client("s3").list_objects_v2(Bucket="b-of-ours"),
}


@pytest.mark.parametrize(
    ("state", "codes"),
    [
        ("expired", ("RequestExpired", "ExpiredToken", "ExpiredTokenException", "ExpiredToken")),
        ("unknown", ("AuthFailure", "InvalidClientTokenId", "UnrecognizedClientException", "InvalidAccessKeyId")),
        ("secret", ("AuthFailure", "SignatureDoesNotMatch", "InvalidSignatureException", "SignatureDoesNotMatch")),
        ("denied", ("UnauthorizedOperation", "AccessDenied", "AccessDeniedException", "AccessDenied")),
    ],
)
def test_keys_that_are_no_good_are_refused_in_the_words_of_each_service(
    fake: FakeAWS, state: str, codes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    fake.bucket("b-of-ours")
    for ask in SERVICES.values():
        ask(fake)
    if state == "expired":
        fake.expired = True
    elif state == "unknown":
        fake.wrong_keys()
    elif state == "secret":  # the service compares with another one than the client signs with
        right = fake.secret
        monkeypatch.setattr(signatures, "check", lambda request, _, now: check(request, right[::-1], now))
    else:
        fake.deny("*")
    assert tuple(refused(ask, fake)[0] for ask in SERVICES.values()) == codes


def test_a_denial_names_the_permission_also_where_it_is_the_tags_that_are_denied(fake: FakeAWS, renter: Renter):
    fake.deny("ec2:CreateTags")
    assert refused(renter.launch) == ("UnauthorizedOperation", 403)
    assert f"{fake.world.arn()} is not authorized to perform: ec2:CreateTags" in words(renter.launch)
    assert renter.told() == []
    fake.permit("ec2:CreateTags")
    assert renter.launch()
    fake.deny("ec2:Terminate*")
    assert refused(renter.ec2.terminate_instances, InstanceIds=["i-0123456789abcdef0"])[0] == "UnauthorizedOperation"


def test_profiles_and_a_program_that_knows_only_the_environment(fake: FakeAWS):
    program = """
        import boto3, urllib.request, os
        print(boto3.client("sts").get_caller_identity()["Account"])
        print(boto3.Session(profile_name="work").region_name)
        print(urllib.request.urlopen(os.environ["GPUOPS_CHECKIP_URL"]).read().decode().strip())
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    # boto3 prefers the environment's region to a profile's
    for region, leave_out in (
        ("us-east-1", ()),
        ("us-west-2", ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION")),
    ):
        env = environment | {name: value for name, value in fake.env.items() if name not in leave_out}
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)], env=env, capture_output=True, text=True, timeout=HANG_S
        )
        assert done.stdout.split() == [fake.account, region, "203.0.113.7"], done.stderr
    assert all(any(secret in value for value in fake.env.values()) for secret in fake.secrets)
