"""Strangers: connections to a port of ours that have not yet proven the secret of its nodes.

A stranger has one deadline for everything it sends, and may send only short lines. If there are too many strangers, the
oldest is disconnected: idle strangers, however many, never keep out a node that proves itself at once.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import socket
import threading
import time
from functools import partial
from typing import Callable

from gpuops.agent.workers import WORKERS

MAX_STRANGERS = 128
"""Few enough for a process that may open 256 files (macOS)."""
MAX_LINE_BYTES = 512
"""The longest of our lines has about 200."""
MAX_WAITING_CONNECTIONS = 1024
"""Connections that may wait to be accepted, where the system allows so many."""
ACCEPT_PAUSE_S = 0.1
"""After an accept that failed: a shortage of the machine is over soon."""
SHORTAGE_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def proof(secret: str, role: str, node: int, nonce: str) -> str:
    """The answer to a nonce of a side that knows the secret; role and number prevent that it is replayed."""
    words = f"{role} {node} {nonce}"
    return hmac.new(secret.encode(), words.encode(), hashlib.sha256).hexdigest()


def read_line(connection: socket.socket, deadline: float) -> bytes:
    """The next line, read byte by byte, since bytes after it belong to another reader.

    `deadline`: when all of it must have arrived (monotonic). Raises OSError.
    """
    line = b""
    while not line.endswith(b"\n"):
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise socket.timeout("the other side takes too long")
        connection.settimeout(left_s)
        byte = connection.recv(1)
        if not byte or len(line) >= MAX_LINE_BYTES:
            raise ConnectionError("no line of ours was sent")
        line += byte
    return line


def close(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)  # wakes threads that wait for it; closing alone does not
    except OSError:
        pass
    connection.close()


class Strangers:
    """The strangers of one listener. A new one displaces the oldest: refusing new ones would keep nodes out."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._present: dict[socket.socket, None] = {}  # oldest first

    def accept(self, listener: socket.socket, serve: Callable[[socket.socket], None], name: str) -> bool:
        """Accept the next connection, and `serve` it in a thread. False: that failed, wait for ACCEPT_PAUSE_S."""
        try:
            connection, _ = listener.accept()
        except OSError as error:
            if error.errno in SHORTAGE_ERRORS:
                self._disconnect_oldest(len(self._present) // 2)
            return False
        with self._lock:
            self._present[connection] = None
        self._disconnect_oldest(MAX_STRANGERS)
        try:
            WORKERS.start(partial(serve, connection), name)
        except RuntimeError:  # no more threads
            self.remove(connection)
            close(connection)
            return False
        return True

    def remove(self, connection: socket.socket) -> None:
        """The connection has proven itself, or has ended."""
        with self._lock:
            self._present.pop(connection, None)

    def _disconnect_oldest(self, most: int) -> None:
        """Close the oldest connections until there are `most` at most."""
        with self._lock:
            oldest = list(self._present)[: max(0, len(self._present) - most)]
            for connection in oldest:
                del self._present[connection]
        for connection in oldest:
            close(connection)
