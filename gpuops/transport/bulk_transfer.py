"""Bulk transfers with a program on a node, each of which ends within a limit whichever side stops.

`transfer` opens one. In it, `write_files` or `Sending` sends a stream of files (`agent.wire_format`), and `read_files`
receives a tar stream. `exchange` sends a program its whole input and returns its whole output.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar, cast

from gpuops.agent.wire_format import BLOCK_BYTES, END, Whole, head
from gpuops.core.errors import ConnectionLost, MalformedAnswer, NodeError, NodeRefused, UsageError
from gpuops.core.format import span
from gpuops.core.safe_folder import Readable
from gpuops.transport.connection import Channel
from gpuops.transport.deadlines import DEADLINES
from gpuops.transport.tar_reader import Content, Member, TarError, Torn, members

SILENCE_S = 60.0
"""How long a transfer may move no byte in either direction."""
WRITE_BYTES = 1 << 15
"""Bytes of one write. A pipe takes a write as a whole before it returns: small ones show a slow line's progress."""
MAX_SILENCES = 10
"""A whole answer may take this many times the silence that is allowed; a transfer that has waited for as long must have
moved MIN_BYTES_PER_S on average."""
MIN_BYTES_PER_S = 1000.0
READ_FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0)
"""Windows reads a file as text otherwise."""
MAX_ANSWER_BYTES = 64 << 20
END_S = 600.0
"""How long a program may take to end once it has everything."""
LAST_WORDS_S = 10.0
"""How long a program whose transfer broke may take to say why."""

T = TypeVar("T")


class ChannelFailed(Exception):
    """The channel ended or failed, and not a file of this computer."""


class TimedChannel:
    """A channel of which every read and write is timed; one that takes longer than `silence_s` ends the program.

    So does a transfer that has waited for MAX_SILENCES times as long, at fewer bytes per second than the least. Only
    waiting for the other side counts, not what is done here between two reads.
    """

    def __init__(self, channel: Channel, silence_s: float, least_bytes_per_s: float = MIN_BYTES_PER_S) -> None:
        self.silent = False
        """Whether the program was ended because it moved nothing, or hardly anything."""
        self._channel = channel
        self._silence_s = silence_s
        self._least_bytes_per_s = least_bytes_per_s
        self._waiting_since: float | None = None
        self._waited_s = 0.0
        self._moved_bytes = 0
        self._is_closed = False
        self.stdin = cast(BinaryIO, _TimedStream(self, channel.stdin))
        self.stdout = cast(BinaryIO, _TimedStream(self, channel.stdout))
        self._next_check = DEADLINES.after(silence_s / 10, self._check)

    def _check(self) -> None:
        since = self._waiting_since
        if self._is_closed:
            return
        if since is not None and (time.monotonic() - since > self._silence_s or self.is_too_slow):
            self.silent = True
            self._channel.close()  # whoever waits in a read or write sees the end of the pipe
            return
        self._next_check = DEADLINES.after(self._silence_s / 10, self._check)

    @property
    def is_too_slow(self) -> bool:
        """Whether bytes come so rarely that no network is the reason."""
        least = self._least_bytes_per_s * self._waited_s
        return self._waited_s > MAX_SILENCES * self._silence_s and self._moved_bytes < least

    def count_bytes(self, count: int) -> None:
        self._moved_bytes += count

    def time_call(self, call: Callable[[], T]) -> T:
        """The result of `call`, a read or a write. Raises ChannelFailed where it fails."""
        self._waiting_since = began = time.monotonic()
        try:
            return call()
        except (OSError, ValueError) as error:  # ValueError: closed by `_check`
            raise ChannelFailed(str(error)) from error
        finally:
            self._waiting_since = None
            self._waited_s += time.monotonic() - began

    def wait(self, timeout: float | None = None) -> int:
        return self._channel.wait(timeout)

    def errors(self) -> str:
        return self._channel.errors()

    def close(self) -> None:
        self._is_closed = True
        self._next_check.cancel()
        self._channel.close()


class _TimedStream:
    """One of the two streams; `write` may take less than it is given."""

    def __init__(self, owner: TimedChannel, stream: BinaryIO) -> None:
        self._owner = owner
        self._stream = stream

    def read(self, count: int) -> bytes:
        data = self._owner.time_call(lambda: self._stream.read(count))
        self._owner.count_bytes(len(data or b""))
        return data

    def write(self, data: bytes) -> int:
        count = self._owner.time_call(lambda: self._stream.write(data[:WRITE_BYTES]))
        self._owner.count_bytes(count or 0)
        return count

    def close(self) -> None:
        self._stream.close()


