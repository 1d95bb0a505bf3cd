"""Files to and from a node's bulk programs: as `gpuops.agent.filestream` there, as tar from there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

from gpuops.agent.filestream import END, head
from gpuops.agent.whole import Whole
from gpuops.core.errors import ConnectionLost, NodeRefused, UsageError
from gpuops.core.safe_folder import Readable
from gpuops.transport.connection import Channel
from gpuops.transport.tarmembers import Content, Member, TarError, members

BLOCK = 1 << 18
END_S = 600.0
"""How long a bulk program may take to end once it has everything."""

LAST_WORDS_S = 10.0
"""How long a broken transfer is given to say why."""


class Sent(Protocol):
    """A file to send: `path` relative to its folder, with `/`; size in bytes, time of its last change in ns."""

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def mtime_ns(self) -> int: ...


class Counted:
    """Exactly `size` bytes of a file that may change meanwhile, zeros for what is missing, each one told."""

    def __init__(self, file: BinaryIO, size: int, told: Callable[[int], None]) -> None:
        self.file = file
        self.left = size
        self.told = told

    def read(self, count: int) -> bytes:
        count = min(count, self.left)
        data = self.file.read(count)
        self.left -= count
        self.told(count)
        return data + bytes(count - len(data))


class Sending:
    """Files on their way to a program that reads a `filestream`; small ones travel together."""

    def __init__(self, channel: Channel) -> None:
        self._stream = Whole(channel.stdin)
        self._gathered: list[bytes] = []
        self._size = 0

    def add(self, name: str, size: int, content: Readable) -> None:
        """Exactly `size` bytes of `content`. Raises OSError where it has fewer."""
        self._put(head(name, size))
        while size:
            block = content.read(min(size, BLOCK))
            if not block:
                raise OSError("it became shorter while it was sent")
            size -= len(block)
            self._put(block)

    def _put(self, data: bytes) -> None:
        self._gathered.append(data)
        self._size += len(data)
        if self._size >= BLOCK:
            self._flush()

    def _flush(self) -> None:
        self._stream.write(b"".join(self._gathered))
        self._gathered, self._size = [], 0

    def end(self) -> None:
        self._put(END)
        self._flush()


def write_files(
    channel: Channel, folder: Path, files: Sequence[tuple[int, Sent]], told: Callable[[int], None]
) -> list[str]:
    """Send each file under its number as name. Returns the paths that changed or went while they were sent.

    Raises UsageError for a file that cannot be read.
    """
    changed: list[str] = []
    sending = Sending(channel)
    for number, entry in files:
        try:
            with open(f"{folder}/{entry.path}", "rb") as file:
                sending.add(str(number), entry.size, Counted(file, entry.size, told))
                after = os.fstat(file.fileno())
        except FileNotFoundError:
            changed.append(entry.path)
            continue
        except OSError as error:
            raise UsageError(
                f"{entry.path} cannot be read: {error.strerror or error}", "list it in .gpuopsignore"
            ) from error
        if (after.st_size, after.st_mtime_ns) != (entry.size, entry.mtime_ns):
            changed.append(entry.path)
    sending.end()
    return changed


def finish(channel: Channel, label: str) -> None:
    """Wait for a bulk program's end. Raises NodeRefused with its own words, or ConnectionLost."""
    try:
        channel.stdin.close()
    except OSError:
        pass  # it ended before we did: its exit code says why
    try:
        code = channel.wait(END_S)
    except TimeoutError as error:
        raise ConnectionLost(f"the transfer with {label} does not end", "check the node, then try again") from error
    if code != 0:
        raise complaint(channel, label)


def complaint(channel: Channel, label: str) -> NodeRefused | ConnectionLost:
    """Why a bulk program ended, from the last line it wrote to stderr."""
    try:
        channel.wait(LAST_WORDS_S)
    except TimeoutError:
        pass  # it hangs without having said why
    from gpuops.transport import answers

    last = (channel.errors().strip().splitlines() or [""])[-1]
    return answers.refused(label, last) or ConnectionLost(
        f"the transfer with {label} was cut ({last or 'no reason given'})",
        "try again: what arrived whole is not sent again",
    )


def read_files(channel: Channel, paths: Sequence[str]) -> Iterator[tuple[Member, Content]]:
    """Ask a `send` program for `paths`; each file or link with its bytes. What vanished there is left out.

    Raises TarError for a stream that is none of ours, ends early, or has what was not asked for.
    """
    waiting = set(paths)
    Whole(channel.stdin).write(json.dumps(list(paths)).encode())
    channel.stdin.close()
    for member, content in members(channel.stdout):
        if member.name not in waiting:
            raise TarError(f"{member.name[:200]!r} was not asked for, or came before")
        waiting.remove(member.name)
        yield member, content
