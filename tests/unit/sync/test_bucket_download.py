"""An object of a bucket is read to its end over connections that break; one that gives no byte any more is given up."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuops.core.errors import Unknown
from gpuops.core.polling import Clock
from gpuops.core.sink import BucketSink
from gpuops.sync import bucket

DATA = bytes(range(256)) * 40
SINK = BucketSink("b")


class Torn(io.BytesIO):
    """A body that ends after `most` bytes, as a connection does."""

    def __init__(self, data: bytes, most: int) -> None:
        super().__init__(data[:most])

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        if not found:
            raise ConnectionResetError("torn")
        return found


class Store:
    """What is asked of it, and answers that carry `most` bytes each."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.asked: list[str] = []

    def get_object(self, *, Range: str, **_: Any) -> dict[str, Any]:
        self.asked.append(Range)
        at = int(Range.removeprefix("bytes=").partition("-")[0])
        return {"Body": Torn(DATA[at:], self.most), "ContentRange": f"bytes 0-0/{len(DATA)}", "ETag": '"e"'}


class PassingTime(Clock):
    """A clock on which only pauses take time."""

    passed_s = 0.0

    def monotonic(self) -> float:
        return self.passed_s

    def sleep(self, seconds: float) -> None:
        self.passed_s += seconds


def opened(monkeypatch: pytest.MonkeyPatch, most: int) -> tuple[bucket.ArchiveDownload, Store, PassingTime]:
    """A download, its store and its clock."""
    store, clock = Store(most), PassingTime()
    monkeypatch.setattr(bucket, "create_client", lambda *_: store)
    monkeypatch.setattr(bucket, "call_s3", lambda _sink, _action, call, **parameters: call(Bucket="b", **parameters))
    return bucket.ArchiveDownload(cast("Any", SimpleNamespace(clock=clock)), SINK, "k"), store, clock


def test_it_goes_on_where_a_connection_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    download, store, _ = opened(monkeypatch, 3000)
    found = b"".join(iter(lambda: download.read(1000), b""))
    assert found == DATA
    assert store.asked == ["bytes=0-0", *(f"bytes={at}-" for at in (0, 3000, 6000, 9000))]


def test_tries_without_a_byte_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    download, store, _ = opened(monkeypatch, 0)
    with pytest.raises(Unknown, match="s3://b/k cannot be read: ConnectionResetError: torn"):
        download.read(10)
    assert len(store.asked) == 1 + bucket.ArchiveDownload.MAX_TRIES


def test_a_bucket_that_lets_each_try_hang_is_not_waited_for_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    download, store, clock = opened(monkeypatch, 0)
    before = store.get_object

    def hangs(**parameters: Any) -> dict[str, Any]:
        clock.passed_s += 240.0
        return before(**parameters)

    monkeypatch.setattr(store, "get_object", hangs)
    with pytest.raises(Unknown):
        download.read(10)
    assert len(store.asked) == 1 + 2
