"""One bulk transfer's channel, watched: whichever side stops moving bytes, it ends within a limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, TypeVar, cast

from gpuops.agent.whole import Whole
from gpuops.core.errors import ConnectionLost, NodeError, Nonsense
from gpuops.core.output import span
from gpuops.transport.connection import Channel
from gpuops.transport.tarmembers import TarError, Torn
from gpuops.transport.tarstream import complaint, finish

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

    Whatever the other side does wrong is raised as NodeRefused (its own words), ConnectionLost, or Nonsense (a stream
    that is none of ours). Errors of our own files are left to the caller, as OSError.
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
            raise Nonsense(label, str(error)) from error
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
