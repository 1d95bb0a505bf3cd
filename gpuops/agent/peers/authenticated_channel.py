"""One authenticated connection between two nodes that have proven the run's secret to each other.

A frame is LENGTH (4 bytes), KIND (1), MAC (32), and LENGTH bytes of content: a message in JSON, or bytes of a file. The
MAC is HMAC-SHA256 over the frame's number in its direction, length, kind and content, by a key of this connection and
direction. A frame that was injected, altered, left out, repeated, reflected, or taken from another connection ends the
connection. Nothing is encrypted, and a machine on the path can still cut or delay the connection.
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

from gpuops.agent.network.unauthenticated_connections import close, proof

HEAD = struct.Struct(">IB32s")
COUNTED = struct.Struct(">QIB")
MESSAGE, BYTES = 0, 1
MAX_FRAME_BYTES = 1 << 20
"""Bytes of content in one frame."""
MIN_SILENCE_LIMIT_S = 0.1
READ_BYTES = 4096


class Keys(NamedTuple):
    """Of one connection: the key that node 0 signs with, and the member's."""

    head: bytes
    member: bytes


def session_keys(secret: str, role: str, node: int, challenge: str, nonce: str) -> Keys:
    """Keys that only these two nodes know, and no other connection has: each side chose one of the nonces.

    No proof is computed over words that begin with `key`, so no proof that a peer requests is a key.
    """
    return Keys(*(proof(secret, f"key {side} {role}", node, f"{challenge} {nonce}").encode() for side in Keys._fields))


class Seal:
    """Computes the MACs of one direction, in order."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0

    def next(self, kind: int, content: bytes) -> bytes:
        mac = hmac.new(self._key, COUNTED.pack(self._count, len(content), kind), hashlib.sha256)
        mac.update(content)
        self._count += 1
        return mac.digest()


class Channel:
    """Messages both ways, and bytes of files. A peer that does not read our bytes in time is disconnected."""

    def __init__(self, connection: socket.socket, ours: bytes, theirs: bytes, limit_s: float) -> None:
        self._socket = connection
        self._socket.settimeout(limit_s)
        self._write = threading.Lock()
        self._buffer = bytearray()
        self._ours, self._theirs = Seal(ours), Seal(theirs)
        self.heard = time.monotonic()

    def send(self, message: Mapping[str, Any]) -> bool:
        """Whether the message was sent; if not, the connection is closed."""
        try:
            self._send(MESSAGE, json.dumps(message).encode())
            return True
        except OSError:
            self.close()
            return False

    def write(self, data: bytes) -> None:
        """Send bytes of a file, MAX_FRAME_BYTES at most; no bytes mark its end. Raises OSError."""
        self._send(BYTES, data)

    def _send(self, kind: int, content: bytes) -> None:
        with self._write:
            self._socket.sendall(HEAD.pack(len(content), kind, self._ours.next(kind, content)) + content)

    def receive(self) -> dict[str, Any] | None:
        """The next message; None when the connection has ended, or a frame is no message. Raises OSError."""
        kind, content = self._frame() or (BYTES, b"")
        try:
            message = json.loads(content) if kind == MESSAGE else None
        except (ValueError, RecursionError):
            return None
        return message if isinstance(message, dict) else None

    def read(self) -> bytes:
        """The next bytes of a file; no bytes at its end. Raises OSError, also for a frame of another kind."""
        kind, content = self._frame() or (MESSAGE, b"")
        if kind != BYTES:
            raise ConnectionError("the other node has disconnected")
        return content

    def messages(self) -> Iterator[dict[str, Any]]:
        """Every message until the connection ends. The caller checks `heard` to detect silence."""
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
        """The next frame's kind and content; None at the connection's end. A frame with a wrong MAC ends it."""
        if not self._has(HEAD.size):
            return None
        length, kind, mac = HEAD.unpack_from(self._buffer)
        if length > MAX_FRAME_BYTES or not self._has(HEAD.size + length):
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
        """Wait for `count` bytes; False at the connection's end. Bytes read before a socket.timeout stay buffered."""
        while len(self._buffer) < count:
            chunk = self._socket.recv(max(READ_BYTES, count - len(self._buffer)))
            if not chunk:
                return False
            self._buffer += chunk
        return True

    def limit_silence(self, seconds: float) -> None:
        """How long the other side may be silent from now on."""
        self._socket.settimeout(max(MIN_SILENCE_LIMIT_S, seconds))

    def finish(self) -> None:
        """Send no more; everything sent arrives before the other side sees the end."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the other side has closed it

    def close(self) -> None:
        close(self._socket)
