"""What the client and a node must agree on byte for byte: both ends of a conversation import this module.

The version and the greeting of the protocol, a stream whose writes are complete, and the format of a bulk transfer:
for each file a line of JSON `[name, size]` followed by its bytes, and at the end the line `[]`. A relay (`relay`) is
sent frames: pieces of such a stream, and between them messages.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any, BinaryIO, Iterator

from gpuops.agent.node import Refusal

PROTOCOL = 2
"""Version of the verbs and of the files in a node's folder."""
MAGIC = b"gpuops-agent 1\n"
"""First line of an agent's output: whatever a login printed before it is noise."""
BLOCK_BYTES = 1 << 18
HEADER_LINE_BYTES = 1 << 17
"""Longest header line: a path of 4,096 bytes takes six characters for each in JSON."""
END = b"[]\n"
"""Closes a transfer. One that ends without it was cut."""
FRAME = struct.Struct(">BI")
"""Kind and length, before the content of a frame."""
DECODER = json.JSONDecoder()
MESSAGE, DATA, DEFLATED = 0, 1, 2
MAX_FRAME_BYTES = 64 << 20
SUM_INTERVAL_BYTES = 4 << 20
"""A stream that is passed on is vouched for at every multiple of this, and at its end."""


class Whole:
    """A raw stream whose `write` writes everything: a pipe may take less than it is given."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, data: bytes) -> int:
        view = memoryview(data)
        while view:
            view = view[self.stream.write(view) or 0 :]
        return len(data)


def head(name: str, size: int) -> bytes:
    """The header line of a file."""
    if name.isdecimal() and name.isascii():  # most are numbers, as JSON writes them
        return b'["%b", %d]\n' % (name.encode(), size)
    return json.dumps([name, size]).encode() + b"\n"


def torn() -> Refusal:
    return Refusal("torn", "the transfer ended early", "push again: what arrived whole is not sent again")


def members(stream: BinaryIO) -> Iterator[tuple[str, int, Iterator[bytes]]]:
    """Name, size and content of each file, in order. Read each content before asking for the next file.

    Raises Refusal `torn` for a stream that ends early or has another format.
    """
    while True:
        member = _parse_header(stream.readline(HEADER_LINE_BYTES))
        if member is None:
            return
        name, size = member
        yield name, size, _content(stream, size)


def _parse_header(line: bytes) -> tuple[str, int] | None:
    """Name and size; None for the closing line."""
    try:
        text = line.decode()
        document, end = DECODER.raw_decode(text)  # `loads` takes twice as long for as little as this
        if text[end:] != "\n":
            raise torn()
        if document == []:
            return None
        name, size = document
    except (ValueError, TypeError, RecursionError) as error:
        raise torn() from error
    if not isinstance(name, str) or not isinstance(size, int) or size < 0:
        raise torn()
    return name, size


def _content(stream: BinaryIO, size: int) -> Iterator[bytes]:
    while size:
        block = stream.read(min(size, BLOCK_BYTES))
        if not block:
            raise torn()
        size -= len(block)
        yield block


def frame(kind: int, content: bytes) -> bytes:
    return FRAME.pack(kind, len(content)) + content


def frames(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Kind and content, inflated, of each frame until the stream ends. Raises Refusal `torn` for what is no frame."""
    while True:
        head_bytes = stream.read(FRAME.size)
        if not head_bytes:
            return
        kind, length = FRAME.unpack(head_bytes) if len(head_bytes) == FRAME.size else (-1, 0)
        content = stream.read(length) if 0 <= length <= MAX_FRAME_BYTES else b""
        if kind not in (MESSAGE, DATA, DEFLATED) or len(content) != length:
            raise torn()
        if kind == DEFLATED:
            kind, content = DATA, zlib.decompress(content)
        yield kind, content


class RunningSum:
    """The SHA-256 of a stream from its beginning, at each multiple of SUM_INTERVAL_BYTES and at its end: one that is
    right vouches for everything before it."""

    def __init__(self) -> None:
        self.offset = 0
        """Bytes so far."""
        import hashlib  # loads OpenSSL: a conversation does without

        self._digest = hashlib.sha256()

    def add(self, data: bytes) -> list[tuple[int, str]]:
        """Count bytes. Returns the sums of the multiples that they reach, with their offsets."""
        found = []
        view = memoryview(data)
        while view:
            part = view[: SUM_INTERVAL_BYTES - self.offset % SUM_INTERVAL_BYTES]
            view = view[len(part) :]
            self._digest.update(part)
            self.offset += len(part)
            if self.offset % SUM_INTERVAL_BYTES == 0:
                found.append(self.here())
        return found

    def here(self) -> tuple[int, str]:
        return self.offset, self._digest.hexdigest()
