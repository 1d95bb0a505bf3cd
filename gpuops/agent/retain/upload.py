"""An archive's way into a bucket, part by part, each proven by its MD5; and what closes it.

Its last member, `safe.json`, says what is in it and is sent last, so that whoever has it has all. Where the time is
too short, the parts that have come are closed at the last end of a member: shorter, and an archive like any other.
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

from gpuops.agent.retain import object_requests
from gpuops.agent.retain.object_requests import Denied, Late
from gpuops.agent.retain.virtual_tar import END, Archive, cuts, looks, whole

SAFE = "safe.json"
LEAST = 8 << 20
"""A part has at least so many bytes, but for the last (S3: 5 MiB)."""
MOST = 5 << 29
"""A piece is never longer than twice this (S3: 5 GiB)."""
AT_ONCE = 4
CLOSING_S = 10.0
"""What is kept of the time there is for closing the archive, in seconds."""
LOOK_S = 0.5
"""How often is looked whether the time is over while parts are on their way."""
LEAST_SILENCE_S = 2.0
NEVER = float("inf")
GONE = "NoSuchUpload"
ALTERED = "BadDigest"
SENDINGS = 5
"""How often a part is sent whose bytes are not those that were counted."""


class Piece(NamedTuple):
    number: int
    start: int
    stop: int


class Kept(NamedTuple):
    """What is in the bucket: files, bytes of the archive, files that are not in it, and names of those that changed
    and, of those that are not in it, of those that cannot be read here."""

    files: int
    size: int
    missing: int
    changed: list[str]
    unread: Sequence[str] = ()


def too_large(archive: Archive, urls: Mapping[str, Any]) -> str:
    """Why an archive does not fit; empty where it does."""
    most = MOST * (len(urls["parts"]) - 2)
    if archive.size <= most:
        return ""
    return f"it is {archive.size / 1e9:.0f} GB, and a bucket is sent {most / 1e9:.0f} GB of a node at most"


class Upload:
    """One archive, once. `noted`: parts that an earlier agent had sent, by number: [MD5, ETag, start, stop].
    `deadline`: until when this machine is there, as far as is known now (UTC seconds): it may be told so on the way."""

    def __init__(
        self,
        archive: Archive,
        urls: Mapping[str, Any],
        about: Mapping[str, Any],
        *,
        deadline: Callable[[], float],
        tell: Callable[[int], None],
        noted: dict[str, list[Any]],
        note: Callable[[dict[str, list[Any]]], None],
    ) -> None:
        self._archive = archive
        self._urls = urls
        self._about = about
        self._deadline = deadline
        self._reserve_s = CLOSING_S
        self._tell = tell
        self._noted = noted
        self._note = note
        self._lock = threading.Lock()
        self._sums: dict[int, str] = {}
        self._hash: Any = None
        self._changed: set[int] = set()
        self._over = threading.Event()
        self._late = Late("the permission to write there ends")
        self._closing: Kept | None = None
        """What will be there once the last word for it is heard."""

    def all(self) -> Kept:
        """Send it and close it. Raises OSError: nothing is in the bucket."""
        ends = self._archive.ends
        marks = [0, *cuts(ends, len(self._urls["parts"]) - 1, LEAST)]
        pieces = [Piece(index + 1, start, stop) for index, (start, stop) in enumerate(zip(marks, marks[1:]))]
        sent = self._send(pieces)
        whole: Kept | None = None
        if len(sent) == len(pieces):
            try:
                return self._close(sent, len(ends), len(sent) + 1, marks[-1])
            except Late:
                if self._deadline() == NEVER:
                    raise
                whole = self._closing
        if self._deadline() == NEVER:
            raise self._late
        whole_ends = [mark for mark in marks[: len(sent) + 1] if mark in set(ends)]
        if not whole_ends:
            raise Late("not even for its first files")
        last = whole_ends[-1]
        count = ends.index(last) + 1
        self._reserve_s = 0.0  # this is what it was for
        try:
            return self._close(sent[: marks.index(last)], count, len(self._urls["parts"]), last)
        except Denied as error:
            if error.code != GONE or whole is None or not self._is_there(whole.size):
                raise
            return whole  # the word for all of it was heard, and its answer lost

    # The parts.

    def _send(self, pieces: Sequence[Piece]) -> list[str]:
        """The ETags of the parts that are there, without a gap. Raises what is none of the time's doing."""
        etags: dict[int, str] = {}
        running: dict[Future[str], int] = {}
        pool = ThreadPoolExecutor(AT_ONCE)
        try:
            for piece in pieces:
                if self._is_late():
                    break
                digest = self._digest(piece, first=True)
                running[pool.submit(self._part, piece, digest)] = piece.number
                while len(running) >= AT_ONCE:
                    self._gather(running, etags)
            while running:
                self._gather(running, etags)
        except Late as error:
            self._late = error
        finally:
            self._over.set()
            pool.shutdown(wait=not self._is_late())  # a connection that hangs must not outlive the machine
        for future, number in running.items():
            if future.done() and not future.cancelled() and future.exception() is None:
                etags[number] = future.result()
        return [etags[number] for number in range(1, _first_gap(etags))]

    def _gather(self, running: dict[Future[str], int], etags: dict[int, str]) -> None:
        """Wait for a part that is there. Raises Late, and what a part raises."""
        done = wait(running, LOOK_S, FIRST_COMPLETED).done
        for future in done:
            number = running.pop(future)
            etags[number] = future.result()
        if not done and self._is_late():
            raise self._late

    def _part(self, piece: Piece, digest: bytes) -> str:
        known = self._noted.get(str(piece.number))
        if known and known[0] == digest.hex() and known[2:] == [piece.start, piece.stop]:
            with self._lock:
                self._tell(piece.stop - piece.start)
            return str(known[1])
        for sending in range(1, SENDINGS + 1):
            try:
                etag = self._put(piece.number, digest, piece.stop - piece.start, lambda: self._bytes(piece))
                break
            except Denied as error:
                if error.code != ALTERED or sending == SENDINGS:
                    raise
                digest = self._digest(piece, first=False)  # a file changed between two looks at it
        with self._lock:
            if self._over.is_set():
                return etag  # whoever waited for it has gone on
            self._noted[str(piece.number)] = [digest.hex(), etag, piece.start, piece.stop]
            self._note(self._noted)
            self._tell(piece.stop - piece.start)
        return etag

    def _put(self, number: int, digest: bytes, size: int, body: Callable[[], Iterator[bytes]]) -> str:
        headers = {"Content-MD5": base64.b64encode(digest).decode()}

        def ask() -> object_requests.Answer:  # by the newest address: others may have come meanwhile
            return object_requests.ask("PUT", self._urls["parts"][number - 1], body(), size, headers, self._silence_s())

        return object_requests.patiently(ask, self._limit()).headers["etag"]

    def _bytes(self, piece: Piece) -> Iterator[bytes]:
        for _, _, block in self._archive.read(piece.start, piece.stop):
            if self._over.is_set() or self._is_late():
                raise Late
            yield block

    def _digest(self, piece: Piece, first: bool) -> bytes:
        """The MD5 of a part; the first time, in order, what is needed for each file's SHA-256 as well."""
        digest = hashlib.md5()
        for index, is_content, block in self._archive.read(piece.start, piece.stop):
            digest.update(block)
            if first:
                self._sum(index, is_content, block)
            else:
                self._changed.add(index)
        return digest.digest()

    def _sum(self, index: int, is_content: bool, block: bytes) -> None:
        """A member's bytes come one after another, and before the next one's."""
        if index not in self._sums:
            self._hash = hashlib.sha256()
        if is_content:
            self._hash.update(block)
        self._sums[index] = self._hash.hexdigest()

    # What closes it.

    def _close(self, etags: Sequence[str], count: int, number: int, start: int) -> Kept:
        """Send the rest from `start` to the end of member `count`, what says that this is all, and the word for it."""
        stop = self._archive.ends[count - 1] if count else 0
        rest = []
        for index, is_content, block in self._archive.read(start, stop):
            self._sum(index, is_content, block)
            rest.append(block)
        items = self._archive.items
        changed = {index for index in range(count) if index in self._changed or not looks(items[index])}
        # Zeros stand for them: of one that has gone that is no loss, and none of them comes home so.
        vanished = {index for index in self._archive.short if index < count and not os.path.exists(items[index].source)}
        unread = {index for index in self._archive.short if index < count and looks(items[index])}
        changed -= vanished | unread
        left = [index for index in range(count) if index not in vanished | unread]
        missing = len(items) - count + len(unread)
        body = [*rest, whole(SAFE, self._manifest(left, changed, missing), int(time.time() * 1e9)), END]
        digest, size = hashlib.md5(b"".join(body)), sum(map(len, body))
        last = self._put(number, digest.digest(), size, lambda: iter(body))
        names = [[items[index].name for index in sorted(those)] for those in (changed, unread)]
        kept = self._closing = Kept(len(left), start + size, missing, *names)
        self._complete([*enumerate(etags, 1), (number, last)], kept.size)
        return kept

    def _manifest(self, left: Sequence[int], changed: set[int], missing: int) -> bytes:
        """What is in it: [name, bytes, SHA-256 or null where it changed while it was sent, mtime in ns]."""
        rows = [
            [item.name, item.size, None if index in changed else self._sums[index], item.mtime_ns]
            for index, item in ((index, self._archive.items[index]) for index in left)
        ]
        document = {**self._about, "at": time.time(), "missing": missing, "files": rows}
        return json.dumps(document).encode()

    def _complete(self, parts: Sequence[tuple[int, str]], size: int) -> None:
        """Say that these are all; where the answer is lost, what is there counts. Raises OSError."""
        rows = "".join(f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>" for number, etag in parts)
        body = f"<CompleteMultipartUpload>{rows}</CompleteMultipartUpload>".encode()

        def ask() -> object_requests.Answer:
            return object_requests.ask("POST", self._urls["complete"], [body], len(body), None, self._silence_s())

        try:
            object_requests.patiently(ask, self._limit())
        except Denied as error:
            if error.code != GONE or self._length() is None:
                raise
        except Late:
            if not self._is_there(size):
                raise
            return
        found = self._length()
        if found != size:
            raise OSError(errno.EIO, f"{size} bytes were sent, and the bucket has {found}")

    def _is_there(self, size: int) -> bool:
        """Whether the bucket has it all; False also where nobody says."""
        try:
            limit = min(self._limit(), time.time() + CLOSING_S)
            return object_requests.length(self._urls["head"], limit, self._silence_s()) == size
        except OSError:
            return False

    def _length(self) -> int | None:
        return object_requests.length(self._urls["head"], self._limit(), self._silence_s())

    # Time.

    def _limit(self) -> float:
        return min(self._deadline() - self._reserve_s, float(self._urls["until"]))

    def _silence_s(self) -> float:
        """How long an answer is waited for: where the machine goes, so that there is time for asking again."""
        return min(object_requests.SILENCE_S, max(LEAST_SILENCE_S, (self._limit() - time.time()) / 2))

    def _is_late(self) -> bool:
        return time.time() >= self._limit()


def _first_gap(etags: Mapping[int, str]) -> int:
    number = 1
    while number in etags:
        number += 1
    return number
