"""A bucket as sink: one archive per node, uploaded with presigned URLs.

    <place>/node<i>.tar    result.json, logs/, out/ and, last, safe.json
    <place>/node<i>.json   the node's state, as in `runs/<run>/sink.json`; rewritten each minute while it goes on

The parts that were sent are recorded in `runs/<run>/parts.json`, so that a restarted agent continues.
"""

from __future__ import annotations

import errno
import json
import os
import time
from typing import Any, Callable, Mapping

from gpuops.agent.node import Emit, Node, Refusal, read_json, remove_file, write_json
from gpuops.agent.result_storage import presigned_urls, stored_files
from gpuops.agent.result_storage.multipart_upload import NEVER, SentPart, Stored, Upload, size_excess
from gpuops.agent.result_storage.presigned_requests import object_size, send_request, with_retries
from gpuops.agent.result_storage.presigned_urls import PresignedUrls, read_urls, renew_urls, store_urls
from gpuops.agent.result_storage.streamed_archive import Archive
from gpuops.agent.run_documents import LaunchSpec, Reason, SinkPhase, SinkState

PARTS = "parts.json"
CLAIM_LIMIT_S = 30.0
"""How long writing to the bucket is retried before the run is refused."""
STATE_LIMIT_S = 30.0
OTHERS_CHECK_INTERVAL_S = 15.0
"""Time between two searches for the other nodes' archives."""

_uploading: dict[str, PresignedUrls] = {}
"""The URLs of uploads in progress, by the run's folder."""


def claim_bucket(node: Node, spec: LaunchSpec, urls: Mapping[str, Any]) -> str:
    """Before a run starts: check that this node can write to its place. Returns the place. Raises Refusal(`sink`)."""
    folder, place = node.run(spec.run), spec.sink.bucket if spec.sink else ""
    store_urls(folder, PresignedUrls.parse(urls))
    remove_file(os.path.join(folder, PARTS))
    try:
        write_state(node, spec, SinkState(SinkPhase.CLAIMED), CLAIM_LIMIT_S)
    except OSError as error:
        say = f"{place} cannot keep this run's results: {error.strerror or error}"
        raise Refusal("sink", say, "see that the node reaches the bucket, or leave out --sink") from error
    return place


def renew(node: Node, args: dict[str, Any], _emit: Emit) -> dict[str, Any]:
    """Verb: newer URLs for a run's place, used also by an upload in progress. Only the kinds of URLs that the run
    still needs are stored."""
    folder = node.run(args["run"])
    urls = renew_urls(folder, PresignedUrls.parse(args["urls"]))
    if urls is not None and folder in _uploading:
        _uploading[folder] = urls
    return {}


def write_state(node: Node, spec: LaunchSpec, state: SinkState, limit_s: float = STATE_LIMIT_S) -> None:
    """Write this node's state to the bucket. Raises OSError."""
    urls = read_urls(node.run(spec.run))
    body = json.dumps({**state.document(), "node": spec.node, "at": time.time()}).encode()
    if urls is not None and urls.state:
        url = urls.state
        with_retries(lambda: send_request("PUT", url, [body], len(body)), time.time() + limit_s)


def upload_results(
    node: Node,
    spec: LaunchSpec,
    folder: str,
    deadline: Callable[[], float],
    progress_of: Callable[[int], Callable[[int], None]],
) -> Stored:
    """Upload everything that a run left. Idempotent: an archive that is complete is not sent again. Raises OSError.

    `deadline` returns when this machine ends, as far as is known now (UTC seconds); `progress_of` takes the archive's
    size and returns a function that is called with the number of bytes of each part sent.
    """
    urls = read_urls(folder)
    if urls is None or not urls.head:
        raise OSError(errno.ENOENT, "the permission to write to the bucket is not on this node any more")
    archive = Archive(stored_files.newest_first(list(stored_files.list_items(node, spec, folder))))
    size = object_size(urls.head, min(deadline(), urls.until))
    if size is not None:
        return Stored(len(archive.items), size, 0, [])  # a killed agent had completed it
    if time.time() > urls.until:
        raise OSError(errno.EACCES, "the permission to write to the bucket has ended")
    if say := size_excess(archive, urls):
        raise OSError(errno.EFBIG, say)
    about = {"schema": 1, "run": spec.run, "node": spec.node}
    path = os.path.join(folder, PARTS)
    _uploading[folder] = urls
    upload = Upload(
        archive,
        lambda: _uploading[folder],
        about,
        deadline=deadline,
        progress=progress_of(archive.size),
        sent={number: SentPart(*fields) for number, fields in (read_json(path) or {}).items()},
        record=lambda parts: write_json(path, parts),
    )
    try:
        return upload.run()
    finally:
        del _uploading[folder]


def machine_deadline(spec: LaunchSpec, end_reason: Reason) -> float:
    """When this machine ends, as far as the reason of the run's end says (UTC seconds)."""
    is_this_machine = end_reason.kind == "reclaim" and end_reason.node in (None, spec.node)
    return end_reason.at if is_this_machine and end_reason.at is not None else NEVER


def finish_upload(folder: str) -> None:
    """The archive is complete: remove what only the upload needs."""
    presigned_urls.remove_upload_urls(folder)
    remove_file(os.path.join(folder, PARTS))


def finish(folder: str) -> None:
    """The results are downloaded: remove what is left of the upload, and all URLs."""
    presigned_urls.remove_urls(folder)
    remove_file(os.path.join(folder, PARTS))


class StoredArchives:
    """The archives and states of a run's nodes in the bucket, checked every OTHERS_CHECK_INTERVAL_S."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._safe: set[int] = set()
        self._alive: list[str] = []
        self._checked = -OTHERS_CHECK_INTERVAL_S

    def all_safe(self, nodes: int) -> bool:
        self._check()
        return len(self._safe) >= nodes

    def alive(self) -> list[str]:
        """The ETag of each node's state: it changes each time that a node writes its state."""
        self._check()
        return self._alive

    def _check(self) -> None:
        if time.monotonic() - self._checked < OTHERS_CHECK_INTERVAL_S:
            return
        self._checked = time.monotonic()
        urls = read_urls(self._folder) or PresignedUrls()
        for index, url in enumerate(urls.heads):
            if index not in self._safe and _fetch_etag(url):
                self._safe.add(index)
        etags = [_fetch_etag(url) for url in urls.states]
        # A failed request is no sign of life: the last known ETag stays.
        self._alive = [new or old for new, old in zip(etags, self._alive or etags)]


def _fetch_etag(url: str) -> str:
    """The object's ETag; empty where it does not exist or the request fails."""
    try:
        answer = send_request("HEAD", url)
    except Exception:  # the next check tries again
        return ""
    return answer.headers.get("etag", "") if answer.status == 200 else ""
