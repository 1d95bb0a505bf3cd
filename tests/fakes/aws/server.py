"""The HTTP side: one request is read, judged, hooked, answered; or not answered."""

from __future__ import annotations

import errno
import socket
import sys
import threading
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from tests.fakes.aws import (  # noqa: F401  (some answer requests)
    catalog,
    groups,
    identity,
    instances,
    launching,
    pricelist,
    quotas,
    spot,
    wire,
)
from tests.fakes.aws.faults import Fault
from tests.fakes.aws.requests import Answer, Request, Unreachable

if TYPE_CHECKING:
    from tests.fakes.aws.fake import FakeAWS

CHECKIP = "/checkip"
GONE_AWAY = (errno.EPIPE, errno.ECONNRESET, errno.ECONNABORTED, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)


class Server(ThreadingHTTPServer):
    """On a socket that listens already: it may have been made in another network."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, listening: socket.socket, fake: FakeAWS) -> None:
        super().__init__(listening.getsockname(), Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.fake = fake
        self.closing = threading.Event()
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """A client that went away is no error; anything else is the fake's own, and told at its end."""
        error = sys.exception()
        if not (isinstance(error, OSError) and error.errno in GONE_AWAY):
            self.fake.problems.append(traceback.format_exc())

    def end(self) -> None:
        self.closing.set()
        self.shutdown()
        self._thread.join()
        for one in list(self._open):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def log_message(self, *_: Any) -> None:
        """The fake keeps its requests itself."""

    def do_GET(self) -> None:
        if self.path == CHECKIP:
            address = self.server.fake.caller_address or self.client_address[0]
            self._send(Answer(200, f"{address}\n".encode(), {"Content-Type": "text/plain"}))
        else:
            self._serve()

    def do_POST(self) -> None:
        self._serve()

    do_PUT = do_DELETE = do_HEAD = do_POST

    def _serve(self) -> None:
        fake, request = self.server.fake, self._read()
        fake.requests.append(request)
        self._call_back(request, "before")
        if request.dropped:
            self._cut()
            return
        fault = request.fault = fake.meet(request)
        if fault and fault.hangs and not fault.done:
            self.server.closing.wait(fault.hangs)
        answer = self._answer(request, fault)
        request.status, request.error = (answer.status, answer.error) if answer else (0, "unreachable")
        if fault and fault.hangs and fault.done:
            self.server.closing.wait(fault.hangs)
        self._call_back(request, "after")
        if answer is None or request.lost or (fault and fault.cuts):
            self._cut()
            return
        self._send(answer, half=bool(fault and fault.what == "half"))
        self._call_back(request, "sent")

    def _answer(self, request: Request, fault: Fault | None) -> Answer | None:
        """None: nobody answers."""
        fake = self.server.fake
        answer: Answer | None = None
        if fault is None or fault.done:
            try:
                answer = fake.answer(request)
            except Unreachable:
                return None
        if fault is None:
            return answer
        refusal = fault.refusal(request, fake.world.arn())
        if refusal:
            return wire.refusal(request, refusal)
        return fault.spoil(answer or Answer(200))

    def _read(self) -> Request:
        headers = {name.lower(): value for name, value in self.headers.items()}
        if headers.get("transfer-encoding", "").lower() == "chunked":
            raw = self._read_chunks()
        else:
            raw = self.rfile.read(int(headers.get("content-length") or 0))
        return wire.read(self.command, self.path, headers, raw)

    def _read_chunks(self) -> bytes:
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            continue
        return b"".join(parts)

    def _call_back(self, request: Request, moment: str) -> None:
        fake = self.server.fake
        if fake.callbacks and not request.client_pid:
            request.client_pid = fake.pid_of(self.client_address)
        for callback in list(fake.callbacks):
            callback(request, moment)

    def _cut(self) -> None:
        self.close_connection = True

    def _send(self, answer: Answer, half: bool = False) -> None:
        self.send_response(answer.status)
        body = answer.body
        for name, value in answer.headers.items():
            if name.lower() not in ("content-length", "connection"):
                self.send_header(name, value)
        length = next((v for name, v in answer.headers.items() if name.lower() == "content-length"), str(len(body)))
        self.send_header("Content-Length", length if self.command == "HEAD" else str(len(body)))
        self.end_headers()
        if self.command != "HEAD" and answer.status not in (204, 304):
            self.wfile.write(body[: len(body) // 2] if half else body)
        if half:
            self._cut()
