"""One file of a fetch: attempts until it has arrived whole, was checked, and stands in its place.

A connection may be cut at any byte: the next attempt asks for the rest (`Range`), of this very version (`If-Range`). A
server that cannot do that sends all of it again.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import hashlib
import os
import time
from typing import Any

from gpuops.agent.fetch import web
from gpuops.agent.fetch.addresses import Addresses
from gpuops.agent.fetch.store import Known, Store, Wanted
from gpuops.agent.fetch.web import Answer, Cut, Version
from gpuops.agent.files.folder import check_room
from gpuops.agent.node import Refusal

MIN_PAUSE_S, MAX_PAUSE_S = 0.5, 15.0
"""The pause doubles with each attempt that brings nothing."""
FIRST_ANSWER_S = 30.0
"""How long a server that has never answered is asked: an address that is wrong shows soon."""
NOBODY_THERE_S = 1.0
"""The same where nobody has ever listened, or the host has no name: three requests."""
PATIENCE_S = 1800.0
"""How long attempts go on that bring no byte more than earlier ones."""

COMPRESSED = (".gz", ".tgz", ".svgz", ".Z", ".bz2", ".xz", ".br", ".zst")
"""How names of files end that are compressed."""


class Flow:
    """What the downloads of one fetch tell of themselves, together."""

    def __init__(self) -> None:
        self.done: dict[str, int] = {}
        """Bytes that have arrived, by file."""
        self.sizes: dict[str, int] = {}
        """Of the files whose size is known."""
        self.has_answered = False
        """Whether any server has."""
        self.trouble = ""
        """Why the latest attempt failed; empty while bytes come."""
        self.had = 0
        """Bytes that an earlier fetch has left."""

    @property
    def progress(self) -> tuple[int, int]:
        """Bytes that have come and bytes that were to come, as far as sizes are known, without what was here."""
        done, total = sum(list(self.done.values())), sum(list(self.sizes.values()))
        return max(0, done - self.had), max(0, max(done, total) - self.had)

    def moved(self, path: str, done: int) -> None:
        self.done[path] = done
        self.trouble = ""


class Download:
    """One file."""

    def __init__(self, store: Store, addresses: Addresses, flow: Flow, index: int, wanted: Wanted) -> None:
        self._store = store
        self._addresses = addresses
        self._flow = flow
        self._index = index
        self._wanted = wanted
        self._version: Version | None = None
        """Of what has arrived; None before anything has."""
        self._has_begun = False
        """Whether this process has heard of that version, and not only an earlier one."""
        self._is_new = False
        self._sha256 = wanted.sha256
        self._position = 0
        """How many bytes have arrived."""
        self._furthest = -1
        self._hash: Any = None

    def fetch(self, known: Known | None) -> bool:
        """Bring the file in; `known`: what is in its place, which may be the same. Whether it was not the same.

        Raises Refusal, and OSError for this node's disk.
        """
        if self._wanted.etag or self._wanted.sha256:
            known = None  # it is another than the listing's, or than the user's
        self._resume()
        pause, deadline = MIN_PAUSE_S, time.monotonic() + PATIENCE_S
        asked, first_answer_s = time.monotonic(), NOBODY_THERE_S
        while True:
            try:
                if self._attempt(known):
                    return self._is_new
                why = "the address has ended"
            except Cut as cut:
                why = str(cut)
                if not isinstance(cut, web.NotThere):
                    first_answer_s = FIRST_ANSWER_S
            now = time.monotonic()
            if self._position > self._furthest:
                self._furthest = self._position
                pause, deadline = MIN_PAUSE_S, now + PATIENCE_S
            if now > (deadline if self._flow.has_answered else asked + first_answer_s):
                raise Refusal(
                    "unreachable",
                    f"'{self._wanted.path}' cannot be fetched: {why}",
                    "check the address and the node's network; what has arrived is not fetched again",
                )
            self._flow.trouble = why
            time.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_S)

    def _resume(self) -> None:
        """Go on with what an earlier fetch left, unless a listing names another version."""
        partial = self._store.partial(self._wanted.path)
        wanted = self._wanted
        if partial is None or (wanted.etag and (wanted.etag, wanted.size) != partial.version[::2]):
            return
        # Where all of it has arrived, the last byte is asked for again: the answer tells whether it is still the same.
        last = partial.size if partial.version.size is None else max(0, partial.version.size - 1)
        self._version, self._position = partial.version, min(partial.size, last)
        self._sha256 = self._sha256 or partial.sha256
        self._start_hash()

    def _start_hash(self) -> None:
        self._hash = hashlib.sha256() if self._sha256 else None
        if self._hash and self._position:
            for block in self._store.read_part(self._wanted.path, self._position):
                self._hash.update(block)

    def _attempt(self, known: Known | None) -> bool:
        """One request. Whether the file is in its place; False: its address had ended.

        Raises Cut, Refusal, OSError.
        """
        handed = self._addresses.get(self._index)
        headers = {}
        if self._position and self._version and self._version.validator:
            headers = {"Range": f"bytes={self._position}-", "If-Range": self._version.validator}
        elif known and known.version.is_telling:
            headers = {"If-None-Match": known.version.etag} if known.version.etag else {
                "If-Modified-Since": known.version.modified}  # fmt: skip
        with contextlib.closing(web.ask(handed.address, headers)) as answer:
            self._flow.has_answered = self._flow.has_answered or answer.status < 500
            if answer.status == 304 and known:
                return True
            if answer.status == 200:
                if known and is_same(known, answer.version):
                    return True
                self._begin(answer)
            elif answer.status == 206 and self._position:
                self._continue(answer)
            elif answer.status == 416 and self._position:
                self._position = 0
                raise Cut(f"{answer.host} has no such part of the file")
            else:
                return self._cannot(answer, may_have_ended=handed.may_have_ended)
            handed.has_served = True
            self._receive(answer)
        self._finish()
        return True

    def _cannot(self, answer: Answer, may_have_ended: bool) -> bool:
        """Decide on an answer without data: False for an address that has ended and is renewed. Raises Refusal, Cut."""
        status, code = answer.status, answer.code()
        what = f"{answer.host} answers {status}{f' ({code})' if code else ''} for '{self._wanted.path}'"
        if (status == 403 or code in web.ENDED_SIGNATURES) and may_have_ended:
            self._addresses.renew(self._index)
            return False
        if status >= 500 or status in (408, 429):
            raise Cut(f"{answer.host} answers {status}{f' ({code})' if code else ''}")
        if code in web.ENDED_SIGNATURES:
            raise Refusal("denied", what, "sign in again on your computer (its keys have ended), then run it again")
        if status in (401, 403):
            raise Refusal("denied", what, "check that these data may be read with that address")
        if status in (404, 410):
            if self._wanted.etag:
                raise changed(self._wanted.path)
            raise Refusal("absent", what, "check the address")
        raise Refusal("denied", what, "check the address")

    def _begin(self, answer: Answer) -> None:
        """The server sends all of it. Raises Refusal(`changed`, `disk`, `no-size`, `compressed`)."""
        version, wanted = answer.version, self._wanted
        is_other = self._has_begun and self._version is not None and not _is_equal(version, self._version)
        if is_other or (wanted.etag and (wanted.etag, wanted.size) != (version.etag, version.size)):
            raise changed(wanted.path)
        if version.size is None and not (answer.is_chunked or wanted.sha256):
            raise Refusal(
                "no-size",
                f"{answer.host} does not tell the size of '{wanted.path}', so that a cut could not be noticed",
                "add the checksum to the address: #sha256=HEX",
            )
        if not (wanted.etag or wanted.sha256) and _is_compressed(answer, wanted.path):
            raise Refusal(
                "compressed",
                f"{answer.host} sends '{wanted.path}' compressed, though it was asked for it as it is",
                "use an address of the compressed file, or add the checksum of what it sends: #sha256=HEX",
            )
        self._sha256 = wanted.sha256 or _announced_sha256(answer)
        self._store.begin(wanted.path, version, self._sha256)
        self._version, self._position, self._has_begun = version, 0, True
        self._start_hash()
        if version.size is not None:
            self._flow.sizes[wanted.path] = version.size
            check_room(self._store.incoming, version.size, wanted.path, "take a node with a larger disk")

    def _continue(self, answer: Answer) -> None:
        """The server sends the rest. Raises Refusal(`changed`), Cut."""
        assert self._version is not None
        try:
            start, _ = answer.content_range()
        except Cut:
            self._position = 0
            raise
        if not _may_be_rest(self._version, answer.version):
            self._store.drop(self._wanted.path)
            raise changed(self._wanted.path)
        if start != self._position:
            self._position = 0
            raise Cut(f"{answer.host} sends another part of the file than it was asked for")
        self._has_begun = True
        self._version = self._version._replace(size=answer.version.size)
        if self._version.size is not None:
            self._flow.sizes[self._wanted.path] = self._version.size
            check_room(self._store.incoming, self._version.size - start, self._wanted.path,
                       "take a node with a larger disk")  # fmt: skip

    def _receive(self, answer: Answer) -> None:
        """Write what comes. Raises Cut where it ends early, OSError for the disk, Refusal(`changed`) for too much."""
        assert self._version is not None
        size = self._version.size
        fd = self._store.open_part(self._wanted.path, self._position)
        try:
            while True:
                block = answer.read()
                if not block:
                    break
                if size is not None and self._position + len(block) > size:
                    self._store.drop(self._wanted.path)
                    raise changed(self._wanted.path)
                _write(fd, block)
                self._position += len(block)
                if self._hash:
                    self._hash.update(block)
                self._flow.moved(self._wanted.path, self._position)
            if size is not None and self._position < size:
                raise Cut(f"{answer.host} ended the connection at {self._position} of {size} bytes")
            os.fsync(fd)
        finally:
            os.close(fd)

    def _finish(self) -> None:
        """Check what has arrived, and move it into its place. Raises Refusal(`changed`, `wrong-bytes`)."""
        assert self._version is not None
        path, got = self._wanted.path, self._hash.hexdigest() if self._hash else ""
        if got != self._sha256:
            self._store.drop(path)
            raise Refusal(
                "wrong-bytes",
                f"'{path}' arrived with the SHA-256 {got[:12]}…, and should have {self._sha256[:12]}…",
                "check the address and its checksum; what has arrived is dropped",
            )
        self._store.place(path, self._version._replace(size=self._position), got)
        self._addresses.forget(self._index)
        self._flow.moved(path, self._position)
        self._is_new = True


def changed(path: str) -> Refusal:
    """What the client has an answer to: it begins again."""
    return Refusal(
        "changed", f"'{path}' changed at its source while it was fetched", "let it be finished there, then run again"
    )


def is_same(known: Known, version: Version) -> bool:
    """Whether the file in its place is what the server would send."""
    return known.version.is_telling and _is_equal(known.version, version)


def _is_equal(one: Version, other: Version) -> bool:
    """Whether two versions are of one content: by the tag, or else by the time; and by the size where both tell it."""
    is_size_equal = one.size == other.size or None in (one.size, other.size)
    return is_size_equal and (one.etag == other.etag if one.etag and other.etag else one.modified == other.modified)


def _may_be_rest(begun: Version, rest: Version) -> bool:
    """Whether a rest can be one of the version that was begun; a server need not say again which one that is."""
    if begun.size not in (None, rest.size):
        return False
    return rest.etag == begun.etag if rest.etag else rest.modified in ("", begun.modified)


def _is_compressed(answer: Answer, path: str) -> bool:
    """Whether a server packed the file for the way; some say so of any file that is compressed by itself."""
    return answer.header("Content-Encoding").lower() not in ("", "identity") and not path.endswith(COMPRESSED)


def _announced_sha256(answer: Answer) -> str:
    """S3's checksum of the whole object, as hex digits; empty without one, or where it is one of parts."""
    text = answer.header("x-amz-checksum-sha256")
    if not text or "-" in text or answer.header("x-amz-checksum-type") == "COMPOSITE":
        return ""
    try:
        digest = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return ""
    return digest.hex() if len(digest) == 32 else ""


def _write(fd: int, block: bytes) -> None:
    view = memoryview(block)
    while view:
        written = os.write(fd, view)
        if not written:
            raise OSError(errno.EIO, "the disk takes nothing")
        view = view[written:]
