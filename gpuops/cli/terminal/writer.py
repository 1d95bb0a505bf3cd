"""What is to be read goes out in a thread of its own: `| less`, or Ctrl-S, holds up whoever reads, and nothing else.

Without it a run that has ended would wait for its reader before its machines are given back. In order, each byte once;
what nobody reads is kept up to a limit, and at the end of the command it is waited for.
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

MOMENT_S = 0.2
"""So long a sentence is waited for; once one was not taken, none is, until somebody reads on."""
LIMIT = 64 << 20
"""So many bytes wait for a reader."""
CHUNK = 1 << 14
"""Bytes in one write: whether somebody reads is seen after each."""
ENDING_S = 600.0
"""A command that held machines waits so long for a reader that takes nothing at all; then the rest is let go."""


class Writer:
    """One queue for all streams of this process, and a thread that empties it."""

    def __init__(self) -> None:
        self.patient = True
        """Whether who says a lot waits for its reader. False: what is over the limit is let go."""
        self._changed = threading.Condition()
        self._queue: deque[tuple[int, bytes]] = deque()
        self._size = 0
        self._moved = 0
        """Bytes that were taken, in all."""
        self._stuck = False
        self._closed: set[int] = set()
        self._thread: threading.Thread | None = None

    def put(self, number: int, data: bytes, *, much: bool = False) -> bool:
        """Have it written to a file descriptor. False where it was let go: of what is `much` there is a limit."""
        with self._changed:
            while much and self._size + len(data) > LIMIT and self._queue:
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
        """Until everything is written; only for a moment where nobody reads."""
        deadline = time.monotonic() + MOMENT_S
        with self._changed:
            while self._queue and not self._stuck:
                if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    self._stuck = bool(self._queue)

    @property
    def behind(self) -> bool:
        """Whether something waits for its reader."""
        return bool(self._queue)

    def drain(self) -> None:
        """Until everything is written, or its reader is not there any more. Ctrl-C ends it."""
        limit = math.inf if self.patient else ENDING_S
        try:
            with self._changed:
                moved, since = self._moved, time.monotonic()
                while self._queue and time.monotonic() - since < limit:
                    self._changed.wait(1.0)
                    if self._moved != moved:
                        moved, since = self._moved, time.monotonic()
                if self._queue:
                    self._queue.clear()
        except KeyboardInterrupt:
            pass

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._queue:
                    self._changed.wait()
                number, data = self._joined()
            for start in range(0, len(data), CHUNK):
                if number not in self._closed:
                    self._write(number, data[start : start + CHUNK])
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
        """What is next for one descriptor, in one piece; it stays at the head of the queue until it is written."""
        number, parts, size = self._queue[0][0], list[bytes](), 0
        while self._queue and self._queue[0][0] == number and size < 4 * CHUNK:
            parts.append(self._queue.popleft()[1])
            size += len(parts[-1])
        self._queue.appendleft((number, joined := b"".join(parts)))
        return number, joined

    def _write(self, number: int, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(number, data) :]
            except BlockingIOError:  # somebody else has made the descriptor not wait
                select.select([], [number], [], 1.0)
            except OSError:
                self._closed.add(number)  # nobody reads any more; the run and its teardown go on
                return


WRITER = Writer()


def may_block(stream: TextIO) -> int | None:
    """The descriptor of a stream whose reader may not read: a terminal, a pipe, a socket; None of any other."""
    if HERE.kind == "windows":  # a console takes text, not bytes
        return None
    try:
        number = stream.fileno()
        mode = os.fstat(number).st_mode
    except (OSError, ValueError, AttributeError):
        return None
    return number if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode) else None
