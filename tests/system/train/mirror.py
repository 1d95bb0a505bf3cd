"""A real HTTP server on loopback that has files, and the faults that servers have."""

from __future__ import annotations

import re
import socket
import ssl
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

PIECE = 1 << 13


class Request(NamedTuple):
    """What was asked for, and what went out."""

    name: str
    begin: int
    sent: int


class Mirror:
    """`with Mirror(contents) as mirror`: at `mirror.address`, until the end of the block.

    `answers` and `cuts` are for the next requests, one each; then all goes well.
    """

    def __init__(self, contents: dict[str, bytes], certificate: Path | None = None) -> None:
        self.contents = contents
        self.requests: list[Request] = []
        self._noting = threading.Lock()
        self.ranges = True
        """Whether it knows parts."""
        self.lengths = True
        """Whether it says how much comes; else it comes in chunks."""
        self.answers: list[int] = []
        """Status codes instead of a file."""
        self.cuts: list[int] = []
        """Bytes after which a connection ends."""
        self.resets = False
        """Whether it ends as after a crash, and not as if all were said."""
        self.hold_at: int | None = None
        """The byte of a file at which every answer waits for `go_on`."""
        self.go_on = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.mirror = self  # type: ignore[attr-defined]
        self.address = f"http://127.0.0.1:{self.server.server_port}/data"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            self.address = self.address.replace("http", "https", 1)

    def note(self, request: Request) -> int:
        """Keep a request; its place in `requests`."""
        with self._noting:
            self.requests.append(request)
            return len(self.requests) - 1

    def asked(self) -> list[tuple[str, int]]:
        return [(request.name, request.begin) for request in self.requests]

    def __enter__(self) -> Mirror:
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.go_on.set()
        self.server.shutdown()
        self.server.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.close_connection = True
        mirror: Mirror = self.server.mirror  # type: ignore[attr-defined]
        name = self.path.rpartition("/")[2]
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
        begin = int(asked[1]) if asked else 0
        content = mirror.contents.get(name)
        status = mirror.answers.pop(0) if mirror.answers else 200
        if content is None:
            status = 404
        elif status == 200 and mirror.ranges and begin:
            status = 206 if begin < len(content) else 416
        if status not in (200, 206):
            mirror.note(Request(name, begin, 0))
            self.send_error(status)
            return
        assert content is not None
        first = begin if status == 206 else 0
        number = mirror.note(Request(name, begin, 0))  # before the answer: its head lets the next request come
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        if mirror.lengths:
            self.send_header("Content-Length", str(len(content) - first))
        else:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._send(mirror, number, content, first)

    def _send(self, mirror: Mirror, number: int, content: bytes, first: int) -> None:
        cut = mirror.cuts.pop(0) if mirror.cuts else len(content)
        at = first
        while at < len(content):
            if at - first >= cut:
                self._end(mirror.resets)
                return
            if mirror.hold_at is not None and at >= mirror.hold_at:
                mirror.go_on.wait(600)
            piece = content[at : at + PIECE]
            try:
                self.wfile.write(piece if mirror.lengths else b"%x\r\n%s\r\n" % (len(piece), piece))
            except OSError:  # the other side has gone
                return
            at += len(piece)
            mirror.requests[number] = mirror.requests[number]._replace(sent=at - first)
        if not mirror.lengths:
            self.wfile.write(b"0\r\n\r\n")

    def _end(self, reset: bool) -> None:
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def log_message(self, *_: Any) -> None:
        pass
