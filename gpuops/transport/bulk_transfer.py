"""One bulk transfer's channel, watched: whichever side stops moving bytes, it ends within a limit."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar, cast

from gpuops.agent.wire_format import END, Whole, head
from gpuops.core.errors import ConnectionLost, MalformedAnswer, NodeError, NodeRefused, UsageError
from gpuops.core.format import span
from gpuops.core.safe_folder import Readable
from gpuops.transport.connection import Channel
from gpuops.transport.tar_reader import Content, Member, TarError, Torn, members

SILENCE_S = 60.0
"""How long a transfer may move no byte in either direction, in seconds."""
PIECE = 1 << 15
"""Bytes of one write. A pipe takes a write as a whole before it returns: small ones show a slow line's progress."""

PATIENCE = 10
"""A whole answer may take so many times as long as its longest silence."""
SLOWEST = 1000.0
"""Bytes per second, on average, once that long was waited: less is no transfer."""
ANSWER_LIMIT = 64 << 20
"""The longest answer of a program that is borne, in bytes."""

T = TypeVar("T")


class Cut(Exception):
    """The channel, not a file of ours, ended or failed."""


class Watched:
    """A channel of which every read and write is timed; one that takes longer than `silence_s` ends the program.

    Only waiting for the other side counts, not what is done here between two reads.
    """

    def __init__(self, channel: Channel, silence_s: float) -> None:
        self.silence_s = silence_s
        self.silent = False
        self._channel = channel
        self._since: float | None = None
        self._waited = 0.0
        self._moved = 0
        self._done = threading.Event()
        self.stdin = cast(BinaryIO, _Side(self, channel.stdin))
        self.stdout = cast(BinaryIO, _Side(self, channel.stdout))
        threading.Thread(target=self._watch, daemon=True, name="bulk watch").start()

    def _watch(self) -> None:
        while not self._done.wait(self.silence_s / 10):
            since = self._since
            if since is not None and (time.monotonic() - since > self.silence_s or self.crawls):
                self.silent = True
                self._channel.close()  # whoever waits in a read or write sees the end of the pipe
                return

    @property
    def crawls(self) -> bool:
        """Whether a byte now and then is all that comes: no line is so slow."""
        return self._waited > PATIENCE * self.silence_s and self._moved < SLOWEST * self._waited

    def moved(self, count: int) -> None:
        self._moved += count

    def timed(self, act: Callable[[], T]) -> T:
        """`act`, a read or a write. Raises Cut where it fails."""
        self._since = began = time.monotonic()
        try:
            return act()
        except (OSError, ValueError) as error:  # ValueError: closed by the watcher
            raise Cut(str(error)) from error
        finally:
            self._since = None
            self._waited += time.monotonic() - began

    def wait(self, timeout: float | None = None) -> int:
        return self._channel.wait(timeout)

    def errors(self) -> str:
        return self._channel.errors()

    def close(self) -> None:
        self._done.set()
        self._channel.close()


class _Side:
    """One of the two streams; `write` may take less than it is given."""

    def __init__(self, owner: Watched, stream: BinaryIO) -> None:
        self._owner = owner
        self._stream = stream

    def read(self, count: int) -> bytes:
        data = self._owner.timed(lambda: self._stream.read(count))
        self._owner.moved(len(data or b""))
        return data

    def write(self, data: bytes) -> int:
        count = self._owner.timed(lambda: self._stream.write(data[:PIECE]))
        self._owner.moved(count or 0)
        return count

    def close(self) -> None:
        self._stream.close()


@contextmanager
def transfer(channel: Channel, label: str, silence_s: float = SILENCE_S) -> Iterator[Watched]:
    """The watched channel for one transfer, closed at the end.

    Raises NodeRefused in the other side's own words, ConnectionLost, and MalformedAnswer for a stream that no agent
    sends. Errors of this computer's files are left to the caller, as OSError.
    """
    watched = Watched(channel, silence_s)
    try:
        yield watched
    except (Cut, TarError, NodeError) as error:
        if watched.silent:
            moved = "hardly moved" if watched.crawls else f"not moved for {span(silence_s)}"
            raise ConnectionLost(
                f"the transfer with {label} has {moved}",
                "check the node and the network, then try again: what arrived whole is not sent again",
            ) from error
        if isinstance(error, NodeError):
            raise
        if isinstance(error, TarError) and not isinstance(error, Torn):
            raise MalformedAnswer(label, str(error)) from error
        raise complaint(watched, label) from error
    finally:
        watched.close()


def exchange(channel: Channel, label: str, question: bytes = b"", silence_s: float = SILENCE_S) -> bytes:
    """Give a program its whole input, take its whole output, wait for its end.

    Raises NodeRefused with an agent's own words, ConnectionLost for anything else but exit code 0.
    """
    end = time.monotonic() + PATIENCE * silence_s
    with transfer(channel, label, silence_s) as watched:
        Whole(watched.stdin).write(question)
        watched.stdin.close()
        answer = bytearray()
        while chunk := watched.stdout.read(1 << 16):
            answer += chunk
            if len(answer) > ANSWER_LIMIT or time.monotonic() > end:
                raise ConnectionLost(f"{label} answers without end", "check that this node is yours")
        finish(watched, label)
    return bytes(answer)


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
    """Exactly `size` bytes of a file that may change meanwhile, with zeros for what is missing.

    `on_bytes` is called with the size of each block.
    """

    def __init__(self, file: BinaryIO, size: int, on_bytes: Callable[[int], None]) -> None:
        self.file = file
        self.left = size
        self.on_bytes = on_bytes

    def read(self, count: int) -> bytes:
        count = min(count, self.left)
        data = self.file.read(count)
        self.left -= count
        self.on_bytes(count)
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
    channel: Channel, folder: Path, files: Sequence[tuple[int, Sent]], on_bytes: Callable[[int], None]
) -> list[str]:
    """Send each file under its number as name. Returns the paths that changed or went while they were sent.

    Raises UsageError for a file that cannot be read.
    """
    changed: list[str] = []
    sending = Sending(channel)
    for number, entry in files:
        try:
            with open(f"{folder}/{entry.path}", "rb") as file:
                sending.add(str(number), entry.size, Counted(file, entry.size, on_bytes))
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
    from gpuops.transport import validation

    last = (channel.errors().strip().splitlines() or [""])[-1]
    return validation.parse_refusal_line(label, last) or ConnectionLost(
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
