"""Sinks as ledgers of every version keep them, and as a damaged one may."""

from __future__ import annotations

from typing import Any

import pytest

from gpuops.core.bucket import DotenvPolicy
from gpuops.core.sink import BucketSink, FolderSink, find_bucket, parse_document


def test_what_was_written_is_read() -> None:
    bucket = BucketSink(bucket="b", prefix="p", dotenv=DotenvPolicy(True))
    assert parse_document(bucket.document()) == find_bucket(bucket.document()) == bucket
    folder = FolderSink(volume="v")
    assert parse_document(folder.document()) == folder
    assert find_bucket(folder.document()) is find_bucket(None) is parse_document({}) is None


@pytest.mark.parametrize("damaged", [{"x": 1}, {"bucket": "b", "dotenv": "often"}, ["bucket"], "s3://b", 7])
def test_what_is_no_sink_stops_nothing_that_ends(damaged: Any) -> None:
    """Teardown asks each run of a cluster for open uploads: one damaged row would keep the cluster from being gone."""
    with pytest.raises(ValueError, match="no sink"):
        parse_document(damaged)
    assert find_bucket(damaged) is None
