"""A bucket as the sink of runs (S3, or a service with its API): checked, opened to nodes, read, cleaned up.

`check_bucket` proves before anything is rented that nodes will be able to write; `create_upload_grant` opens an
archive per node; `ArchiveDownload` reads one back; `abort_uploads` ends uploads that no node completed. Credentials
stay on this computer: a node gets presigned URLs, each for one request on one object of this run, valid until its lease
ends and for seven days at most. `object_store` sends the requests.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from gpuops.core.bucket import DotenvPolicy
from gpuops.core.context import Context
from gpuops.core.errors import GpuopsError, Unknown
from gpuops.core.format import clock_time
from gpuops.core.polling import Poller
from gpuops.core.sink import BucketSink, find_bucket
from gpuops.core.timings import Whose
from gpuops.ledger.rows import MultipartUpload
from gpuops.ledger.store import RunRow
from gpuops.sync.object_store import (
    Absent,
    Denied,
    bucket_region,
    call_s3,
    create_client,
    select_profile,
    session_end,
    uses_dotenv_keys,
)

MAX_PARTS = 400
"""Presigned URLs per node, one for each part of its archive, which may have 1 TB (docs/protocol.md)."""
MAX_SIGNATURE_S = 7 * 86400.0
"""S3 accepts no signature for longer than seven days."""
SEND_AFTER_LEASE_S = 900.0
"""A node may still send results this long after its lease ends."""
URL_PROBE_TIMEOUT_S = 30.0
"""How long the test of a presigned URL is retried when the bucket or the network fails."""
PROBE_OBJECT = ".gpuops"
"""An empty object under the prefix: writing and reading it proves that results can be kept there."""


@dataclass(frozen=True)
class NodeUrls:
    """One node's presigned URLs, which are secret (docs/protocol.md: Sink)."""

    parts: Sequence[str] = field(repr=False)
    """To upload one part of its archive each, in order."""
    complete: str = field(repr=False)
    """To complete the archive."""
    head: str = field(repr=False)
    """To read the size of its archive."""
    state: str = field(repr=False)
    """To write its state."""
    heads: Sequence[str] = field(repr=False)
    """To read the size of each node's archive."""
    states: Sequence[str] = field(repr=False)
    """To read the size of each node's state."""
    until: float
    """When all of them expire (UTC seconds)."""

    def document(self) -> dict[str, Any]:
        """The form in which a node is sent them."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class UploadGrant:
    """The permission of a run's nodes to write into the bucket."""

    place: str
    """`s3://BUCKET/KEY`, under which they write."""
    until: float
    """When it expires (UTC seconds)."""
    urls: Sequence[NodeUrls]
    """One entry per node."""
    uploads: Sequence[MultipartUpload]
    """One entry per node."""


def check_bucket(ctx: Context, sink: BucketSink) -> BucketSink:
    """Check that nodes can write to the sink, before anything is rented. Returns the sink with its region, and with
    the profile or `.env` whose keys were used: a later command fetches the results with the same keys.

    Raises UsageError, AuthFailed, Unknown.
    """
    sink = dataclasses.replace(sink, profile=select_profile(ctx.env, sink.profile), dotenv=DotenvPolicy.IGNORED)
    sink = dataclasses.replace(sink, dotenv=DotenvPolicy(uses_dotenv_keys(ctx, sink)))
    with ctx.progress.during(f"asking for the bucket {sink.bucket}", whose=Whose.NETWORK):
        checked = dataclasses.replace(sink, region=bucket_region(create_client(ctx, sink), sink))
        s3 = create_client(ctx, checked)
        probe_key = checked.key(PROBE_OBJECT)
        call_s3(checked, "s3:PutObject", s3.put_object, Key=probe_key, Body=b"")
        # Not by HEAD: its answer does not say why it is denied.
        call_s3(checked, "s3:GetObject", s3.get_object, Key=probe_key)["Body"].close()
        upload = call_s3(checked, "s3:PutObject", s3.create_multipart_upload, Key=probe_key)
        try:
            _probe_presigned_url(ctx, s3, checked, {"Key": probe_key, "UploadId": upload["UploadId"], "PartNumber": 1})
        finally:
            call_s3(
                checked,
                "s3:AbortMultipartUpload",
                s3.abort_multipart_upload,
                Key=probe_key,
                UploadId=upload["UploadId"],
            )
    if (ends := session_end(ctx, sink)) is not None:
        local_time = f", at {clock_time(ends, ctx.clock.now())} (local time)" if ends else ""
        ctx.out.say(
            f"note: the nodes can write to the bucket until the session of these temporary credentials ends{local_time}"
        )
    return checked


