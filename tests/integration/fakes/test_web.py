"""What every fake's server does, with the smallest fake there can be: it answers what it was told."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.conftest import HANG_S, until
from tests.fakes.web import Handler, Heard, Server, loopback


@dataclass(eq=False)
class Request(Heard):
    raw: bytes


@dataclass(frozen=True)
class Fault:
    hangs: float = 0.0
    done: bool = False
    cuts: bool = False


class Echo(Handler):
    def hear(self, raw: bytes) -> Request:
        return Request(raw)

    def answer(self, request: Request, _: Fault | None) -> bytes | None:
        assert request.raw != b"err"
        self.server.fake.done.append(request.raw)  # type: ignore[attr-defined]
        return None if request.raw == b"nobody" else request.raw

    def send(self, answer: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


@dataclass
class Fake:
    fault: Fault | None = None
    requests: list[Request] = field(default_factory=list)
    callbacks: list[Callable[[Any, str], None]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    done: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.server = Server(loopback(), Echo, self)

    def meet(self, _: Request) -> Fault | None:
        return self.fault

    def pid_of(self, peer: tuple[str, int]) -> int:
        return peer[1]

    def is_idle(self) -> bool:
        return not self.server._open

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(*self.server.socket.getsockname(), timeout=HANG_S)

    def ask(self, body: Any) -> bytes:
        connection = self.connect()
        try:
            connection.request("PUT", "/", body)
            return connection.getresponse().read()
        finally:
            connection.close()


@pytest.fixture
def fake() -> Iterator[Fake]:
    one = Fake()
    yield one
    one.server.end()


def test_a_body_comes_whole_or_in_chunks(fake: Fake) -> None:
    assert fake.ask(b"whole") == b"whole"
    assert fake.ask(iter([b"in ", b"chunks"])) == b"in chunks"  # http.client sends these chunked
    assert [one.raw for one in fake.requests] == [b"whole", b"in chunks"]
    assert fake.problems == []


def test_callbacks_are_told_who_asks_and_of_every_moment(fake: Fake) -> None:
    moments: list[tuple[str, list[bytes]]] = []
    fake.callbacks.append(lambda _, moment: moments.append((moment, list(fake.done))))
    fake.ask(b"a")
    until(lambda: len(moments) == 3, "it was told of the last")
    assert moments == [("before", []), ("after", [b"a"]), ("sent", [b"a"])]
    assert fake.requests[0].client_pid


@pytest.mark.parametrize(
    ("how", "done"),
    [("drop", []), ("lose", [b"a"]), ("cut", [b"a"]), ("nobody", [b"nobody"])],
)
def test_no_answer_is_an_end_of_the_connection(fake: Fake, how: str, done: list[bytes]) -> None:
    if how == "cut":
        fake.fault = Fault(done=True, cuts=True)
    elif how != "nobody":
        fake.callbacks.append(lambda request, moment: getattr(request, how)() if moment == "before" else None)
    with pytest.raises(http.client.RemoteDisconnected):
        fake.ask(b"nobody" if how == "nobody" else b"a")
    until(fake.is_idle, "the connection is over")
    assert fake.done == done
    assert fake.problems == []


def test_the_fault_of_a_callback_goes_before_what_was_played(fake: Fake) -> None:
    fake.fault = Fault(cuts=True)
    fake.callbacks.append(lambda request, _: setattr(request, "fault", Fault()))
    assert fake.ask(b"a") == b"a"


@pytest.mark.parametrize("done", [True, False])
def test_silence_comes_after_what_is_done_or_before_it_and_ends_with_the_fake(fake: Fake, done: bool) -> None:
    fake.fault = Fault(hangs=10 * HANG_S, done=done, cuts=True)
    connection = fake.connect()
    connection.request("PUT", "/", b"a")
    until(lambda: fake.done if done else fake.requests, "it is heard")
    assert fake.done == ([b"a"] if done else [])
    connection.sock.settimeout(0.5)
    with pytest.raises(TimeoutError):
        connection.sock.recv(1)
    connection.close()
    fake.server.end()
    until(fake.is_idle, "nobody hangs on")


@pytest.mark.parametrize("words", [b"Content-Length: 9\r\n\r\nhalf", b"Transfer-Encoding: chunked\r\n\r\n9\r\nhalf",
                                   b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"])  # fmt: skip
def test_half_a_request_is_none(fake: Fake, words: bytes) -> None:
    with socket.create_connection(fake.server.socket.getsockname(), HANG_S) as killed:
        killed.sendall(b"PUT / HTTP/1.1\r\n" + words)
        killed.shutdown(socket.SHUT_WR)
        assert killed.recv(1) == b""
    until(fake.is_idle, "the connection is over")
    assert fake.requests == fake.problems == []


def test_what_goes_wrong_inside_is_told_and_a_client_that_goes_away_is_not(fake: Fake) -> None:
    with pytest.raises(http.client.RemoteDisconnected):
        fake.ask(b"err")
    until(lambda: fake.problems, "it is told")
    (problem,) = fake.problems
    assert "AssertionError" in problem
    fake.problems.clear()

    def leave(_: Request, moment: str) -> None:
        if moment == "after":
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            gone.close()  # with a reset

    fake.callbacks.append(leave)
    gone = socket.create_connection(fake.server.socket.getsockname())
    size = 1 << 24  # more than any buffer between takes
    gone.sendall(b"PUT / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % size + bytes(size))
    until(lambda: fake.done and fake.is_idle(), "it is done, and the answer given up")
    assert fake.problems == []
