"""The HTTP side: which request does what, how often one may ask, and how answers are sent."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from tests.fakes import web
from tests.fakes.runpod.faults import Fault
from tests.fakes.vast import asks
from tests.fakes.vast.service import Refusal
from tests.fakes.vast.views import PAGE, instance_view

if TYPE_CHECKING:
    from tests.fakes.vast.fake import FakeVast
    from tests.fakes.vast.service import Service

PREFIX = re.compile(r"/api/(v\d)(/.*?)/?")
THRESHOLDS = {"create": 4.5, "destroy": 3.0, "show": 2.0, "manage": 1.0, "list": 1.0}
"""The least seconds from one request of its kind to the next, by account."""
UNAUTHORIZED = Refusal(401, "auth_error", "Invalid user key")


@dataclass(eq=False)
class Request(web.Heard):
    method: str
    path: str
    """Without the API's version, and without a slash at its end: /asks/123."""
    version: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any
    raw: bytes = b""
    answer: Any = None

    @property
    def key(self) -> str:
        return self.headers.get("authorization", "").removeprefix("Bearer ")

    def __str__(self) -> str:
        return f"{self.method} {self.path} {self.status or '-'}"


@dataclass
class Answer:
    status: int
    body: Any
    content_type: str = "application/json"


Route = Callable[["Service", Request, list[int]], Any]
"""The ids in its path follow the request."""


def show_user(service: Service, request: Request, _: list[int]) -> Any:
    email = "somebody@example.com" if request.key == service.key else "stranger@example.com"
    credit = {} if service.credit is None else {"credit": service.credit}
    return {"id": 4711 if request.key == service.key else 4712, "key_id": 12, "email": email,
            "balance": service.balance, **credit, "ssh_key": "", "sid": "s"}  # fmt: skip


def search(service: Service, request: Request, _: list[int]) -> Any:
    """Whoever asks without a key is answered as well."""
    if request.key and request.key not in (service.key, service.other_key):
        raise Refusal(404, "auth_error", "Invalid user key")
    try:
        return {"offers": asks.search(list(service.asks.values()), request.body)}
    except (KeyError, TypeError, AttributeError) as error:
        raise Refusal(400, "invalid_request", f"Invalid json body: {error!r}") from error


def names(service: Service, _: Request, __: list[int]) -> Any:
    return {"success": True, "gpu_names": sorted({one.document["gpu_name"] for one in service.asks.values()})}


def create(service: Service, request: Request, ids: list[int]) -> Any:
    one = service.create(request.key, ids[0], request.body or {})
    return {"success": True, "new_contract": one.number, "instance_api_key": one.key}


def show(service: Service, request: Request, ids: list[int]) -> Any:
    """What is gone is null."""
    try:
        return {"instances": instance_view(service.find(request.key, ids[0]), service.clock.now())}
    except Refusal:
        return {"instances": None}


def show_all(service: Service, request: Request, _: list[int]) -> Any:
    now = service.clock.now()
    mine = [one for one in service.living() if one.account == request.key and now - one.created >= one.life.listed_s]
    after, size = int(request.query.get("after_token") or 0), min(PAGE, int(request.query.get("limit", PAGE)))
    page = [one for one in mine if one.number > after][:size]
    more = page and page[-1] is not mine[-1]
    return {"success": True, "instances_found": len(page), "total_instances": len(mine), "label_counts": {},
            "next_token": str(page[-1].number) if more else None,
            "instances": [instance_view(one, now) for one in page]}  # fmt: skip


def destroy(service: Service, request: Request, ids: list[int]) -> Any:
    service.destroy(service.find(request.key, ids[0]))
    return {"success": True, "msg": "Instance destroyed successfully"}


def manage(service: Service, request: Request, ids: list[int]) -> Any:
    one = service.find(request.key, ids[0])
    if (request.body or {}).get("state") == "stopped":
        service.stop(one)
    return {"success": True}


