"""Where else results are kept: what is asked for, what is found, and what is said of it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from gpuops.core.bucket import DotenvPolicy
from gpuops.core.errors import UsageError
from gpuops.core.models import Option, Resource
from gpuops.core.run_models import RunRequest
from gpuops.core.sink import BucketSink, FolderSink, SinkProgress, SinkStatus, parse_document
from gpuops.sync import sinks

OPTIONS = (Option("size", "."), Option("volume", "."))
SINK = FolderSink("data", "/workspace", True, "5f0c")
REQUEST = RunRequest(kind="command", mode="run", nodes=2, gpus=None, argv=("true",), sink=SINK)
FOLDER = "/workspace/gpuops/sh-1"
BUCKET = BucketSink("b-1", "lab")


def machine(mounts: Any) -> Resource:
    return Resource("machine", "1", "", "gpuops-me-lab-0", True, data={"mounts": mounts} if mounts is not None else {})


def test_a_bucket_has_the_profile_that_its_machines_are_rented_with() -> None:
    assert sinks.with_profile(BUCKET, "aws", {"profile": "work"}) == dataclasses.replace(BUCKET, profile="work")
    assert sinks.with_profile(BUCKET, "aws", {"profile": None}) == BUCKET
    assert sinks.with_profile(BUCKET, "tent", {"profile": "work"}) == BUCKET, "another provider's are none of AWS's"


@pytest.mark.parametrize(
    ("text", "name"), [("volume:data", "data"), ("volume:my data", "my data"), ("volume:a:b", "a:b")]
)
def test_a_volume_is_named(text: str, name: str) -> None:
    assert sinks.parse_sink(text) == FolderSink(name)


@pytest.mark.parametrize(
    ("text", "bucket", "prefix"),
    [
        ("s3://b-1.x", "b-1.x", ""),
        ("s3://bucket/", "bucket", ""),
        ("s3://bucket/a/b_c.d/", "bucket", "a/b_c.d"),
    ],
)
def test_a_bucket_is_named(text: str, bucket: str, prefix: str) -> None:
    assert sinks.parse_sink(text) == BucketSink(bucket, prefix)


@pytest.mark.parametrize(
    "text",
    ["s3://", "s3://B", "s3://b", "s3://bucket//a", "s3://bucket/a b", "s3://bucket/../a", "s3:///a", "s3://-a/"],
)
def test_what_no_bucket_can_be_called(text: str) -> None:
    with pytest.raises(UsageError, match=r"names no bucket|is no prefix"):
        sinks.parse_sink(text)


@pytest.mark.parametrize("text", ["", "volume", "volume:", "volume: a", "volume:a\n", "s3:b", "Volume:a", "/mnt", "a"])
def test_anything_else_is_no_sink(text: str) -> None:
    with pytest.raises(UsageError) as error:
        sinks.parse_sink(text)
    assert error.value.hint == "write --sink s3://BUCKET/PREFIX, or --sink volume:NAME with a network volume's name"


def test_the_provider_is_asked_for_the_volume() -> None:
    sink = FolderSink("a")
    assert sinks.with_volume_option("tent", OPTIONS, {"size": "small"}, sink) == {"size": "small", "volume": "a"}
    assert sinks.with_volume_option("tent", OPTIONS, {"volume": "a"}, sink) == {"volume": "a"}
    with pytest.raises(UsageError, match="name two volumes"):
        sinks.with_volume_option("tent", OPTIONS, {"volume": "b"}, sink)
    with pytest.raises(UsageError, match="local mounts no network volume"):
        sinks.with_volume_option("local", OPTIONS[:1], {}, sink)
    assert sinks.with_volume_option("local", OPTIONS[:1], {"size": "x"}, BUCKET) == {"size": "x"}, (
        "a bucket needs no provider"
    )


def test_every_machine_must_have_it_in_one_place() -> None:
    there, sink = machine({"data": "/workspace", "other": "/o"}), FolderSink("data")
    found = sinks.resolve_sink(sink, "lab", [there, there], end=False)
    assert isinstance(found, FolderSink)
    assert dataclasses.replace(found, id="") == FolderSink("data", "/workspace")
    assert found.id
    assert sinks.resolve_sink(sink, "lab", [there], end=False) != found, "its id is fresh for each run"
    for machines in ([], [machine(None)], [machine({})], [there, machine({"data": "/else"})], [there, machine(None)]):
        with pytest.raises(UsageError, match="the network volume data is not mounted on lab"):
            sinks.resolve_sink(sink, "lab", machines, end=False)
    assert sinks.resolve_sink(BUCKET, "lab", [machine(None)], end=True) == dataclasses.replace(BUCKET, end=True)


def test_the_launch_spec_names_a_folder_and_nothing_of_the_provider() -> None:
    assert sinks.spec_document(REQUEST, "sh-1") == {"folder": FOLDER, "end": True, "id": "5f0c"}
    assert sinks.spec_document(RunRequest(kind="command", mode="run", nodes=1, gpus=None), "sh-1") is None


def test_the_launch_spec_names_the_place_in_a_bucket() -> None:
    kept = dataclasses.replace(REQUEST, sink=dataclasses.replace(BUCKET, region="eu-west-1", end=True))
    assert sinks.spec_document(kept, "sh-1") == {"bucket": "s3://b-1/lab/sh-1", "end": True}
    placed = dataclasses.replace(kept, sink=dataclasses.replace(BUCKET, end=True, place="s3://b-1/lab/sh-1-0a"))
    assert sinks.spec_document(placed, "sh-1") == {"bucket": "s3://b-1/lab/sh-1-0a", "end": True}
    assert (
        sinks.describe_outcome(kept, "sh-1", {0: SinkProgress(SinkStatus.SAFE)}, range(1))
        == "safe in s3://b-1/lab/sh-1"
    )
    assert sinks.describe_ended_while_away(kept, "sh-1", "", "no way") == (
        "its nodes ended while this computer was away; what they kept is in s3://b-1/lab/sh-1 and is not home: no way",
        "fetch it: gpuops pull sh-1",
    )


SAFE = SinkProgress(SinkStatus.SAFE, FOLDER)
FAILED = SinkProgress(SinkStatus.FAILED, FOLDER, "No space left on device")


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ({0: SAFE, 1: SAFE}, "safe on the network volume data, in gpuops/sh-1"),
        (
            {0: SinkProgress(SinkStatus.SAFE, f"{FOLDER}-5f0c"), 1: SAFE},
            "safe on the network volume data, in gpuops/sh-1-5f0c",
        ),
        ({0: SAFE, 1: FAILED}, "not all on the network volume data, in gpuops/sh-1 (node1: No space left on device)"),
        ({0: SAFE}, "not all on the network volume data, in gpuops/sh-1 (node1: it does not say)"),
        ({}, "what its nodes kept is on the network volume data, in gpuops/sh-1"),
    ],
)
def test_the_receipt_says_where_results_are(states: dict[int, SinkProgress], words: str) -> None:
    assert sinks.describe_outcome(REQUEST, "sh-1", states, range(2)) == words


@pytest.mark.parametrize("document", [
    None,
    {"bucket": "b-1", "prefix": "lab", "profile": "", "dotenv": False, "region": "eu-west-1", "end": True},
    {"bucket": "b-1", "prefix": "", "profile": "work", "dotenv": True, "region": "", "end": False},
    {"volume": "data", "mount": "/workspace", "end": True, "id": "5f0c"},
])  # fmt: skip
def test_a_request_in_the_ledger_keeps_its_sink(document: dict[str, Any] | None) -> None:
    kept = {**dataclasses.replace(REQUEST, sink=None).document(), "sink": document}
    assert json.dumps(RunRequest.parse(kept).document()) == json.dumps(kept)


def test_a_bucket_that_an_older_version_kept_names_no_keys() -> None:
    sink = parse_document({"bucket": "b-1", "prefix": "lab", "more": 1})
    assert sink == BUCKET
    assert sink.dotenv is DotenvPolicy.UNDECIDED
