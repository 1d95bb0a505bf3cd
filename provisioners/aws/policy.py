"""The least that an IAM user or role must be allowed for what gpuops does, as a policy document. Pure.

What makes something is allowed only where it is tagged as ours in the same call, and what ends or changes something
only where it carries that tag.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gpuops.core.errors import UsageError
from provisioners.aws.tags import MANAGED

OURS = {"StringEquals": {f"aws:ResourceTag/{MANAGED}": "true"}}
TAGGED = {"StringEquals": {f"aws:RequestTag/{MANAGED}": "true"}}
# A policy's ARNs take `*` in any part, the partition too: GovCloud's and China's users can attach it as it is.
BUCKET = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*))?")

READ = (
    "sts:GetCallerIdentity",
    "freetier:GetAccountPlanState",
    "ec2:DescribeRegions",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeInstanceTypeOfferings",
    "ec2:DescribeSpotPriceHistory",
    "ec2:DescribeImages",
    "ec2:DescribeVpcs",
    "ec2:DescribeSubnets",
    "ec2:DescribeCapacityReservations",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeInstances",
    "ec2:DescribeSpotInstanceRequests",
    "ec2:DescribeVolumes",
    "ec2:DescribeNetworkInterfaces",
    "pricing:GetProducts",
    "servicequotas:GetServiceQuota",
    "servicequotas:GetAWSDefaultServiceQuota",
    "servicequotas:ListRequestedServiceQuotaChangeHistory",
    "servicequotas:GetRequestedServiceQuotaChange",
)
"""Of no single thing: AWS takes no other resource for them than all."""
IMAGES = ("ssm:GetParameters", "ssm:GetParametersByPath")
OWN = (
    "ec2:TerminateInstances",
    "ec2:GetConsoleOutput",
    "ec2:CancelSpotInstanceRequests",
    "ec2:AuthorizeSecurityGroupIngress",
    "ec2:RevokeSecurityGroupIngress",
    "ec2:DeleteSecurityGroup",
    "ec2:DeleteVolume",
    "ec2:DeleteNetworkInterface",
)
KEEP = ("s3:PutObject", "s3:GetObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts")
"""A multipart upload with presigned URLs, and fetching the object."""


def document(sink: str = "") -> dict[str, Any]:
    """Version 2012-10-17, to be attached to a user or role. Raises UsageError for a sink that is no bucket."""
    return {"Version": "2012-10-17", "Statement": [*_statements(), *_of_sink(sink)]}


def _statements() -> list[dict[str, Any]]:
    made = ("instance", "volume", "network-interface", "spot-instances-request")
    shared = ("subnet", "security-group", "placement-group", "capacity-reservation")
    public = ["arn:*:ec2:*::image/*", "arn:*:ec2:*::snapshot/*"]
    return [
        _allow("Look", READ, "*"),
        _allow("FindImage", IMAGES, "arn:*:ssm:*::parameter/aws/service/*"),
        _allow("LaunchFrom", "ec2:RunInstances", [*public, *_of_ec2(*shared)]),
        _allow("LaunchTagged", "ec2:RunInstances", _of_ec2(*made), TAGGED),
        _allow("GroupTagged", "ec2:CreateSecurityGroup", _of_ec2("security-group"), TAGGED),
        _allow("GroupInNetwork", "ec2:CreateSecurityGroup", _of_ec2("vpc")),
        _allow(
            "TagWhatIsMade",
            "ec2:CreateTags",
            "arn:*:ec2:*:*:*/*",
            {"StringEquals": {"ec2:CreateAction": ["RunInstances", "CreateSecurityGroup"]}},
        ),
        _allow("EndOurs", OWN, _of_ec2(*made, "security-group"), OURS),
        _allow("AskForMore", "servicequotas:RequestServiceQuotaIncrease", "arn:*:servicequotas:*:*:ec2/*"),
        _allow(
            "FirstOfItsKind",
            "iam:CreateServiceLinkedRole",
            "arn:*:iam::*:role/aws-service-role/*",
            {"StringEquals": {"iam:AWSServiceName": ["spot.amazonaws.com", "servicequotas.amazonaws.com"]}},
        ),
    ]


def _of_sink(sink: str) -> list[dict[str, Any]]:
    if not sink:
        return []
    match = BUCKET.fullmatch(sink)
    if match is None:
        raise UsageError(f"--sink {sink} is no bucket", "write it like s3://my-bucket/runs")
    bucket, prefix = match[1], (match[2] or "").strip("/")
    inside = f"arn:*:s3:::{bucket}/{prefix}/*" if prefix else f"arn:*:s3:::{bucket}/*"
    return [_allow("KeepResults", KEEP, inside)]


def _of_ec2(*kinds: str) -> list[str]:
    return [f"arn:*:ec2:*:*:{kind}/*" for kind in kinds]


def _allow(
    name: str, what: str | Sequence[str], where: str | Sequence[str], where_only: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    what, where = (one if isinstance(one, str) else list(one) for one in (what, where))
    statement: dict[str, Any] = {"Sid": name, "Effect": "Allow", "Action": what, "Resource": where}
    return statement if where_only is None else {**statement, "Condition": where_only}
