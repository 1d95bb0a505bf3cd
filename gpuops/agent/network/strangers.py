"""Whoever connects to a port of ours and has not yet proven to be one of us.

Such a one has one deadline for all that it says, says no more than a short line at a time, and of too many the one
that came first makes room: however many sit there idle, who can prove itself at once gets in.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import socket
import threading
import time
from typing import Callable

CROWD = 128
"""So many may be about to prove themselves; few enough for a process that may open 256 files (macOS)."""
LINE_LIMIT = 512
"""Bytes of a line; the longest of ours has about 200."""
WAITING = 1024
"""So many wait to be accepted, where the system lets them."""
PAUSE_S = 0.1
"""After an accept that failed: what the machine is short of, or why the other went again, is over soon."""
SHORTAGE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def proof(secret: str, role: str, node: int, nonce: str) -> str:
    """What a side that knows the secret answers to a nonce; role and number keep it from being played back."""
    words = f"{role} {node} {nonce}"
    return hmac.new(secret.encode(), words.encode(), hashlib.sha256).hexdigest()


def line(connection: socket.socket, deadline: float) -> bytes:
    """What is said up to the end of the line, byte by byte: what follows is not for us.

    `deadline`: by when all of it must be there (monotonic). Raises OSError.
    """
    said = b""
    while not said.endswith(b"\n"):
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise socket.timeout("the other side takes too long")
        connection.settimeout(left_s)
        byte = connection.recv(1)
        if not byte or len(said) >= LINE_LIMIT:
            raise ConnectionError("nothing of ours was said")
        said += byte
    return said


def close(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)  # closing alone does not wake a thread that waits in it
    except OSError:
        pass
    connection.close()


class Crowd:
    """The strangers of one listener. A newcomer pushes out the oldest: refusing newcomers would keep members out."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._present: dict[socket.socket, None] = {}  # in the order in which they came

    def let_in(self, listener: socket.socket, hear: Callable[[socket.socket], None], name: str) -> bool:
        """Accept whoever is next, and `hear` it in a thread. False: that failed, and PAUSE_S is to be waited."""
        try:
            connection, _ = listener.accept()
        except OSError as error:
            if error.errno in SHORTAGE:
                self._push_out(len(self._present) // 2)
            return False
        with self._lock:
            self._present[connection] = None
        self._push_out(CROWD)
        try:
            threading.Thread(target=hear, args=(connection,), name=name, daemon=True).start()
        except RuntimeError:  # no more threads
            self.leave(connection)
            close(connection)
            return False
        return True

    def leave(self, connection: socket.socket) -> None:
        """It has proven itself, or has gone."""
        with self._lock:
            self._present.pop(connection, None)

    def _push_out(self, most: int) -> None:
        """Close the connections of the oldest, until there are only so many."""
        with self._lock:
            oldest = list(self._present)[: max(0, len(self._present) - most)]
            for one in oldest:
                del self._present[one]
        for one in oldest:
            close(one)
