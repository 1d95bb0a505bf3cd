"""A shell's start-up files may talk before a program does. What comes before a mark of ours is dropped."""

from __future__ import annotations

import io
import secrets
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

from gpuops.transport.ssh.quoting import shell_line

NOISE_LIMIT = 1 << 20


class NoMark(Exception):
    """The program's own output never began; `seen` came instead."""

    def __init__(self, seen: bytes) -> None:
        super().__init__("no mark")
        self.seen = seen


def marked(argv: Sequence[str]) -> tuple[str, bytes]:
    """The line for the remote shell, and the mark that comes right before the program's first byte.

    In the line the mark stands in two pieces, so that a shell that prints what it is told does not print it.
    """
    first, second = secrets.token_hex(8), secrets.token_hex(8)
    # A word that begins with a dash would be an option of exec; then the shell stays as the program's parent.
    start = "" if argv and argv[0].startswith("-") else "exec "
    return f"printf '%s%s\\n' {first} {second}; {start}{shell_line(argv)}", f"{first}{second}\n".encode()


def skip(read: Callable[[int], bytes], mark: bytes) -> bytes:
    """Read up to the mark; what came after it. Raises NoMark at the end of the stream, or after a lot of noise."""
    seen = bytearray()
    while chunk := read(65536):
        searched = max(0, len(seen) - len(mark))
        seen += chunk
        at = seen.find(mark, searched)
        if at >= 0:
            return bytes(seen[at + len(mark) :])
        if len(seen) > NOISE_LIMIT:
            break
    raise NoMark(bytes(seen))


class Clean(io.RawIOBase):
    """A program's output without what came before it."""

    def __init__(self, stream: BinaryIO, first: bytes) -> None:
        self._stream = stream
        self._first = memoryview(first)

    def readable(self) -> bool:
        return True

    def read(self, count: int = -1) -> bytes:
        if count < 0:
            return self.readall()
        if self._first and not self.closed:
            piece, self._first = self._first[:count], self._first[count:]
            return bytes(piece)
        return self._stream.read(count)

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        super().close()
        self._stream.close()