def reboot(service: Service, request: Request, ids: list[int]) -> Any:
    service.reboot(service.find(request.key, ids[0]))
    return {"success": True}


ROUTES: tuple[tuple[str, str, str, str, Route], ...] = (
    ("GET", "v0", r"/users/current", "", show_user),
    ("POST", "v0", r"/bundles", "", search),
    ("GET", "v0", r"/gpu_names/unique", "", names),
    ("PUT", "v0", r"/asks/(\d+)", "create", create),
    ("GET", "v1", r"/instances", "list", show_all),
    ("GET", "v0", r"/instances/(\d+)", "show", show),
    ("DELETE", "v0", r"/instances/(\d+)", "destroy", destroy),
    ("PUT", "v0", r"/instances/(\d+)", "manage", manage),
    ("PUT", "v0", r"/instances/reboot/(\d+)", "manage", reboot),
)
OPEN = (search, names)
"""Whom nobody asks for a key."""
OF_INSTANCE = (show, destroy, manage)
"""What an instance's own key may do, to it alone."""


class Server(web.Server):
    fake: FakeVast


class Handler(web.Handler):
    server: Server

    def hear(self, raw: bytes) -> Request:
        parts = urlsplit(self.path)
        found = PREFIX.fullmatch(parts.path)
        try:
            body = json.loads(raw) if raw else None
        except ValueError:
            body = None
        headers = {name.lower(): value for name, value in self.headers.items()}
        version, path = (found[1], found[2]) if found else ("", parts.path)
        return Request(self.command, path, version, dict(parse_qsl(parts.query)), headers, body, raw)

    def answer(self, request: Request, fault: Fault | None) -> Answer:
        answer = self._answer(request, fault)
        request.status, request.answer = answer.status, answer.body
        return answer

    def _answer(self, request: Request, fault: Fault | None) -> Answer:
        faulty = Answer(fault.status, {"success": False, "error": "fault", "msg": fault.detail}) if fault else None
        if fault and faulty and (fault.status or fault.cut) and not fault.takes_effect:
            return faulty
        if fault and fault.lie:
            return Answer(200, {"success": True})
        answer = self._served(request)
        self.server.fake.judge(request, answer)
        return faulty if fault and faulty and fault.status else answer

    def _served(self, request: Request) -> Answer:
        service = self.server.fake.service
        with service.lock:
            service.settle()
            try:
                return Answer(200, self._route(service, request))
            except Refusal as refusal:
                return Answer(refusal.status, refusal.body)

    def _route(self, service: Service, request: Request) -> Any:
        for method, version, pattern, kind, route in ROUTES:
            found = re.fullmatch(pattern, request.path)
            if not found or (method, version) != (request.method, request.version):
                continue
            numbers = [int(one) for one in found.groups()]
            if route not in OPEN:
                self._check_key(service, request, numbers, route)
                self._check_pace(request, kind)
            return route(service, request, numbers)
        raise Refusal(404, "not_found", "no such path")

    def _check_key(self, service: Service, request: Request, numbers: list[int], route: Route) -> None:
        if request.key in (service.key, service.other_key):
            return
        own = [one for one in service.living() if one.key == request.key]
        if not own or route not in OF_INSTANCE or numbers != [own[0].number]:
            raise UNAUTHORIZED

    def _check_pace(self, request: Request, kind: str) -> None:
        fake = self.server.fake
        least, now = THRESHOLDS.get(kind, 0.0) / fake.haste, fake.clock.now()
        before = fake.last_asked.get((request.key, kind))
        if before is not None and now - before < least:
            text = f"API requests too frequent endpoint threshold={THRESHOLDS[kind]}"
            refusal = Refusal(429, "rate_limit_exceeded", text)
            refusal.body = refusal.body if kind == "destroy" else {"detail": text}
            raise refusal
        fake.last_asked[request.key, kind] = now

    def send(self, answer: Answer) -> None:
        body = json.dumps(answer.body).encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
