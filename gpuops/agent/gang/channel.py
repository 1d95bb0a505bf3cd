"""One connection between two nodes that have proven themselves to each other: each byte is known to be the other's.

A frame is LENGTH (4 bytes), KIND (1), MAC (32), and LENGTH bytes of content: a message in JSON, or bytes of a file. The
MAC is HMAC-SHA256 over the frame's number in its direction, length, kind and content, by a key of this connection and
direction. So what was injected, altered, left out, repeated, sent back or taken from another connection ends this one.
Nothing is hidden from who listens, and who is on the way can still cut the connection, or hold it up.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import struct
import threading
import time
from typing import Any, Iterator, Mapping, NamedTuple

from gpuops.agent.network.strangers import close, proof

HEAD = struct.Struct(">IB32s")
COUNTED = struct.Struct(">QIB")
MESSAGE, BYTES = 0, 1
LIMIT = 1 << 20
"""Bytes of content in one frame."""


class Keys(NamedTuple):
    """Of one connection: what the head signs with, and what the member does."""

    head: bytes
    member: bytes


def session(secret: str, role: str, node: int, challenge: str, nonce: str) -> Keys:
    """Keys that only these two can know, and that no other connection has: each side chose one of the nonces.

    No proof has words that begin as these do, so none that is asked for is a key.
    """
    return Keys(*(proof(secret, f"key {side} {role}", node, f"{challenge} {nonce}").encode() for side in Keys._fields))


class Seal:
    """The MACs of one direction, in order."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0

    def next(self, kind: int, content: bytes) -> bytes:
        mac = hmac.new(self._key, COUNTED.pack(self._count, len(content), kind), hashlib.sha256)
        mac.update(content)
        self._count += 1
        return mac.digest()


class Wire:
    """Messages both ways, and bytes of files. A peer that does not take our bytes in time is cut off."""

    def __init__(self, connection: socket.socket, ours: bytes, theirs: bytes, limit_s: float) -> None:
        self._socket = connection
        self._socket.settimeout(limit_s)
        self._write = threading.Lock()
        self._buffer = bytearray()
        self._ours, self._theirs = Seal(ours), Seal(theirs)
        self.heard = time.monotonic()

    def send(self, message: Mapping[str, Any]) -> bool:
        """Whether it went out; the connection is closed otherwise."""
        try:
            self._send(MESSAGE, json.dumps(message).encode())
            return True
        except OSError:
            self.close()
            return False

    def write(self, data: bytes) -> None:
        """Bytes of a file, LIMIT at most; none at all: the file is whole. Raises OSError."""
        self._send(BYTES, data)

    def _send(self, kind: int, content: bytes) -> None:
        with self._write:
            self._socket.sendall(HEAD.pack(len(content), kind, self._ours.next(kind, content)) + content)

    def receive(self) -> dict[str, Any] | None:
        """The next message; None when the connection has ended, or says what is not ours. Raises OSError."""
        kind, content = self._frame() or (BYTES, b"")
        try:
            message = json.loads(content) if kind == MESSAGE else None
        except (ValueError, RecursionError):
            return None
        return message if isinstance(message, dict) else None

    def read(self) -> bytes:
        """The next bytes of a file; none: it is whole. Raises OSError, also where something else was said."""
        kind, content = self._frame() or (MESSAGE, b"")
        if kind != BYTES:
            raise ConnectionError("the other node has gone")
        return content

    def messages(self) -> Iterator[dict[str, Any]]:
        """Every message until the connection ends. Silence is judged by `heard`, elsewhere."""
        while True:
            try:
                message = self.receive()
            except socket.timeout:
                continue
            except OSError:
                return
            if message is None:
                return
            yield message

    def _frame(self) -> tuple[int, bytes] | None:
        """The next frame's kind and content; None at the connection's end. One that is not theirs is that end."""
        if not self._has(HEAD.size):
            return None
        length, kind, mac = HEAD.unpack_from(self._buffer)
        if length > LIMIT or not self._has(HEAD.size + length):
            return None
        content = bytes(self._buffer[HEAD.size : HEAD.size + length])
        del self._buffer[: HEAD.size + length]
        if not hmac.compare_digest(mac, self._theirs.next(kind, content)):
            self._buffer.clear()
            self.close()
            return None
        self.heard = time.monotonic()
        return kind, content

    def _has(self, count: int) -> bool:
        """Whether so many bytes come. Where it takes too long (socket.timeout), what came stays for the next call."""
        while len(self._buffer) < count:
            chunk = self._socket.recv(max(4096, count - len(self._buffer)))
            if not chunk:
                return False
            self._buffer += chunk
        return True

    def limit(self, seconds: float) -> None:
        """For how long the other side may be silent from now on."""
        self._socket.settimeout(max(0.1, seconds))

    def finish(self) -> None:
        """No more from us; what was sent arrives before the other side notices."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the other side was faster

    def close(self) -> None:
        close(self._socket)