def _probe_presigned_url(ctx: Context, s3: Any, sink: BucketSink, part: Mapping[str, object]) -> None:
    """Send one byte as a node will: to a presigned URL, without boto3, which follows redirects. Raises Denied.

    Another error is only noted: a node's network and certificates may differ from this computer's.
    """
    from gpuops.agent.result_storage import presigned_requests  # brings http and ssl, which most commands do without

    url = s3.generate_presigned_url("upload_part", Params={"Bucket": sink.bucket, **part}, ExpiresIn=600)
    try:
        presigned_requests.with_retries(
            lambda: presigned_requests.send_request("PUT", url, [b"."], 1), ctx.clock.now() + URL_PROBE_TIMEOUT_S
        )
    except presigned_requests.RequestDenied as error:
        say = f"the bucket {sink.bucket} takes nothing from its nodes: it refuses their presigned URLs"
        raise Denied(f"{say} ({error.code})", "try again later, or name another bucket with --sink") from error
    except OSError as error:
        ctx.out.say(f"note: whether nodes can write to the bucket {sink.bucket} could not be tried: {error}")


def create_upload_grant(ctx: Context, sink: BucketSink, run: str, nodes: int, lease_end: float | None) -> UploadGrant:
    """Begin an upload per node and presign its URLs. `lease_end`: UTC seconds. Raises ProviderError."""
    s3 = create_client(ctx, sink)
    folder = sink.key(run)
    if _object_size(s3, sink, f"{folder}/node0.json") is not None:  # of an earlier attempt, or of another user
        folder = f"{folder}-{uuid.uuid4().hex[:8]}"
    uploads = []
    for index in range(nodes):
        key = f"{folder}/node{index}.tar"
        upload = call_s3(sink, "s3:PutObject", s3.create_multipart_upload, Key=key)
        uploads.append(MultipartUpload(key, upload["UploadId"]))
    return renew_grant(ctx, sink, f"s3://{sink.bucket}/{folder}", uploads, lease_end)


def renew_grant(
    ctx: Context, sink: BucketSink, place: str, uploads: Sequence[MultipartUpload], lease_end: float | None
) -> UploadGrant:
    """Presign new URLs for the same uploads. Raises UsageError, AuthFailed."""
    now = ctx.clock.now()
    until = min(desired_grant_end(now, lease_end), session_end(ctx, sink) or now + MAX_SIGNATURE_S)
    s3 = create_client(ctx, sink)
    folder = sink.key_of(place)

    def presign(operation: str, key: str, **more: object) -> str:
        parameters = {"Bucket": sink.bucket, "Key": key, **more}
        return str(s3.generate_presigned_url(operation, Params=parameters, ExpiresIn=max(1, int(until - now))))

    heads = [presign("head_object", upload.key) for upload in uploads]
    states = [presign("head_object", f"{folder}/node{index}.json") for index in range(len(uploads))]
    urls = [
        NodeUrls(
            parts=[presign("upload_part", key, UploadId=id, PartNumber=part + 1) for part in range(MAX_PARTS)],
            complete=presign("complete_multipart_upload", key, UploadId=id),
            head=heads[index],
            state=presign("put_object", f"{folder}/node{index}.json"),
            heads=heads,
            states=states,
            until=until,
        )
        for index, (key, id) in enumerate(uploads)
    ]
    return UploadGrant(place, until, urls, uploads)


def desired_grant_end(now: float, lease_end: float | None) -> float:
    """Until when nodes should be able to write (UTC seconds), within the limit of a signature."""
    return min(now + MAX_SIGNATURE_S, (lease_end or now + MAX_SIGNATURE_S) + SEND_AFTER_LEASE_S)


