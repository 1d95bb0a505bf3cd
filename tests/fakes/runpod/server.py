"""The HTTP side: how RunPod's requests are heard, answered, judged and sent."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.fakes import web
from tests.fakes.runpod import catalogroutes, graphql, logstream, routes, routing  # noqa: F401  (some are routes)
from tests.fakes.runpod.faults import Fault
from tests.fakes.runpod.problems import TITLES, Refusal
from tests.fakes.runpod.records import Pod
from tests.fakes.runpod.requests import Answer, Caller, Request

if TYPE_CHECKING:
    from tests.fakes.runpod.fake import FakeRunPod

VERSION = "/v2"
HEARTBEAT_S = 0.2


class Server(web.Server):
    fake: FakeRunPod


class Handler(web.Handler):
    server: Server
    do_PATCH = web.Handler.do_POST

    def hear(self, raw: bytes) -> Request:
        parts = urlsplit(self.path)
        path = parts.path.removeprefix(VERSION) if parts.path.startswith(f"{VERSION}/") else parts.path
        try:
            body = json.loads(raw) if raw else None
        except ValueError:
            body = None
        headers = {name.lower(): value for name, value in self.headers.items()}
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        return Request(self.command, "/".join(unquote(one) for one in path.split("/")), query, headers, body, raw)

    # ---- what is answered

    def answer(self, request: Request, fault: Fault | None) -> Answer:
        answer = self._answer(request, fault)
        request.status, request.answer = answer.status, answer.body
        return answer

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
            query = str((request.body or {}).get("query", ""))
            if (pod := graphql.to_terminate(query)) and caller.pod in (None, fake.service.course.pods.get(pod)):
                return self._terminate(caller, pod)
            if caller.pod:
                return Answer(401, {"errors": [{"message": "Unauthorized"}]})
            try:
                wanted = graphql.parse(query)
                if fake.desk.hides_email and "email" in wanted.get("myself", {}):
                    return Answer(200, {"errors": [{"message": "Not authorized"}], "data": {"myself": None}})
                types = graphql.gpu_types(fake.stock, graphql.lowest_input(query))
                told = {"myself": fake.desk.myself(caller.account), "gpuTypes": types}
                return Answer(200, {"data": graphql.select(told, wanted)})
            except graphql.Malformed as error:
                return Answer(400, {"errors": [{"message": str(error), "extensions": {"code": "BAD_USER_INPUT"}}]})

    def _terminate(self, caller: Caller, pod: str) -> Answer:
        data = {"podTerminate": None}
        try:
            caller.check("POST", f"/pods/{pod}/action")
            self.server.fake.service.delete_pod(caller.account, pod)
        except Refusal:
            return Answer(200, {"errors": [{"message": "pod not found to terminate"}], "data": data})
        return Answer(200, {"data": data})

    # ---- how it is sent

    def send(self, answer: Answer) -> None:
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
        if self.server.fake.terse or self.server.closing.wait(HEARTBEAT_S):
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
