"""Writing all of something: a pipe may take less than it is given. Both ends of a conversation use it."""

from __future__ import annotations

import json
from typing import Any, BinaryIO, Iterator

from gpuops.agent.node import Refusal


class Whole:
    """A raw stream whose `write` writes everything."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, data: bytes) -> int:
        view = memoryview(data)
        while view:
            view = view[self.stream.write(view) or 0 :]
        return len(data)


BLOCK = 1 << 18
LINE_LIMIT = 1 << 17
"""A path of 4,096 bytes, six characters for each, and then some."""
END = b"[]\n"


def head(name: str, size: int) -> bytes:
    """What comes before a file's bytes."""
    return json.dumps([name, size]).encode() + b"\n"


def torn() -> Refusal:
    return Refusal("torn", "the transfer ended early", "push again: what arrived whole is not sent again")


def members(stream: BinaryIO) -> Iterator[tuple[str, int, Iterator[bytes]]]:
    """Name, size and content of each file, in order. Each content must be read before the next is asked for.

    Raises Refusal `torn` for a stream that ends early, or is none.
    """
    while True:
        found = _parsed(stream.readline(LINE_LIMIT))
        if found is None:
            return
        name, size = found
        yield name, size, _content(stream, size)


def _parsed(line: bytes) -> tuple[str, int] | None:
    try:
        found: Any = json.loads(line)
        if found == []:
            return None
        name, size = found
    except (ValueError, TypeError, RecursionError) as error:
        raise torn() from error
    if not isinstance(name, str) or not isinstance(size, int) or size < 0:
        raise torn()
    return name, size


def _content(stream: BinaryIO, size: int) -> Iterator[bytes]:
    while size:
        block = stream.read(min(size, BLOCK))
        if not block:
            raise torn()
        size -= len(block)
        yield block
