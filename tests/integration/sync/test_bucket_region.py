"""A bucket at S3 itself is asked, and its URLs presigned, where it is: S3's global address turns nodes away."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from gpuops.agent.result_storage.presigned_requests import send_request, with_retries
from gpuops.cli.terminal.output import Output
from gpuops.core.context import Context
from gpuops.core.errors import AuthFailed, UsageError
from gpuops.core.signals import Signals
from gpuops.core.sink import BucketSink
from gpuops.guard.services import SERVICES
from gpuops.sync import bucket, object_store
from tests.certificate import certificate_in
from tests.fakes.bucket import FakeBucket

SINK = BucketSink("results", "lab")


def world_of(env: dict[str, str], folder: Path) -> Context:
    return Context(folder, "o", folder, env, Output(), Signals(), SERVICES)


@pytest.fixture(params=["eu-central-1", "af-south-1"])
def fake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBucket]:
    names = [
        f"{start}s3{region}.amazonaws.com" for start in ("", "*.") for region in ("", ".us-east-1", f".{request.param}")
    ]
    pem = certificate_in(tmp_path, *names)
    with FakeBucket(region=request.param, certificate=pem) as one:
        for name in ("NO_PROXY", "no_proxy", "https_proxy", "AWS_ENDPOINT_URL"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {"HTTPS_PROXY": one.url, "AWS_CA_BUNDLE": str(pem), "SSL_CERT_FILE": str(pem)}.items():
            monkeypatch.setenv(name, value)
        yield one


def at_amazon(fake: FakeBucket, folder: Path) -> Context:
    return world_of({name: value for name, value in fake.env.items() if name != "AWS_ENDPOINT_URL"}, folder)


def test_what_a_node_is_given_serves_it_in_every_region(fake: FakeBucket, tmp_path: Path) -> None:
    world = at_amazon(fake, tmp_path)
    sink = bucket.check_bucket(world, SINK)
    assert sink.region == fake.region
    urls = bucket.create_upload_grant(world, sink, "r-1", 1, None).urls[0]
    answer = with_retries(lambda: send_request("PUT", urls.state, [b"{}"], 2), time.time() + 60)
    assert answer.status == 200
    assert fake.names() == ["lab/.gpuops", "lab/r-1/node0.json"]
    assert fake.uploads() == ["lab/r-1/node0.tar"], "that of the check is ended"


def test_an_address_that_serves_no_node_is_found_before_anything_is_rented(
    fake: FakeBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "REGIONAL_ADDRESSING", {})
    with pytest.raises((AuthFailed, UsageError), match=r"IllegalLocation|TemporaryRedirect"):
        bucket.check_bucket(at_amazon(fake, tmp_path), SINK)
    assert not fake.uploads()


KEYS = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}


@pytest.mark.parametrize(
    ("name", "region", "env", "host"),
    [
        ("my-results", "us-east-1", {}, "my-results.s3.us-east-1.amazonaws.com"),
        ("my-results", "eu-central-1", {}, "my-results.s3.eu-central-1.amazonaws.com"),
        ("my-results", "cn-north-1", {}, "my-results.s3.cn-north-1.amazonaws.com.cn"),
        ("my.results", "eu-central-1", {}, "s3.eu-central-1.amazonaws.com"),
        ("my.results", "us-east-1", {}, "s3.us-east-1.amazonaws.com"),
        ("my-results", "auto", {"AWS_ENDPOINT_URL": "https://minio.example.com"}, "minio.example.com"),
    ],
)
def test_the_host_of_an_address(name: str, region: str, env: dict[str, str], host: str, tmp_path: Path) -> None:
    client: Any = object_store.create_client(world_of({**KEYS, **env}, tmp_path), BucketSink(name, region=region))
    signed = client.generate_presigned_url("put_object", Params={"Bucket": name, "Key": "k"}, ExpiresIn=60)
    assert urlsplit(signed).hostname == host


def test_an_endpoint_of_the_configuration_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where AWS's own variable for S3 alone names it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://minio.example.com")
    client = object_store.create_client(world_of(KEYS, tmp_path), BucketSink("results", region="eu-central-1"))
    signed = client.generate_presigned_url("put_object", Params={"Bucket": "results", "Key": "k"}, ExpiresIn=60)
    assert signed.startswith("https://minio.example.com/results/k?")
