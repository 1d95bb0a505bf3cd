"""Writes output in a thread of its own, so that a reader that stops (`| less`, Ctrl-S) holds up nothing else.

Without it a finished run would wait for its reader before its machines are ended. Bytes keep their order and are
written once; unread bytes are queued up to a limit, and the end of the command waits for them.
"""

from __future__ import annotations

import atexit
import math
import os
import select
import stat
import threading
import time
from collections import deque
from typing import TextIO

from gpuops.core.platform import HERE

SENTENCE_TIMEOUT_S = 0.2
"""Seconds that a sentence is waited for. After one was not taken, none is waited for until the reader goes on."""
QUEUE_MAX_BYTES = 64 << 20
"""Unread bytes that are kept."""
CHUNK_BYTES = 1 << 14
"""Bytes of one write; after each it is known whether the reader goes on."""
DRAIN_TIMEOUT_S = 600.0
"""Seconds that a command which held machines waits at its end for a reader that takes nothing; then the rest is
dropped."""


class Writer:
    """One queue for all streams of this process, and a thread that writes it."""

    def __init__(self) -> None:
        self.patient = True
        """Whether output beyond the limit waits for the reader. False: it is dropped."""
        self._changed = threading.Condition()
        self._queue: deque[tuple[int, bytes]] = deque()
        self._size = 0
        self._moved = 0
        """Chunks that were written, in all."""
        self._stuck = False
        self._closed: set[int] = set()
        self._thread: threading.Thread | None = None

    def put(self, number: int, data: bytes, *, much: bool = False) -> bool:
        """Queue bytes for a file descriptor. Returns False where they were dropped: `much` output has a limit."""
        with self._changed:
            while much and self._size + len(data) > QUEUE_MAX_BYTES and self._queue:
                if not self.patient:
                    return False
                self._changed.wait()
            self._queue.append((number, data))
            self._size += len(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, daemon=True, name="writer")
                self._thread.start()
                atexit.register(self.drain)
            self._changed.notify_all()
        return True

    def moment(self) -> None:
        """Wait until everything is written, at most SENTENCE_TIMEOUT_S."""
        deadline = time.monotonic() + SENTENCE_TIMEOUT_S
        with self._changed:
            while self._queue and not self._stuck:
                if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    self._stuck = bool(self._queue)

    @property
    def behind(self) -> bool:
        """Whether bytes wait for their reader."""
        return bool(self._queue)

    def is_closed(self, number: int) -> bool:
        """Whether nobody reads a file descriptor any more: a write failed, or its reader has left in silence."""
        return number in self._closed or _has_hung_up(number)

    def drain(self) -> None:
        """Wait until everything is written or its reader is gone. Ctrl-C ends the wait."""
        limit = math.inf if self.patient else DRAIN_TIMEOUT_S
        try:
            with self._changed:
                moved, since = self._moved, time.monotonic()
                while self._queue and time.monotonic() - since < limit:
                    self._changed.wait(1.0)
                    if self._moved != moved:
                        moved, since = self._moved, time.monotonic()
                self._queue.clear()
        except KeyboardInterrupt:
            pass

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._queue:
                    self._changed.wait()
                number, data = self._joined()
            for start in range(0, len(data), CHUNK_BYTES):
                if number not in self._closed:
                    self._write(number, data[start : start + CHUNK_BYTES])
                with self._changed:
                    self._moved += 1
                    self._stuck = False
                    self._changed.notify_all()
            with self._changed:
                self._size -= len(data)
                if self._queue:
                    self._queue.popleft()
                self._changed.notify_all()

    def _joined(self) -> tuple[int, bytes]:
        """The next bytes for one descriptor in one piece, which stays at the head of the queue until it is written."""
        number, parts, size = self._queue[0][0], list[bytes](), 0
        while self._queue and self._queue[0][0] == number and size < 4 * CHUNK_BYTES:
            parts.append(self._queue.popleft()[1])
            size += len(parts[-1])
        self._queue.appendleft((number, joined := b"".join(parts)))
        return number, joined

    def _write(self, number: int, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(number, data) :]
            except BlockingIOError:  # another process made the descriptor non-blocking
                select.select([], [number], [], 1.0)
            except OSError:
                self._closed.add(number)  # the reader is gone; the run and its teardown go on
                return


def _has_hung_up(number: int) -> bool:
    """Whether the other end of a pipe, a socket or a terminal is closed."""
    if not hasattr(select, "poll"):
        return False
    poller = select.poll()
    poller.register(number, 0)
    return any(event & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, event in poller.poll(0))


WRITER = Writer()


def may_block(stream: TextIO) -> int | None:
    """The descriptor of a stream whose reader may stop: a terminal, a pipe, a socket; None for any other."""
    if HERE.kind == "windows":  # a console takes text, not bytes
        return None
    try:
        number = stream.fileno()
        mode = os.fstat(number).st_mode
    except (OSError, ValueError, AttributeError):
        return None
    return number if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode) else None
