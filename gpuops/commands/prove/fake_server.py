"""HTTP as a fake serves it: a request is read, kept, hooked, met by a fault, answered; or not answered."""

from __future__ import annotations

import errno
import json
import socket
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

GONE_AWAY = (errno.EPIPE, errno.ECONNRESET, errno.ECONNABORTED, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)


@dataclass(eq=False, kw_only=True)
class Heard:
    """What every fake keeps of a request. Of one that is still being served, `status` is 0."""

    status: int = 0
    at: float = field(default_factory=time.time)
    """When it was heard, UTC seconds."""
    client_pid: int = 0
    """Of the process that asked, as this machine counts; looked up only for callbacks."""
    fault: Any = None
    """What it meets; a callback may set it, "before"."""
    dropped: bool = False
    lost: bool = False

    def drop(self) -> None:
        """In a callback, "before": nothing of it is done, and no answer comes."""
        self.dropped = self.lost = True

    def lose(self) -> None:
        """In a callback: what is asked for is done, and no answer comes."""
        self.lost = True


class Fault(Protocol):
    """What a server asks of one."""

    @property
    def hangs(self) -> float:
        """Seconds of silence,"""

    @property
    def done(self) -> bool:
        """after what is asked for was done, or before anything is."""

    @property
    def cuts(self) -> bool:
        """Whether the connection ends without an answer."""


class Fake(Protocol):
    """Whose requests are served."""

    requests: list[Any]
    callbacks: list[Callable[[Any, str], None]]
    """Called with a request and "before" (nothing is done yet), "after" (done, and not answered), "sent"."""
    problems: list[str]

    def meet(self, request: Any) -> Fault | None:
        """What was played for this request."""

    def pid_of(self, peer: tuple[str, int]) -> int:
        """The process at the other end."""


def loopback() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0), backlog=64)


class Server(ThreadingHTTPServer):
    """On a socket that listens already: it may have been made in another network."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, listening: socket.socket, handler: type[Handler], fake: Fake) -> None:
        super().__init__(listening.getsockname(), handler, bind_and_activate=False)
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
    """One connection. A fake has its own `hear`, `answer` and `send`."""

    protocol_version = "HTTP/1.1"
    server: Server
    hear: Callable[[bytes], Any]
    """A body -> the fake's own request."""
    answer: Callable[[Any, Any], Any]
    """A request and its fault -> what is answered, kept in the request as well; None: nobody answers."""
    send: Callable[[Any], None]
    client_pid = 0
    """Looked up once: all files of all processes may have to be gone through."""

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def log_message(self, *_: Any) -> None:
        """The fake keeps its requests itself."""

    def serve(self) -> None:
        fake, request = self.server.fake, self.hear(self._body())
        fake.requests.append(request)
        self._call_back(request, "before")
        if request.dropped:
            self.cut()
            return
        fault = request.fault = request.fault or fake.meet(request)
        if fault and not fault.done:
            self.server.closing.wait(fault.hangs)
        answer = self.answer(request, fault)
        if fault and fault.done:
            self.server.closing.wait(fault.hangs)
        self._call_back(request, "after")
        if answer is None or request.lost or (fault and fault.cuts):
            self.cut()
            return
        self.send(answer)
        self._call_back(request, "sent")

    def do_GET(self) -> None:
        self.serve()

    do_POST = do_PUT = do_DELETE = do_GET

    def cut(self) -> None:
        """The connection ends here."""
        self.close_connection = True

    def _call_back(self, request: Any, moment: str) -> None:
        fake = self.server.fake
        if fake.callbacks and not request.client_pid:
            self.client_pid = self.client_pid or fake.pid_of(self.client_address)
            request.client_pid = self.client_pid
        for callback in list(fake.callbacks):
            callback(request, moment)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self._exactly(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0] or self._exactly(1), 16):
            parts.append(self._exactly(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            continue
        return b"".join(parts)

    def _exactly(self, size: int) -> bytes:
        """So many bytes. Of a client that was killed in the middle of its request nothing is heard."""
        data = self.rfile.read(size)
        if len(data) < size:
            raise ConnectionResetError(errno.ECONNRESET, "the client went away in the middle of a request")
        return data


@dataclass(eq=False)
class Request(Heard):
    """What a JSON API is asked for."""

    method: str
    path: str
    """Without `JsonFake.prefix`."""
    query: dict[str, str]
    headers: dict[str, str]
    """By their names in lower case."""
    body: Any
    """From JSON; None where there is none, or none that can be read."""

    def __str__(self) -> str:
        return f"{self.method} {self.path} {self.status or '-'}"


@dataclass
class Answer:
    status: int
    body: Any = None
    """For JSON."""
    raw: bytes | None = None
    """In place of JSON: text."""
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def content_type(self) -> str:
        return "application/json" if self.raw is None else "text/plain"


class JsonHandler(Handler):
    """One connection to a `JsonFake`."""

    server: Server

    def hear(self, raw: bytes) -> Request:
        parts = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            body = json.loads(raw) if raw else None
        except ValueError:
            body = None
        path = parts.path.removeprefix(self._fake.prefix)
        return Request(self.command, path, dict(parse_qsl(parts.query)), headers, body)

    def answer(self, request: Request, fault: Any) -> Answer:
        answer = self._fake.serve(request, fault)
        request.status = answer.status
        return answer

    def send(self, answer: Answer) -> None:
        body = json.dumps(answer.body).encode() if answer.raw is None else answer.raw
        self.send_response(answer.status)
        for name, value in {**answer.headers, "Content-Type": answer.content_type}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    @property
    def _fake(self) -> JsonFake:
        return self.server.fake  # type: ignore[return-value]


class JsonFake(ABC):
    """A fake of a JSON API: a subclass says what `respond` answers, one request at a time.

    listening   the socket that it is reached at; else one on the loopback
    """

    prefix = ""
    """What stands before every path: `/v1`."""

    def __init__(self, listening: socket.socket | None = None) -> None:
        self.requests: list[Request] = []
        self.callbacks: list[Callable[[Request, str], None]] = []
        self.problems: list[str] = []
        """What went wrong in the fake itself; `close` raises them."""
        self.lock = threading.RLock()
        self.server = Server(listening or loopback(), JsonHandler, self)

    @property
    def url(self) -> str:
        host, port = self.server.socket.getsockname()
        return f"http://{host}:{port}{self.prefix}"

    @abstractmethod
    def respond(self, request: Request) -> Answer:
        """What a subclass answers."""

    def serve(self, request: Request, fault: Any) -> Answer:  # noqa: ARG002
        """A request and what `meet` has told of it."""
        with self.lock:
            return self.respond(request)

    def meet(self, request: Request) -> Any:  # noqa: ARG002
        return None

    def pid_of(self, peer: tuple[str, int]) -> int:  # noqa: ARG002
        return 0

    def close(self) -> None:
        self.server.end()
        assert not self.problems, "\n".join(self.problems)
