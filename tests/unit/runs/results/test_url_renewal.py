"""Presigned URLs are renewed while a run is followed, whatever becomes of the ledger meanwhile."""

from __future__ import annotations

import sqlite3
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuops.core.context import Context
from gpuops.core.run_models import RunRequest
from gpuops.core.sink import BucketSink
from gpuops.ledger.rows import MultipartUpload
from gpuops.nodes.session import ClusterSession
from gpuops.runs.results.url_renewal import UrlRenewal
from gpuops.sync.bucket import UploadGrant
from tests.unit.runs.test_finish import a_cluster, a_run


def test_a_ledger_that_another_command_holds_ends_no_run(world: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    now = world.clock.now()
    uploads = [MultipartUpload("k", "id")]
    monkeypatch.setattr("gpuops.sync.bucket.renew_grant", lambda *_: UploadGrant("s3://b/k", now + 7200.0, [], uploads))
    cluster = a_cluster(world, created=now)
    row = a_run(world, cluster, created=now)
    request = RunRequest(kind="command", mode="run", nodes=1, gpus=None, sink=BucketSink("b"))
    facts = {"bucket": {"place": "s3://b/k", "until": now + 60.0}, "uploads": uploads}
    world.ledger.set_run(row.id, request=request.document(), facts=facts)
    world.ledger.db.execute("PRAGMA busy_timeout = 1")
    renewal = UrlRenewal(world, cast(Any, SimpleNamespace(row=cluster, clients=[])), world.ledger.run(row.id))
    other = sqlite3.connect(world.ledger.path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    renewal.poll()  # the lease cannot be read: later
    assert renewal._thread is None
    other.execute("ROLLBACK")
    renewal.poll()
    assert renewal._thread is not None
    renewal._thread.join(10)
    other.execute("BEGIN EXCLUSIVE")
    renewal.poll()
    other.execute("ROLLBACK")
    other.close()
    renewal.poll()
    assert renewal._thread is None, "they are valid for two hours"


def test_newer_ones_are_sent_over_the_conversation_that_the_follower_has_opened_anew(
    world: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard follows a run of an array, on a part of the cluster, by another part of the same session."""
    now, sent = world.clock.now(), list[str]()
    uploads = [MultipartUpload("k", "id")]
    urls = cast(Any, SimpleNamespace(document=dict))
    granted = UploadGrant("s3://b/k", now + 7200.0, [urls], uploads)
    monkeypatch.setattr("gpuops.sync.bucket.renew_grant", lambda *_: granted)
    cluster = a_cluster(world, created=now)
    row = a_run(world, cluster, created=now)
    request = RunRequest(kind="command", mode="run", nodes=1, gpus=None, sink=BucketSink("b"), nodes_at=[1])
    facts = {"bucket": {"place": "s3://b/k", "until": now + 60.0}, "uploads": uploads}
    world.ledger.set_run(row.id, request=request.document(), facts=facts)
    clients = [SimpleNamespace(call=lambda *_, name=name, **__: sent.append(name)) for name in ("node0", "cut")]
    whole = ClusterSession(cluster, cast(Any, [None] * 2), cast(Any, clients), [None] * 2, [0.0] * 2)
    renewal = UrlRenewal(world, whole, world.ledger.run(row.id))
    whole.clients[1] = cast(Any, SimpleNamespace(call=lambda *_, **__: sent.append("node1")))
    renewal.poll()
    assert renewal._thread is not None
    renewal._thread.join(10)
    assert sent == ["node1"]
