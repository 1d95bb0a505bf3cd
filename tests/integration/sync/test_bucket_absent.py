"""What a bucket tells of an archive that is not there, or may not be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuops.cli.terminal.output import Output
from gpuops.core.context import Context
from gpuops.core.errors import AuthFailed
from gpuops.core.signals import Signals
from gpuops.core.sink import BucketSink
from gpuops.guard.services import SERVICES
from gpuops.sync import bucket
from tests.fakes.bucket import FakeBucket

PLACE = "s3://results/lab/r-1"
SINK = BucketSink("results", "lab", region="us-east-1")


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeBucket]:
    with FakeBucket() as one:
        yield one


@pytest.fixture
def world(fake: FakeBucket, tmp_path: Path) -> Context:
    return Context(tmp_path, "o", tmp_path, fake.env, Output(), Signals(), SERVICES)


def hidden(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """To who may not list a bucket, what is not there and what may not be read are the same."""
    call_s3 = bucket.call_s3

    def answer(sink: Any, action: str, call: Any, **parameters: Any) -> Any:
        if parameters["Key"].endswith(names):
            raise bucket.Denied(f"the bucket denies {action}", "allow it")
        return call_s3(sink, action, call, **parameters)

    monkeypatch.setattr(bucket, "call_s3", answer)


def test_what_is_not_there_is_none(fake: FakeBucket, world: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bucket.open_archive(world, SINK, PLACE, 0) is None
    fake.client().put_object(Bucket="results", Key="lab/r-1/node0.json", Body=b"{}")
    hidden(monkeypatch, "node0.tar")
    assert bucket.open_archive(world, SINK, PLACE, 0) is None


def test_what_may_not_be_read_is_said(fake: FakeBucket, world: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("json", "tar"):
        fake.client().put_object(Bucket="results", Key=f"lab/r-1/node0.{name}", Body=b"{}")
    found = bucket.open_archive(world, SINK, PLACE, 0)
    assert found is not None
    assert found.size == 2
    hidden(monkeypatch, "node0.tar", "node0.json")
    with pytest.raises(AuthFailed, match="denies s3:GetObject"):
        bucket.open_archive(world, SINK, PLACE, 0)
