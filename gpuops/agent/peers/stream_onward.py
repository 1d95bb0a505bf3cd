"""A stream to the next node, through a queue of limited size; a node that does not take it is left behind."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from typing import Callable

QUEUE_BYTES = 8 << 20
TICK_S = 0.5
MIN_BYTES_PER_S = 500_000.0
"""The next node takes at least so much while it is waited for."""
END_LIMIT_S = 10.0
"""How long the next node may take to close the connection once everything was sent."""


def cut(link: socket.socket) -> None:
    """End a connection that another thread may be using: whoever waits for it wakes.

    It is not closed: TLS would go on writing to the number of its file descriptor, and the next file that this process
    opens has that number.
    """
    try:
        socket.socket.shutdown(link, socket.SHUT_RDWR)
    except OSError:
        pass  # the other side has closed it


class Onward:
    """The link to the next node. A thread sends; whoever gives it more waits while the queue is full."""

    def __init__(self, link: socket.socket, on_lost: Callable[[str], None]) -> None:
        self.stall_s = 30.0
        """How long the next node is waited for before what it has taken is judged. Nodes further behind have less, so
        that the link that is at fault is judged first."""
        self._link = link
        self._on_lost = on_lost
        self._changed = threading.Condition()
        """Guards all that follows."""
        self._queue: deque[bytes] = deque()
        self._queued = 0
        """Bytes in the queue and in the write under way."""
        self._is_ended = False
        self._lost = ""
        self._waited_s = 0.0
        self._moved = 0
        """Bytes taken since the waiting began."""
        self._sender = threading.Thread(target=self._send, name="stream onward", daemon=True)
        self._sender.start()

    def put(self, data: bytes) -> None:
        """Send bytes, or nothing where the node was lost."""
        self._wait(QUEUE_BYTES)
        with self._changed:
            if not self._lost:
                self._queue.append(data)
                self._queued += len(data)
                self._changed.notify_all()

    def finish(self) -> None:
        """Wait until the next node has everything, or is lost."""
        self._wait(1)
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()
        self._sender.join(END_LIMIT_S)

    def close(self) -> None:
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()
        cut(self._link)

    def _wait(self, limit: int) -> None:
        """Wait until fewer than `limit` bytes are queued, or the node is lost."""
        lost = ""
        with self._changed:
            while self._queued >= limit and not self._lost and not self._is_ended:
                began = time.monotonic()
                self._changed.wait(TICK_S)
                self._waited_s += time.monotonic() - began
                if self._waited_s < self.stall_s:
                    continue
                if self._moved < self._waited_s * MIN_BYTES_PER_S:
                    lost = self._lost = f"it took {self._moved / 1e6:.1f} MB in {self._waited_s:.0f} s"
                self._waited_s, self._moved = 0.0, 0
        if lost:
            cut(self._link)
            self._on_lost(lost)

    def _send(self) -> None:
        """The only thread that uses the link, and closes it."""
        with self._link:
            while (data := self._next()) is not None:
                try:
                    self._link.sendall(data)
                except (OSError, ValueError) as error:
                    self._fail(str(error))
                    return
                with self._changed:
                    self._queued -= len(data)
                    self._moved += len(data)
                    self._changed.notify_all()
            self._part()

    def _next(self) -> bytes | None:
        """What to send next; None at the end."""
        with self._changed:
            if not self._queue:
                self._waited_s, self._moved = 0.0, 0
            self._changed.wait_for(lambda: self._queue or self._is_ended or self._lost)
            return self._queue.popleft() if self._queue and not self._lost else None

    def _part(self) -> None:
        """Everything was sent: a connection that is closed too soon takes with it what is under way."""
        try:
            self._link.settimeout(END_LIMIT_S)
            self._link.shutdown(socket.SHUT_WR)
            while self._link.recv(1):
                pass
        except (OSError, ValueError):
            pass  # the next node has closed it

    def _fail(self, why: str) -> None:
        with self._changed:
            is_news = not self._lost and not self._is_ended
            self._lost = self._lost or why
            self._queue.clear()
            self._changed.notify_all()
        if is_news:
            self._on_lost(why)
