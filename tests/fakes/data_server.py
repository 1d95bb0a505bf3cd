"""A web server with files that nodes fetch; it can cut, forget ranges, change a file and refuse, as the next request is
met by the next of `plays`."""

from __future__ import annotations

import hashlib
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self


@dataclass
class Play:
    """What a request meets."""

    status: int = 0
    """Answered instead of the file; 0: the file."""
    cut: int | None = None
    """After so many bytes the connection ends."""
    code: str = ""
    """S3's, of that refusal."""
    location: str = ""
    """Where a redirect leads."""
    first: Callable[[], None] | None = None
    """Called before the answer."""
    holds: threading.Event | None = None
    """After the cut's bytes, nothing comes until this is set."""
    excess: bytes = b""
    """Sent behind the data, and counted in the answer's length."""


@dataclass
class Heard:
    method: str
    path: str
    headers: dict[str, str]
    status: int = 0


@dataclass
class DataServer:
    """`with DataServer() as server:`; `server.url` is its address."""

    files: dict[str, bytes] = field(default_factory=dict)
    plays: list[Play] = field(default_factory=list)
    heard: list[Heard] = field(default_factory=list)
    has_ranges: bool = True
    heeds_if_range: bool = True
    """Whether a rest is sent only of the version that was begun."""
    has_tags: bool = True
    modified: str = ""
    """Of all files; told where there are no tags."""
    has_length: bool = True
    is_chunked: bool = False
    """Whether data come in chunks, of which nobody says how many bytes they are together."""
    more: dict[str, str] = field(default_factory=dict)
    """Further headers of each answer with data."""
    certificate: Path | None = None

    def __enter__(self) -> Self:
        owner = self

        class Handler(_Handler):
            server_owner = owner

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if self.certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        self.url = f"http{'s' if self.certificate else ''}://127.0.0.1:{self._server.server_port}"
        return self

    def __exit__(self, *_: object) -> None:
        for play in self.plays:
            if play.holds:
                play.holds.set()
        self._server.shutdown()
        self._server.server_close()

    def sends_rest(self, tag: str | None, data: bytes) -> bool:
        version = tag_of(data) if self.has_tags else self.modified
        return self.has_ranges and (not self.heeds_if_range or tag == version)

    def ranges(self) -> list[str]:
        """Of each request that was answered with data, from which byte it asked."""
        return [one.headers.get("range", "") for one in self.heard if one.status in (200, 206)]


def tag_of(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


class _Handler(BaseHTTPRequestHandler):
    server_owner: DataServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server = self.server_owner
        heard = Heard(self.command, self.path, {name.lower(): value for name, value in self.headers.items()})
        server.heard.append(heard)
        play = server.plays.pop(0) if server.plays else Play()
        if play.first:
            play.first()
        data = server.files.get(self.path.partition("?")[0])
        status = play.status or (404 if data is None else 200)
        data = data or b""
        version = {"ETag": tag_of(data)} if server.has_tags else {"Last-Modified": server.modified}
        headers, start = {name: value for name, value in version.items() if value}, 0
        if status == 200:
            if server.has_tags and heard.headers.get("if-none-match") == tag_of(data):
                status, data = 304, b""
            elif "range" in heard.headers and server.sends_rest(heard.headers.get("if-range"), data):
                start = int(heard.headers["range"].removeprefix("bytes=").removesuffix("-"))
                status = 206 if start < len(data) else 416
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            headers |= server.more
        else:
            data, headers = f"<Code>{play.code}</Code>".encode(), {"Location": play.location} if play.location else {}
        heard.status = status
        with suppress(OSError):  # who asked is gone
            self._send(status, headers, data[start:] + play.excess, play)

    do_HEAD = do_GET

    def do_CONNECT(self) -> None:
        """It is no proxy for this one."""
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server_owner.heard.append(Heard(self.command, self.path, headers, 407))
        self.send_error(407)

    def _send(self, status: int, headers: dict[str, str], body: bytes, play: Play) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.server_owner.is_chunked and self.command == "GET" and status in (200, 206):
            self.send_header("Transfer-Encoding", "chunked")
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        elif self.server_owner.has_length:
            self.send_header("Content-Length", str(len(body)))
        else:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "HEAD" or status == 304:
            return
        self.wfile.write(body if play.cut is None else body[: play.cut])
        if play.holds:
            play.holds.wait()
        if play.cut is not None:
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Requests are kept in `heard`."""
