"""The HTTP side: one request is read, judged, hooked, answered; or not answered."""

from __future__ import annotations

import errno
import json
import socket
import sys
import threading
import traceback
import uuid
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.fakes.runpod import catalogroutes, graphql, logstream, routes, routing  # noqa: F401  (some are routes)
from tests.fakes.runpod.faults import Fault
from tests.fakes.runpod.problems import TITLES, Refusal
from tests.fakes.runpod.records import Pod
from tests.fakes.runpod.requests import Answer, Request

if TYPE_CHECKING:
    from tests.fakes.runpod.fake import FakeRunPod

VERSION = "/v2"
HEARTBEAT_S = 0.2
GONE_AWAY = (errno.EPIPE, errno.ECONNRESET, errno.ECONNABORTED, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)


class Server(ThreadingHTTPServer):
    """On a socket that listens already: it may have been made in another network."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, listening: socket.socket, fake: FakeRunPod) -> None:
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
            self.fake.mismatches.append(traceback.format_exc())

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
        self._serve()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def _serve(self) -> None:
        fake, request = self.server.fake, self._read()
        fake.requests.append(request)
        self._call_back(request, "before")
        if request.dropped:
            self._cut()
            return
        fault = request.fault = fake.script.meet(request.method, request.path, request.body)
        if fault and fault.hang_s and not fault.takes_effect:
            self.server.closing.wait(fault.hang_s)
        answer = self._answer(request, fault)
        request.status, request.answer = answer.status, answer.body
        if fault and fault.hang_s and fault.takes_effect:
            self.server.closing.wait(fault.hang_s)
        self._call_back(request, "after")
        if request.lost or (fault and fault.cut):
            self._cut()
            return
        self._send(answer)
        self._call_back(request, "sent")

    def _read(self) -> Request:
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length)
        parts = urlsplit(self.path)
        path = parts.path.removeprefix(VERSION) if parts.path.startswith(f"{VERSION}/") else parts.path
        try:
            body = json.loads(raw) if raw else None
        except ValueError:
            body = None
        headers = {name.lower(): value for name, value in self.headers.items()}
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        return Request(self.command, "/".join(unquote(one) for one in path.split("/")), query, headers, body, raw)

    def _call_back(self, request: Request, moment: str) -> None:
        fake = self.server.fake
        if fake.callbacks and not request.client_pid:
            request.client_pid = fake.pid_of(self.client_address)
        for callback in list(fake.callbacks):
            callback(request, moment)

    def _cut(self) -> None:
        self.close_connection = True

    # ---- what is answered

    def _answer(self, request: Request, fault: Fault | None) -> Answer:
        if fault and (fault.status or fault.cut) and not fault.takes_effect:
            return _faulty(fault)
        if fault and fault.lie:
            return Answer(204)
        if "python-urllib" in request.headers.get("user-agent", "").lower():
            return Answer(403, raw=b"error code: 1010", content_type="text/html; charset=UTF-8")
        if request.path == "/graphql":
            answer = self._graphql(request)
        else:
            answer = self._rest(request)
            self.server.fake.judge(request, answer)
        return _faulty(fault) if fault and fault.status else answer

    def _rest(self, request: Request) -> Answer:
        fake = self.server.fake
        with fake.service.lock:
            fake.service.course.settle()
            try:
                if not self.path.startswith(f"{VERSION}/"):
                    raise Refusal(404, "resource not found")
                caller = fake.desk.caller(request.headers.get("authorization", ""))
                fake.desk.count_against_quota(caller)
                return routing.answer(fake.service, caller, request)
            except Refusal as refusal:
                return Answer.refuse(refusal)

    def _graphql(self, request: Request) -> Answer:
        fake = self.server.fake
        with fake.service.lock:
            fake.service.course.settle()
            try:
                caller = fake.desk.caller(
                    request.headers.get("authorization") or f"Bearer {request.query.get('api_key')}"
                )
            except Refusal:
                return Answer(401, {"errors": [{"message": "Unauthorized"}]})
            if caller.pod:
                return Answer(401, {"errors": [{"message": "Unauthorized"}]})
            try:
                wanted = graphql.parse(str((request.body or {}).get("query", "")))
                return Answer(200, {"data": graphql.select({"myself": fake.desk.myself(caller.account)}, wanted)})
            except graphql.Malformed as error:
                return Answer(400, {"errors": [{"message": str(error), "extensions": {"code": "BAD_USER_INPUT"}}]})

    # ---- how it is sent

    def _send(self, answer: Answer) -> None:
        body = answer.raw
        if body is None:
            body = b"" if answer.body is None else json.dumps(answer.body).encode()
        self.send_response(answer.status)
        for name, value in {**self._common(), **answer.headers}.items():
            self.send_header(name, value)
        if answer.follow:
            self._send_log(answer.follow)
            return
        if answer.status != 204:
            self.send_header("Content-Type", answer.content_type)
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if answer.status != 204:
            self.wfile.write(body)

    def _common(self) -> dict[str, str]:
        quota, left = self.server.fake.desk.quota, max(0, self.server.fake.desk.quota_left)
        return {
            "x-request-id": str(uuid.uuid4()),
            "RateLimit": f'"minute";r={left};t=12, "hour";r=2800;t=1812, "day";r=49500;t=45012',
            "RateLimit-Policy": f'"minute";q={quota};w=60, "hour";q=3000;w=3600, "day";q=50000;w=86400',
        }

    def _send_log(self, pod: Pod) -> None:
        """Until the client has enough, the pod is gone, or the fake closes."""
        for name, value in logstream.HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        query = dict(parse_qsl(urlsplit(self.path).query))
        for text in logstream.events(pod, query, self.headers.get("Last-Event-ID", ""), self._wait):
            self._chunk(text)
        self._chunk("")

    def _wait(self) -> bool:
        if self.server.closing.wait(HEARTBEAT_S):
            return True
        self.server.fake.settle()
        return False

    def _chunk(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


def _faulty(fault: Fault) -> Answer:
    headers: Mapping[str, str] = {"Retry-After": str(fault.retry_after)} if fault.retry_after is not None else {}
    if fault.raw is not None:
        return Answer(fault.status, raw=fault.raw.encode(), headers=dict(headers), content_type=fault.content_type)
    return Answer.refuse(Refusal(fault.status, fault.detail or TITLES.get(fault.status, "error"), headers=headers))
