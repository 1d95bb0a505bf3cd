"""The HTTP side: how AWS' requests are heard, answered and sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fakes import web
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


class Server(web.Server):
    fake: FakeAWS


class Handler(web.Handler):
    server: Server

    def do_GET(self) -> None:
        if self.path == CHECKIP:
            address = self.server.fake.caller_address or self.client_address[0]
            self.send(Answer(200, f"{address}\n".encode(), {"Content-Type": "text/plain"}))
        else:
            self.serve()

    do_HEAD = web.Handler.do_POST

    def hear(self, raw: bytes) -> Request:
        return wire.read(self.command, self.path, {name.lower(): value for name, value in self.headers.items()}, raw)

    def answer(self, request: Request, fault: Fault | None) -> Answer | None:
        answer = self._answer(request, fault)
        request.status, request.error = (answer.status, answer.error) if answer else (0, "unreachable")
        return answer

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

    def send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        body = answer.body
        for name, value in answer.headers.items():
            if name.lower() not in ("content-length", "connection"):
                self.send_header(name, value)
        length = next((v for name, v in answer.headers.items() if name.lower() == "content-length"), str(len(body)))
        self.send_header("Content-Length", length if self.command == "HEAD" else str(len(body)))
        self.end_headers()
        if self.command != "HEAD" and answer.status not in (204, 304):
            self.wfile.write(body[: len(body) // 2] if answer.half else body)
        if answer.half:
            self.cut()