def abort_uploads(ctx: Context, row: RunRow) -> None:
    """End a run's uploads that no node has completed: their parts bill until then. A failure is printed."""
    uploads, sink = row.facts.uploads, find_bucket(row.request.get("sink"))
    if not uploads or sink is None:
        return
    try:
        s3 = create_client(ctx, sink)
        for upload in uploads:
            with suppress(Absent):
                call_s3(sink, "s3:AbortMultipartUpload", s3.abort_multipart_upload, Key=upload.key, UploadId=upload.id)
    except GpuopsError as error:
        folder = f"s3://{sink.bucket}/{uploads[0].key.rpartition('/')[0]}"
        ctx.out.say(f"note: parts of {row.name} may be left in {folder}, and cost there: {error.message}")
        return
    ctx.ledger.set_run(row.id, facts={**ctx.ledger.run(row.id).facts, "uploads": []})


def abort_cluster_uploads(ctx: Context, cluster: int) -> None:
    """`abort_uploads` for every run of a cluster whose machines are gone."""
    for row in ctx.ledger.runs(cluster=cluster):
        abort_uploads(ctx, row)


class ArchiveDownload:
    """One object, read from beginning to end across broken connections. Reading raises Unknown."""

    MAX_TRIES = 8
    STALL_TIMEOUT_S = 300.0
    """Reading fails after this long without a byte: nodes that still live cost money meanwhile."""
    RETRY_PAUSES_S = (0.2, 10.0)
    """The first and the longest pause between tries; each pause is twice the one before."""

    def __init__(self, ctx: Context, sink: BucketSink, key: str) -> None:
        self._clock = ctx.clock
        self._sink = sink
        self._key = key
        self._s3 = create_client(ctx, sink)
        # Not by HEAD: its answer does not say why it failed.
        first = call_s3(sink, "s3:GetObject", self._s3.get_object, Key=key, Range="bytes=0-0")
        first["Body"].close()
        self.size = int(first["ContentRange"].rpartition("/")[2])
        self._etag = first["ETag"]
        self.position = 0
        """How many bytes have been read."""
        self._body: Any = None

    def read(self, count: int, /) -> bytes:
        count = min(count, self.size - self.position)
        if count <= 0:
            return b""
        why = ""
        deadline = self._clock.monotonic() + self.STALL_TIMEOUT_S
        poller = Poller(self._clock, deadline, *self.RETRY_PAUSES_S, factor=2.0)
        for attempt in islice(poller, self.MAX_TRIES):
            if attempt.started > deadline:
                break
            try:
                data = self._open().read(count)
                if data:
                    self.position += len(data)
                    return bytes(data)
                why = "it ends early"
            except GpuopsError as error:
                if not isinstance(error, Unknown):
                    raise
                why = error.message
            except Exception as error:  # urllib3's and botocore's, of which there are many
                why = f"{type(error).__name__}: {error}"
            self._body = None
        raise Unknown(f"s3://{self._sink.bucket}/{self._key} cannot be read: {why}", "try again: gpuops pull")

    def _open(self) -> Any:
        if self._body is None:
            rest = {"Range": f"bytes={self.position}-", "IfMatch": self._etag}
            self._body = call_s3(self._sink, "s3:GetObject", self._s3.get_object, Key=self._key, **rest)["Body"]
        return self._body


def open_archive(ctx: Context, sink: BucketSink, place: str, node: int) -> ArchiveDownload | None:
    """A node's archive; None where it kept none. Raises ProviderError."""
    key = f"{sink.key_of(place)}/node{node}"
    try:
        return ArchiveDownload(ctx, sink, f"{key}.tar")
    except Absent:
        return None
    except Denied:
        # Without permission to list, S3 denies an absent object; the state that the node wrote before its run exists.
        if _object_size(create_client(ctx, sink), sink, f"{key}.json") is None:
            raise
        return None


def _object_size(s3: Any, sink: BucketSink, key: str) -> int | None:
    try:
        return int(call_s3(sink, "s3:GetObject", s3.head_object, Key=key)["ContentLength"])
    except (Absent, Denied):
        return None
