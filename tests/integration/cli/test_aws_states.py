"""AWS as its user meets it: the states that an account may be in, each with the words that are read, against a server
that plays it. Quotas have a file of their own (test_aws_quota_states).

Nothing is behind the machines here, and none that is started gets an address: what is asked for is undone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from gpuops.offers.billing_account import KEY_ORDER
from provisioners.aws import credentials
from provisioners.aws.capacity import UNPRICED_HINT
from tests.conftest import Shell
from tests.fakes.aws import Fault
from tests.integration.cli.tenant import ONE, Tenant

pytestmark = pytest.mark.usefixtures("no_guard_stays")

G5 = "g5.12xlarge"
ZONES = "abcdef"
POLICY = "gpuops policy aws prints what gpuops needs; have whoever runs the account allow it"
NO_KEYS = "export AWS_ACCESS_KEY_ID=… and AWS_SECRET_ACCESS_KEY=… or put them into .env, or run: aws configure"
LATER = "try again later, let it be tried for you (--wait 2h), or allow more: other types, --region A,B"
LOGIN = "log in again (aws sso login), or export fresh keys"
LACK = "these AWS credentials lack the permission"
NONE_FREE = "AWS has none free there now"
VALIDATED = (
    "Your request for accessing resources in this region is being validated, and you will not be able to launch "
    "additional resources in this region until the validation is complete."
)
LATE = "Signature expired: 20261122T080000Z is now earlier than 20261122T084500Z (20261122T090000Z - 15 min.)"
BASE = "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) 20261030"


@dataclass(frozen=True)
class Row:
    what: str
    say: str
    hint: str
    code: int = 3
    words: tuple[str, ...] = ONE
    world: Callable[[Tenant], object] = lambda _: None
    runs: int = 0
    """How often machines were asked for."""


def denied(*permissions: str) -> Callable[[Tenant], object]:
    return lambda tenant: tenant.fake.deny(*permissions)


def named(**attributes: Any) -> Callable[[Tenant], object]:
    return lambda tenant: [setattr(tenant.fake, name, value) for name, value in attributes.items()]


def unset(*names: str) -> Callable[[Tenant], object]:
    return lambda tenant: [tenant.patch.delenv(name, raising=False) for name in names]


def answers(action: str, code: str, message: str, http: int = 400) -> Callable[[Tenant], object]:
    fault = Fault(action, what="code", code=code, message=message, http=http, times=None)
    return lambda tenant: tenant.fake.play(fault)


def taken(tenant: Tenant, *but: str) -> None:
    """No zone has any left, but for these."""
    for zone in ZONES:
        tenant.fake.capacity[f"us-east-1{zone}", G5] = 9 if zone in but else 0


def without_boto3(tenant: Tenant) -> None:
    tenant.patch.setattr(credentials.importlib.util, "find_spec", lambda _: None)


KEYS = [
    Row("no credentials", "there are no AWS credentials", NO_KEYS,
        world=unset("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE")),
    Row("no secret key", "AWS_ACCESS_KEY_ID is set, and AWS_SECRET_ACCESS_KEY, the other half of the AWS credentials, "
        "is not", "export AWS_SECRET_ACCESS_KEY=… too", world=unset("AWS_SECRET_ACCESS_KEY")),
    Row("no key id", "AWS_SECRET_ACCESS_KEY is set, and AWS_ACCESS_KEY_ID, the other half of the AWS credentials, "
        "is not", "export AWS_ACCESS_KEY_ID=… too", world=unset("AWS_ACCESS_KEY_ID")),
    Row("no boto3", "AWS needs the package boto3", "pip install 'gpuops[aws]'", world=without_boto3),
    Row("no such profile", "AWS is not set up for that here: The config profile (nobody) could not be found",
        "aws configure list-profiles shows what there is", words=(*ONE, "--profile", "nobody")),
    Row("expired", "the AWS credentials have expired", LOGIN, world=named(expired=True)),
    Row("wrong keys", "AWS does not accept the credentials, or the region is not switched on for them: The security "
        "token included in the request is invalid", "look at who you are there: aws sts get-caller-identity",
        world=lambda tenant: tenant.fake.wrong_keys()),
    Row("a wrong secret", "AWS does not accept the signature of the credentials: The request signature we calculated "
        "does not match the signature you provided", "check the secret key, and this computer's clock",
        world=lambda tenant: tenant.patch.setenv("AWS_SECRET_ACCESS_KEY", "nope")),
    Row("a clock that is behind", f"this computer's clock is wrong, says AWS: {LATE.rstrip('.')}",
        "set it right (sudo timedatectl set-ntp true), and try again",
        world=answers("*", "SignatureDoesNotMatch", LATE, 403)),
    Row("a clock, or a login that is over",
        "the AWS credentials have expired, or this computer's clock is wrong: Request has expired",
        f"{LOGIN}; and look at the clock: date -u", world=answers("ec2:*", "RequestExpired", "Request has expired.")),
    Row("blocked", "AWS has blocked this account: This account is currently blocked and not recognized as a valid "
        "account", "write to its support: https://console.aws.amazon.com/support", runs=1, world=answers(
            "RunInstances", "Blocked", "This account is currently blocked and not recognized as a valid account.")),
]  # fmt: skip

PERMISSIONS = [
    Row("may start nothing", f"{LACK} ec2:RunInstances, and cannot start 2 x {G5} in us-east-1c", POLICY, runs=1,
        world=denied("ec2:RunInstances")),
    Row("may not tag", f"{LACK} ec2:CreateTags, and cannot make a security group in us-east-1", POLICY,
        world=denied("ec2:CreateTags")),
    Row("may see no prices on demand", f"{LACK} pricing:GetProducts, and cannot read AWS's price list",
        f"{POLICY}; or {UNPRICED_HINT}",
        words=tuple(word for word in ONE if word != "--spot"), world=denied("pricing:*")),
    Row("may see no spot prices", f"{LACK} ec2:DescribeSpotPriceHistory, and cannot see the spot prices", POLICY,
        world=denied("ec2:DescribeSpotPriceHistory")),
    Row("no role for spot", "the account has never had a spot machine, and these credentials may not make the role "
        "that its first one needs",
        "have it made once: aws iam create-service-linked-role --aws-service-name spot.amazonaws.com",
        world=named(spot_role=False), runs=1),
]  # fmt: skip

REGIONS = [
    Row("an unknown region", "AWS has no region 'us-east-9' that this computer knows",
        "did you mean us-east-2 or us-east-1 or us-west-2? Where it is new: pip install -U boto3", 2,
        (*ONE, "--region", "us-east-9")),
    Row("no region at all", "AWS has no region 'virginia' that this computer knows",
        "write it like us-east-1, several by commas", 2, (*ONE, "--region", "virginia")),
    Row("a zone", "us-east-1a is a zone, and no region",
        "say --region us-east-1: its zones are tried by their prices (--zone us-east-1a for that one alone)", 2,
        (*ONE, "--region", "us-east-1a")),
    Row("a region that is not switched on", "the region af-south-1 is not switched on in this AWS account",
        "switch it on (aws account enable-region --region-name af-south-1), or leave it out", 3,
        (*ONE, "--region", "af-south-1")),
    Row("a region still under verification", "AWS still checks whether this account may use that region: "
        f"{VALIDATED.rstrip('.')}", "wait: it takes minutes, at most four hours (--wait 4h tries as long)",
        world=answers("RunInstances", "PendingVerification", VALIDATED), words=(*ONE, "--max-price", "3.6"), runs=1),
    Row("no default network", "the account has no default network (VPC) in us-east-1",
        "make one: aws ec2 create-default-vpc --region us-east-1; or name a subnet of your own: --subnet subnet-…",
        world=named(default_vpc=False)),
    Row("a type of another region", "AWS has no instance type 'p6-b300.48xlarge' with a GPU in us-east-2",
        "did you mean p6-b200.48xlarge or p5.48xlarge or g6.48xlarge? Or look in other regions: --region A,B", 2,
        (*ONE, "--gpu-type", "p6-b300.48xlarge", "--region", "us-east-2")),
    Row("a zone without the type", f"us-east-1 has {G5} in us-east-1a, us-east-1b, us-east-1c, us-east-1d, us-east-1f "
        "only, and our subnets are in us-east-1e", "name a subnet there (--subnet), or make the default one: "
        "aws ec2 create-default-subnet --availability-zone us-east-1a",
        words=(*ONE, "--subnet", "{subnet-e}", "--ssh-from", "10.0.0.0/8")),
    Row("a subnet without public addresses", "the subnet {subnet-a} gives its machines no public address",
        "let them have one with --public-ip, say from where inside they are reached with --ssh-from 10.0.0.0/8, or "
        "name another subnet", 2,
        (*ONE, "--subnet", "{subnet-a}")),
    Row("an image of another region", "the image (AMI) is not there in that region: The image id '[{image-west}]' does "
        "not exist", "ids of images differ by region: name one of that region with --ami, or leave --ami out",
        words=(*ONE, "--ami", "{image-west}")),
    Row("several GPUs of one name", "'rtx pro' is more than one GPU at AWS: RTX PRO 4500, RTX PRO Server 6000",
        "name one of them exactly", 2, (*ONE, "--gpu-type", "rtx pro", "--gpus", "4")),
]  # fmt: skip

CAPACITY = [
    Row("capacity nowhere", f"none of 5 offers could be had: {NONE_FREE}", LATER, world=taken, runs=5,
        words=(*ONE, "--max-price", "9")),
    Row("capacity nowhere on demand", f"none of 5 offers could be had: {NONE_FREE}", LATER, world=taken, runs=5,
        words=tuple(word for word in ONE if word != "--spot")),
    Row("capacity nowhere that is not too dear", f"none of 4 offers could be had: {NONE_FREE}; the next offer is 2 x "
        f"{G5} (4 x A10G, 24 GB each) in us-east-1a, spot at $5.36/h, more than 1.5 times $3.55/h",
        f"allow it: --max-price 5.37; or {LATER}", world=taken, runs=4),
    Row("too low a price", "aws offers nothing at $0.50/h or less: the cheapest that fits is $3.55/h",
        "raise --max-price, or ask for less", words=(*ONE, "--max-price", "0.5")),
]  # fmt: skip

ROWS = [*KEYS, *PERMISSIONS, *REGIONS, *CAPACITY]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_one_sentence_one_thing_to_do_and_nothing_left(tenant: Tenant, row: Row) -> None:
    row.world(tenant)
    said = tenant.type(*row.words)
    assert said.err.splitlines()[-2:] == [f"error: {tenant.filled(row.say)}", f"hint: {tenant.filled(row.hint)}"]
    assert (said.code, said.out) == (row.code, "")
    assert len(tenant.fake.asked("RunInstances")) == row.runs
    has_begun = bool(tenant.fake.asked("CreateSecurityGroup") or tenant.fake.asked("RunInstances"))
    assert ("lab is undone, nothing of it is left" in said.err) == has_begun
    tenant.expect_nothing_left(said)


def test_the_whole_of_what_is_read(tenant: Tenant) -> None:
    """Typed at a shell, over HTTP from another process: nothing else is printed."""
    tenant.fake.deny("ec2:DescribeInstanceTypes")
    said = Shell(tenant.desk.home, tenant.desk.folder, dict(tenant.fake.env)).run(*ONE)
    assert said.stdout == ""
    assert re.sub(r"(looking|asking) .*\n", "", said.stderr) == (
        f"note: AWS account {tenant.fake.account}, as gpuops-tester; it looks in us-east-1 (--region A,B for others, "
        "--profile for another account)\n"
        f"error: {LACK} ec2:DescribeInstanceTypes, and cannot list instance types\n"
        f"hint: {POLICY}\n"
    )
    assert said.returncode == 3


def test_capacity_in_the_third_zone_only(tenant: Tenant) -> None:
    taken(tenant, "d")
    said = tenant.type(*ONE)
    assert [(one.status, one.error) for one in tenant.fake.asked("RunInstances")] == [
        (500, "InsufficientInstanceCapacity"), (500, "InsufficientInstanceCapacity"), (200, ""),
    ]  # fmt: skip
    assert len(tenant.fake.asked("CreateSecurityGroup")) == 1, "the same in all zones"
    assert len(tenant.fake.asked("DeleteSecurityGroup")) == 0, "and until the end"
    tried = [line for line in said.err.splitlines() if line.startswith("lab: 2 x ")]
    assert tried == [
        f"lab: 2 x {G5} (4 x A10G, 24 GB each) in us-east-1{zone}, spot, ${price}/h"
        for zone, price in (("b", "3.78"), ("d", "4.12"))
    ], "the first was told before the question"
    assert "error: lab was not ready after" in said.err, "nothing is behind the machines of this fake"
    assert said.code == 4
    tenant.expect_nothing_left(said)


def paid(tenant: Tenant) -> str:
    return f"paid by AWS account {tenant.fake.account}, as gpuops-tester (key from AWS_ACCESS_KEY_ID)"


def test_a_base_image_is_said_to_bring_no_torch(tenant: Tenant) -> None:
    said = tenant.type(*ONE, "--ami", "{image-base}", "--dry-run")
    assert said.code == 0
    assert said.out.splitlines()[6:] == [
        f"would create: 2 x {G5} (4 x A10G, 24 GB each) in us-east-1c, spot, $3.55/h, {paid(tenant)}",
        (
            f"note: the image {BASE} brings no PyTorch: gpuops makes an environment with one on each machine, which "
            "takes minutes"
        ),
        "the top one is tried first: the cheapest; the next ones follow where it cannot be had",
    ]


def test_zones_without_the_type_are_left_out(tenant: Tenant) -> None:
    tenant.fake.not_offered |= {(f"us-east-1{zone}", G5) for zone in "abc"}
    said = tenant.type(*ONE, "--dry-run")
    assert said.code == 0
    assert re.findall(r"us-east-1[a-f]", "".join(said.out.splitlines(keepends=True)[:3])) == [
        "us-east-1d",
        "us-east-1f",
    ]


def test_of_several_regions_one_that_is_not_switched_on_is_left_out(tenant: Tenant) -> None:
    said = tenant.type(*ONE, "--region", "us-east-1,af-south-1", "--dry-run")
    assert said.code == 0
    assert "note: af-south-1: the region af-south-1 is not switched on in this AWS account\n" in said.out


def test_doctor_says_whose_account_it_is_and_warns_of_nothing(tenant: Tenant) -> None:
    said = tenant.type("doctor", "aws")
    assert said.code == 0
    assert said.out.split("\n\n")[-2].splitlines() == [
        "aws",
        f"  note: AWS account {tenant.fake.account}, as gpuops-tester",
        "    hint: it looks in us-east-1 (--region A,B for others, --profile for another account)",
        f"  note: what is rented here: {paid(tenant)}",
        f"    hint: keys are looked for in this order: {KEY_ORDER}",
    ]
    assert "warning" not in said.out


def test_doctor_says_what_is_wrong_with_the_credentials(tenant: Tenant) -> None:
    tenant.fake.expired = True
    said = tenant.type("doctor", "aws")
    assert said.code == 3
    assert said.out.split("\n\n")[-2].splitlines() == [
        "aws", "  error: the AWS credentials have expired", f"    hint: {LOGIN}",
    ]  # fmt: skip
