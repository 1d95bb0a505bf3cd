"""Which machines fetch data from their address: one for all, or each for itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpuops.sync.data_sources import Source, SourceFile
from gpuops.sync.fetched_once import is_fetched_once
from gpuops.sync.object_store import amazon_region
from gpuops.sync.workloads_and_data import all_in_region


def source(region: str) -> Source:
    return Source("x", "s3://b/x", [SourceFile("x", 1, "t")], lambda _: ("", {}), region=region)


@pytest.mark.parametrize(
    ("bucket", "machines", "region", "once"),
    [
        ("", 3, "", True),
        ("", 1, "", False),
        ("eu-central-1", 3, "", True),
        ("eu-central-1", 3, "us-east-1", True),
        ("eu-central-1", 3, "eu-central-1", False),
        ("", 3, "eu-central-1", True),
    ],
)
def test_one_fetches_for_all_but_from_a_bucket_beside_all(bucket: str, machines: int, region: str, once: bool) -> None:
    assert is_fetched_once(source(bucket), machines, region) is once


@pytest.mark.parametrize(
    ("provider", "regions", "found"),
    [
        ("aws", ["eu-central-1@main", "eu-central-1@main"], "eu-central-1"),
        ("aws", ["eu-central-1", "us-east-1"], ""),
        ("ssh", ["eu-central-1", "eu-central-1"], ""),
    ],
)
def test_only_machines_at_aws_are_in_a_region_of_amazon(provider: str, regions: list[str], found: str) -> None:
    machines = [SimpleNamespace(region=region) for region in [*regions, "of another run"]]
    session: Any = SimpleNamespace(row=SimpleNamespace(provider=provider), machines=machines)
    assert all_in_region(session, len(regions)) == found


@pytest.mark.parametrize(
    ("address", "region"),
    [
        ("https://s3.eu-central-1.amazonaws.com", "eu-central-1"),
        ("https://s3.cn-north-1.amazonaws.com.cn", "eu-central-1"),
        ("https://minio.example.org", ""),
        ("https://amazonaws.com.example.org", ""),
    ],
)
def test_another_service_has_no_region_of_amazon(address: str, region: str) -> None:
    s3 = SimpleNamespace(meta=SimpleNamespace(endpoint_url=address, region_name="eu-central-1"))
    assert amazon_region(s3) == region