@contextmanager
def transfer(
    channel: Channel, label: str, silence_s: float = SILENCE_S, least_bytes_per_s: float = MIN_BYTES_PER_S
) -> Iterator[TimedChannel]:
    """The timed channel of one transfer. At the end of the block the program's own end is waited for.

    Raises NodeRefused in the program's own words, ConnectionLost, also for an exit code other than 0, and
    MalformedAnswer for a stream that no agent sends. Errors of this computer's files are left to the caller, as
    OSError.
    """
    timed = TimedChannel(channel, silence_s, least_bytes_per_s)
    try:
        yield timed
        _wait_for_end(timed, label)
    except (ChannelFailed, TarError, NodeError) as error:
        if timed.silent:
            moved = "hardly moved" if timed.is_too_slow else f"not moved for {span(silence_s)}"
            raise ConnectionLost(
                f"the transfer with {label} has {moved}",
                "check the node and the network, then try again: what arrived whole is not sent again",
            ) from error
        if isinstance(error, NodeError):
            raise
        if isinstance(error, TarError) and not isinstance(error, Torn):
            raise MalformedAnswer(label, str(error)) from error
        raise _explain_end(timed, label) from error
    finally:
        timed.close()


def exchange(channel: Channel, label: str, question: bytes = b"", silence_s: float = SILENCE_S) -> bytes:
    """Send a program its whole input, and return its whole output once it has ended. Raises as `transfer` does."""
    deadline = time.monotonic() + MAX_SILENCES * silence_s
    answer = bytearray()
    with transfer(channel, label, silence_s) as timed:
        Whole(timed.stdin).write(question)
        timed.stdin.close()
        while chunk := timed.stdout.read(1 << 16):
            answer += chunk
            if len(answer) > MAX_ANSWER_BYTES or time.monotonic() > deadline:
                raise ConnectionLost(f"{label} answers without end", "check that this node is yours")
    return bytes(answer)


def _wait_for_end(channel: TimedChannel, label: str) -> None:
    """Raises NodeRefused with the program's own words, or ConnectionLost."""
    try:
        channel.stdin.close()
    except OSError:
        pass  # it ended before we did: its exit code says why
    try:
        code = channel.wait(END_S)
    except TimeoutError as error:
        raise ConnectionLost(f"the transfer with {label} does not end", "check the node, then try again") from error
    if code != 0:
        raise _explain_end(channel, label)


def _explain_end(channel: TimedChannel, label: str) -> NodeRefused | ConnectionLost:
    """Why a program ended, from the last line that it wrote to stderr."""
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


class FileToSend(Protocol):
    """A file: `path` relative to its folder, with `/`; size in bytes."""

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int: ...


class PaddedFile:
    """Reads what is asked for of a file that may change meanwhile; zeros replace missing bytes."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self, count: int) -> bytes:
        data = os.read(self._fd, count)
        while len(data) < count and (more := os.read(self._fd, count - len(data))):
            data += more
        return data if len(data) == count else data + bytes(count - len(data))


class Target(Protocol):
    """What a stream of files is written to."""

    @property
    def stdin(self) -> BinaryIO: ...


class Sending:
    """A stream of files to a program (`agent.wire_format`); small files travel together."""

    def __init__(self, channel: Target, on_bytes: Callable[[int], None] = lambda _count: None) -> None:
        """`on_bytes` is called with how many bytes of files are about to be sent: it may hold the transfer back."""
        self._stream = Whole(channel.stdin)
        self._on_bytes = on_bytes
        self._gathered: list[bytes] = []
        self._size = self._content_size = 0

    def add(self, name: str, size: int, content: Readable) -> None:
        """Send exactly `size` bytes of `content`. Raises OSError where it has fewer."""
        self._put(head(name, size))
        while size:
            block = content.read(min(size, BLOCK_BYTES))
            if not block:
                raise OSError("it became shorter while it was sent")
            size -= len(block)
            self._content_size += len(block)
            self._put(block)

    def _put(self, data: bytes) -> None:
        self._gathered.append(data)
        self._size += len(data)
        if self._size >= BLOCK_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._content_size:
            self._on_bytes(self._content_size)
        self._stream.write(b"".join(self._gathered))
        self._gathered, self._size, self._content_size = [], 0, 0

    def end(self) -> None:
        self._put(END)
        self._flush()


def write_files(
    channel: Target, folder: Path, files: Sequence[tuple[int, FileToSend]], on_bytes: Callable[[int], None]
) -> None:
    """Send each file under its number as name; one that is gone is left out. Raises UsageError for a file that cannot
    be read."""
    sending = Sending(channel, on_bytes)
    for number, entry in files:
        try:
            fd = os.open(f"{folder}/{entry.path}", READ_FLAGS)
            try:
                sending.add(str(number), entry.size, PaddedFile(fd))
            finally:
                os.close(fd)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UsageError(
                f"{entry.path} cannot be read: {error.strerror or error}", "list it in .gpuopsignore"
            ) from error
    sending.end()


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
