"""The policy allows what gpuops calls, and nothing else."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gpuops.core.errors import UsageError
from provisioners.aws import policy

SOURCES = Path(policy.__file__).parent
PREFIXES = {"ec2": "ec2", "sts": "sts", "ssm": "ssm", "pricing": "pricing", "service-quotas": "servicequotas",
            "freetier": "freetier"}  # fmt: skip
LONGEST = 6144
"""Characters that IAM allows for a managed policy, without white space."""
IMPLIED = ("ec2:CreateTags", "iam:CreateServiceLinkedRole")
"""What AWS asks for besides, where another call tags what it makes, or is an account's first of its kind."""


@cache
def operations() -> dict[str, str]:
    """boto3's method -> the action as a policy names it, of every service that is spoken with."""
    import botocore.session
    from botocore import xform_name

    session = botocore.session.get_session()
    return {
        xform_name(name): f"{prefix}:{name}"
        for service, prefix in PREFIXES.items()
        for name in session.get_service_model(service).operation_names
    }


def actions(document: Mapping[str, Any]) -> set[str]:
    """Everything that a document allows."""
    found: set[str] = set()
    for statement in document["Statement"]:
        said = statement["Action"]
        found |= {said} if isinstance(said, str) else set(said)
    return found


def called(text: str) -> set[str]:
    """Actions of the methods that a source file names, as an attribute or as a word."""
    known, found = operations(), set()
    for node in ast.walk(ast.parse(text)):
        name = node.attr if isinstance(node, ast.Attribute) else node.value if isinstance(node, ast.Constant) else None
        if isinstance(name, str) and name in known:
            found.add(known[name])
    return found


def test_it_is_what_the_sources_call_and_nothing_else() -> None:
    calls: set[str] = set()
    for source in sorted(SOURCES.glob("*.py")):
        calls |= called(source.read_text())
    allowed = actions(policy.document()) - set(IMPLIED)
    assert calls - allowed == set(), "called, and not allowed"
    assert allowed - calls == set(), "allowed, and never called"


def test_the_look_at_the_sources_finds_both_ways_of_calling() -> None:
    assert called("ask('x', client.describe_vpcs)") == {"ec2:DescribeVpcs"}
    assert called("pages('x', client, 'describe_subnets', 'Subnets')") == {"ec2:DescribeSubnets"}


def test_what_is_made_must_be_tagged_and_what_is_ended_must_be_ours() -> None:
    by_name = {one["Sid"]: one for one in policy.document()["Statement"]}
    for name in ("LaunchTagged", "GroupTagged"):
        assert by_name[name]["Condition"] == {"StringEquals": {"aws:RequestTag/gpuops:managed": "true"}}
    assert by_name["EndOurs"]["Condition"] == {"StringEquals": {"aws:ResourceTag/gpuops:managed": "true"}}
    assert "ec2:TerminateInstances" in by_name["EndOurs"]["Action"]
    for one in by_name.values():
        if one["Resource"] == "*":
            changing = [
                action for action in one["Action"] if not action.split(":")[1].startswith(("Describe", "Get", "List"))
            ]
            assert changing == [], f"{one['Sid']} changes nothing"


def test_names_are_as_iam_wants_them() -> None:
    document = policy.document("s3://my-bucket/runs")
    assert document["Version"] == "2012-10-17"
    assert all(one["Sid"].isalnum() for one in document["Statement"])
    assert len({one["Sid"] for one in document["Statement"]}) == len(document["Statement"])
    assert len(json.dumps(document, separators=(",", ":"))) < LONGEST


def test_a_simulator_reads_it() -> None:
    import boto3
    from moto import mock_aws

    with mock_aws():
        client = boto3.client("iam", "us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
        text = json.dumps(policy.document("s3://my-bucket/runs"))
        assert client.create_policy(PolicyName="gpuops", PolicyDocument=text)["Policy"]["Arn"]


def test_without_a_sink_no_bucket_is_touched() -> None:
    assert not any(action.startswith("s3:") for action in actions(policy.document()))


@pytest.mark.parametrize(
    ("sink", "inside"),
    [
        ("s3://my-bucket", "arn:*:s3:::my-bucket/*"),
        ("s3://my-bucket/", "arn:*:s3:::my-bucket/*"),
        ("s3://my-bucket/runs/2026/", "arn:*:s3:::my-bucket/runs/2026/*"),
    ],
)
def test_a_sink_is_allowed_within_its_folder(sink: str, inside: str) -> None:
    by_name = {one["Sid"]: one for one in policy.document(sink)["Statement"]}
    assert by_name["KeepResults"]["Resource"] == inside


@pytest.mark.parametrize("sink", ["volume:data", "s3://", "s3://A_B/x", "my-bucket"])
def test_what_is_no_bucket(sink: str) -> None:
    with pytest.raises(UsageError, match="is no bucket"):
        policy.document(sink)
