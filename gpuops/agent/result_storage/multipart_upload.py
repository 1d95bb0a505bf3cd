"""Sends an archive to a bucket in parts, each verified by its MD5, and closes it (S3's multipart upload).

The last member, `safe.json`, lists the others and is sent last: an archive that has it is complete. Where the time is
too short, the parts that arrived are closed at the last end of a member: a shorter archive, but a valid one.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Sequence

from gpuops.agent import http_connection
from gpuops.agent.result_storage import presigned_requests
from gpuops.agent.result_storage.presigned_requests import DeadlineExceeded, RequestDenied
from gpuops.agent.result_storage.presigned_urls import PresignedUrls
from gpuops.agent.result_storage.streamed_archive import (
    END_OF_ARCHIVE,
    Archive,
    is_unchanged,
    member_bytes,
    part_boundaries,
)

SAFE = "safe.json"
MIN_PART_BYTES = 8 << 20
"""Of each part but the last (S3 demands 5 MiB)."""
MEMBER_PART_BYTES = 5 << 29
"""A part is at most twice as long (S3 allows 5 GiB)."""
PARALLEL_PARTS = 4
CLOSING_RESERVE_S = 10.0
"""How much of the remaining time is reserved for closing the archive."""
LATENESS_CHECK_INTERVAL_S = 0.5
"""Time between two checks of the deadline while parts are being sent."""
MIN_SILENCE_LIMIT_S = 2.0
NEVER = float("inf")
NO_SUCH_UPLOAD = "NoSuchUpload"
BAD_DIGEST = "BadDigest"
MAX_PART_ATTEMPTS = 5
"""How many times a part is sent whose file changes between hashing and sending."""


class Part(NamedTuple):
    number: int
    start: int
    stop: int


class SentPart(NamedTuple):
    """A part that the store has, as parts.json records it."""

    md5: str
    etag: str
    start: int
    stop: int


class Stored(NamedTuple):
    """What the bucket has."""

    files: int
    size: int
    """Bytes of the archive."""
    missing: int
    """How many files are not in it."""
    changed: list[str]
    """Names of files that changed while they were sent."""
    unread: Sequence[str] = ()
    """Names of the missing files that cannot be read here."""


def size_excess(archive: Archive, urls: PresignedUrls) -> str:
    """Why an archive does not fit into the bucket; empty where it does."""
    most = MEMBER_PART_BYTES * (len(urls.parts) - 2)
    if archive.size <= most:
        return ""
    return f"it is {archive.size / 1e9:.0f} GB, and a bucket is sent {most / 1e9:.0f} GB of a node at most"


class Upload:
    """One upload of one archive.

    `urls` returns the present URLs: newer ones may come during the upload. `sent`: parts that a killed agent had sent,
    by number; `record` is called with it after each part. `deadline` returns when this machine ends, as far as is
    known at that moment (UTC seconds).
    """

    def __init__(
        self,
        archive: Archive,
        urls: Callable[[], PresignedUrls],
        about: Mapping[str, Any],
        *,
        deadline: Callable[[], float],
        progress: Callable[[int], None],
        sent: dict[str, SentPart],
        record: Callable[[dict[str, SentPart]], None],
    ) -> None:
        self._archive = archive
        self._urls = urls
        self._about = about
        self._deadline = deadline
        self._reserve_s = CLOSING_RESERVE_S
        self._progress = progress
        self._sent = sent
        self._record = record
        self._lock = threading.Lock()
        self._hashes: dict[int, str] = {}
        self._hash: Any = None
        self._changed: set[int] = set()
        self._stopped = threading.Event()
        self._late = DeadlineExceeded("the permission to write there ends")
        self._closing: Stored | None = None
        """What the bucket has once the store has completed the upload."""

    def run(self) -> Stored:
        """Send the archive and close it. Raises OSError: then the bucket has nothing."""
        ends = self._archive.ends
        marks = [0, *part_boundaries(ends, len(self._urls().parts) - 1, MIN_PART_BYTES)]
        parts = [Part(index + 1, start, stop) for index, (start, stop) in enumerate(zip(marks, marks[1:]))]
        etags = self._send(parts)
        complete: Stored | None = None
        if len(etags) == len(parts):
            try:
                return self._close(etags, len(ends), len(etags) + 1, marks[-1])
            except DeadlineExceeded:
                if self._deadline() == NEVER:
                    raise
                complete = self._closing
        if self._deadline() == NEVER:
            raise self._late
        whole_ends = [mark for mark in marks[: len(etags) + 1] if mark in set(ends)]
        if not whole_ends:
            raise DeadlineExceeded("not even for its first files")
        last = whole_ends[-1]
        count = ends.index(last) + 1
        self._reserve_s = 0.0  # now it is used
        try:
            return self._close(etags[: marks.index(last)], count, len(self._urls().parts), last)
        except RequestDenied as error:
            if error.code != NO_SUCH_UPLOAD or complete is None or not self._has_arrived(complete.size):
                raise
            return complete  # the store had completed the whole archive, and only its answer was lost

    # The parts.

    def _send(self, parts: Sequence[Part]) -> list[str]:
        """The ETags of the parts that arrived, up to the first gap. Raises OSError, but not DeadlineExceeded."""
        etags: dict[int, str] = {}
        running: dict[Future[str], int] = {}
        pool = ThreadPoolExecutor(PARALLEL_PARTS)
        try:
            for part in parts:
                if self._is_late():
                    break
                digest = self._digest(part, first=True)
                running[pool.submit(self._send_part, part, digest)] = part.number
                while len(running) >= PARALLEL_PARTS:
                    self._gather(running, etags)
            while running:
                self._gather(running, etags)
        except DeadlineExceeded as error:
            self._late = error
        finally:
            self._stopped.set()
            pool.shutdown(wait=not self._is_late())  # a connection that hangs must not outlive the machine
        for future, number in running.items():
            if future.done() and not future.cancelled() and future.exception() is None:
                etags[number] = future.result()
        return [etags[number] for number in range(1, _first_gap(etags))]

    def _gather(self, running: dict[Future[str], int], etags: dict[int, str]) -> None:
        """Wait for a part to arrive. Raises DeadlineExceeded, and what sending a part raises."""
        done = wait(running, LATENESS_CHECK_INTERVAL_S, FIRST_COMPLETED).done
        for future in done:
            number = running.pop(future)
            etags[number] = future.result()
        if not done and self._is_late():
            raise self._late

    def _send_part(self, part: Part, digest: bytes) -> str:
        """The ETag of a part, sent now unless a killed agent had sent it."""
        known = self._sent.get(str(part.number))
        if known and (known.md5, known.start, known.stop) == (digest.hex(), part.start, part.stop):
            with self._lock:
                self._progress(part.stop - part.start)
            return known.etag
        for sending in range(1, MAX_PART_ATTEMPTS + 1):
            try:
                etag = self._put(part.number, digest, part.stop - part.start, lambda: self._bytes(part))
                break
            except RequestDenied as error:
                if error.code != BAD_DIGEST or sending == MAX_PART_ATTEMPTS:
                    raise
                digest = self._digest(part, first=False)  # a file changed after it was hashed
        with self._lock:
            if self._stopped.is_set():
                return etag  # the upload goes on without this part
            self._sent[str(part.number)] = SentPart(digest.hex(), etag, part.start, part.stop)
            self._record(self._sent)
            self._progress(part.stop - part.start)
        return etag

    def _put(self, number: int, digest: bytes, size: int, body: Callable[[], Iterator[bytes]]) -> str:
        headers = {"Content-MD5": base64.b64encode(digest).decode()}

        def put() -> presigned_requests.Response:
            url = self._urls().parts[number - 1]
            return presigned_requests.send_request("PUT", url, body(), size, headers, self._silence_s())

        return presigned_requests.with_retries(put, self._limit()).headers["etag"]

    def _bytes(self, part: Part) -> Iterator[bytes]:
        for _, _, block in self._archive.read(part.start, part.stop):
            if self._stopped.is_set() or self._is_late():
                raise DeadlineExceeded
            yield block

    def _digest(self, part: Part, first: bool) -> bytes:
        """The MD5 of a part. The `first` call for each part, in order, also computes each file's SHA-256."""
        digest = hashlib.md5()
        for index, is_content, block in self._archive.read(part.start, part.stop):
            digest.update(block)
            if first:
                self._hash_member(index, is_content, block)
            else:
                self._changed.add(index)
        return digest.digest()

    def _hash_member(self, index: int, is_content: bool, block: bytes) -> None:
        """Hash a block of a member. Blocks come in order, and those of one member before those of the next."""
        if index not in self._hashes:
            self._hash = hashlib.sha256()
        if is_content:
            self._hash.update(block)
        self._hashes[index] = self._hash.hexdigest()

    # Closing it.

    def _close(self, etags: Sequence[str], count: int, number: int, start: int) -> Stored:
        """Send the rest from `start` to the end of member `count`, the list of members, and complete the upload."""
        stop = self._archive.ends[count - 1] if count else 0
        rest = []
        for index, is_content, block in self._archive.read(start, stop):
            self._hash_member(index, is_content, block)
            rest.append(block)
        items = self._archive.items
        changed = {index for index in range(count) if index in self._changed or not is_unchanged(items[index])}
        # The archive has zeros for these. A vanished file is no loss, and a client downloads neither kind.
        vanished = {index for index in self._archive.short if index < count and not os.path.exists(items[index].source)}
        unread = {index for index in self._archive.short if index < count and is_unchanged(items[index])}
        changed -= vanished | unread
        members = [index for index in range(count) if index not in vanished | unread]
        missing = len(items) - count + len(unread)
        body = [
            *rest,
            member_bytes(SAFE, self._manifest(members, changed, missing), int(time.time() * 1e9)),
            END_OF_ARCHIVE,
        ]
        digest, size = hashlib.md5(b"".join(body)), sum(map(len, body))
        last = self._put(number, digest.digest(), size, lambda: iter(body))
        names = [[items[index].name for index in sorted(indices)] for indices in (changed, unread)]
        stored = self._closing = Stored(len(members), start + size, missing, *names)
        self._complete([*enumerate(etags, 1), (number, last)], stored.size)
        return stored

    def _manifest(self, members: Sequence[int], changed: set[int], missing: int) -> bytes:
        """The content of SAFE; `files`: [name, bytes, SHA-256 or null where it changed meanwhile, mtime in ns]."""
        rows = [
            [item.name, item.size, None if index in changed else self._hashes[index], item.mtime_ns]
            for index, item in ((index, self._archive.items[index]) for index in members)
        ]
        document = {**self._about, "at": time.time(), "missing": missing, "files": rows}
        return json.dumps(document).encode()

    def _complete(self, parts: Sequence[tuple[int, str]], size: int) -> None:
        """Complete the upload; where the answer is lost, the object's size counts. Raises OSError."""
        rows = "".join(f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>" for number, etag in parts)
        body = f"<CompleteMultipartUpload>{rows}</CompleteMultipartUpload>".encode()

        def post() -> presigned_requests.Response:
            url = self._urls().complete
            return presigned_requests.send_request("POST", url, [body], len(body), None, self._silence_s())

        try:
            presigned_requests.with_retries(post, self._limit())
        except RequestDenied as error:
            if error.code != NO_SUCH_UPLOAD or self._length() is None:
                raise
        except DeadlineExceeded:
            if not self._has_arrived(size):
                raise
            return
        arrived = self._length()
        if arrived != size:
            raise OSError(errno.EIO, f"{size} bytes were sent, and the bucket has {arrived}")

    def _has_arrived(self, size: int) -> bool:
        """Whether the bucket has the whole archive; False also where it does not answer."""
        try:
            limit = min(self._limit(), time.time() + CLOSING_RESERVE_S)
            return presigned_requests.object_size(self._urls().head, limit, self._silence_s()) == size
        except OSError:
            return False

    def _length(self) -> int | None:
        return presigned_requests.object_size(self._urls().head, self._limit(), self._silence_s())

    # Time.

    def _limit(self) -> float:
        """The time (UTC seconds) by which requests must have ended: before this machine ends and the URLs expire."""
        return min(self._deadline() - self._reserve_s, self._urls().until)

    def _silence_s(self) -> float:
        """Time limit of an answer: at most half of the remaining time, so that a retry is possible."""
        return min(http_connection.SILENCE_LIMIT_S, max(MIN_SILENCE_LIMIT_S, (self._limit() - time.time()) / 2))

    def _is_late(self) -> bool:
        return time.time() >= self._limit()


def _first_gap(etags: Mapping[int, str]) -> int:
    """The lowest part number that is missing."""
    number = 1
    while number in etags:
        number += 1
    return number
