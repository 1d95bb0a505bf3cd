"""A server that says what it was told to say, and remembers what it was asked."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

CUT = -1
"""No answer: the connection is closed."""


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


@dataclass(frozen=True)
class Says:
    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    drip_s: float = 0.0
    """The pause after each byte of the body."""


Teller = Callable[[Asked], Says]


class Canned:
    """`tell` is asked for every request; without it all is 204."""

    def __init__(self, tell: Teller | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.asked: list[Asked] = []
        self.tell: Teller = tell or (lambda _: Says(204))
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                raw = self.rfile.read(length)
                asked = Asked(self.command, self.path, dict(self.headers.items()), json.loads(raw) if raw else None)
                outer.asked.append(asked)
                says = outer.tell(asked)
                if says.status == CUT:
                    self.close_connection = True
                    return
                text = says.body if isinstance(says.body, bytes) else json.dumps(says.body).encode()
                text = b"" if says.body is None else text
                self.send_response(says.status)
                if says.status != 204:
                    self.send_header("Content-Length", str(len(text)))
                for name, value in says.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                try:
                    for at in range(len(text)) if says.drip_s else ():
                        self.wfile.write(text[at : at + 1])
                        time.sleep(says.drip_s)
                    if not says.drip_s:
                        self.wfile.write(text)
                except OSError:
                    self.close_connection = True

            do_GET = do_POST = do_DELETE = _answer

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._server.server_address[1]}/v2"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> Canned:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def said(self) -> list[str]:
        return [f"{one.method} {one.path}" for one in self.asked]


def problem(status: int, detail: str, **more: Any) -> Says:
    """RunPod's own form of a refusal."""
    body = {"title": "Problem", "status": status, "detail": detail, **more}
    return Says(status, body, {"Content-Type": "application/problem+json"})
