"""Writing all of something: a pipe may take less than it is given. Both ends of a conversation use it."""

from __future__ import annotations

from typing import Any


class Whole:
    """A raw stream whose `write` writes everything."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def write(self, data: bytes) -> int:
        view = memoryview(data)
        while view:
            view = view[self.stream.write(view) or 0 :]
        return len(data)
