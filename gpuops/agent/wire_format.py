"""What the client and a node must agree on byte for byte: both ends of a conversation import this module.

The version and the greeting of the protocol, a stream whose writes are complete, and the format of a bulk transfer:
for each file a line of JSON `[name, size]` followed by its bytes, and at the end the line `[]`.
"""

from __future__ import annotations

import json
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
        document: Any = json.loads(line)
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
