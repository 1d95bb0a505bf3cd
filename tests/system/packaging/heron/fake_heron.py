"""A fake of Heron, as gpuops_heron.py describes it, on the server of `gpuops.testing`."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpuops.testing import fake_server

TYPES: dict[str, dict[str, Any]] = {
    "h100.8": {"gpu": "H100 SXM5", "gpus": 8, "gpu_gb": 80, "dollars_per_hour": 19.92, "free_in": ["oslo"]},
    "a10.1": {"gpu": "A10", "gpus": 1, "gpu_gb": 24, "dollars_per_hour": 0.72, "free_in": ["oslo", "turku"]},
    "a10.2": {"gpu": "A10", "gpus": 2, "gpu_gb": 24, "dollars_per_hour": 1.44, "free_in": []},
}
PAGE = 2


@dataclass
class Server:
    """One that somebody rents."""

    asked: dict[str, Any]
    number: int
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    address: str = ""
    ended: float = 0.0


class FakeHeron(fake_server.JsonFake):
    """boot  makes a machine of an id and its user data, and returns its address; `halt` ends one. Without them nothing
    is behind the servers."""

    prefix = "/v1"

    def __init__(
        self,
        boot: Callable[[str, str], str] | None = None,
        halt: Callable[[str], object] = lambda _: None,
        listening: Any = None,
    ) -> None:
        self.key = f"heron-{secrets.token_hex(16)}"
        self.servers: dict[str, Server] = {}
        """All that there ever were."""
        self.ending_s = 0.2
        """So long one that was ended is still listed."""
        self._boot, self._halt = boot, halt
        super().__init__(listening)

    @property
    def env(self) -> dict[str, str]:
        return {"HERON_URL": self.url, "HERON_KEY": self.key}

    def running(self) -> list[Server]:
        return [one for one in self.servers.values() if not one.ended]

    def respond(self, request: fake_server.Request) -> fake_server.Answer:
        if request.headers.get("authorization") != f"Bearer {self.key}":
            return refused(401, "bad_key", "This key is not known.")
        since = time.time() - self.ending_s
        listed = {id: one for id, one in self.servers.items() if not one.ended or one.ended > since}
        match request.method, request.path.strip("/").split("/"):
            case "GET", ["types"]:
                return fake_server.Answer(200, {"types": [{"name": name, **one} for name, one in TYPES.items()]})
            case "GET", ["servers"]:
                after = self.servers[request.query["after"]].number if "after" in request.query else 0
                left = [one for one in listed.values() if one.number > after]
                page = [view(one) for one in left[:PAGE]]
                return fake_server.Answer(200, {"servers": page, "more": len(left) > PAGE})
            case "POST", ["servers"]:
                return self._create(request.body)
            case "GET", ["servers", id] if id in listed:
                return fake_server.Answer(200, view(listed[id]))
            case "DELETE", ["servers", id] if id in listed:
                listed[id].ended = listed[id].ended or time.time()
                self._halt(id)
                return fake_server.Answer(202, {})
        return refused(404, "not_found", "There is no such thing.")

    def _create(self, asked: dict[str, Any]) -> fake_server.Answer:
        kind = TYPES.get(asked["type"])
        if not kind or len(asked["name"]) > 63 or len(asked["user_data"]) > 64_000:
            return refused(400, "bad_request", "A field is wrong.")
        if asked["region"] not in kind["free_in"]:
            return refused(409, "out_of_stock", "None is free.")
        one = Server(asked, len(self.servers) + 1)
        self.servers[one.id] = one
        if self._boot:
            one.address = self._boot(one.id, asked["user_data"])
        return fake_server.Answer(201, view(one))


def view(one: Server) -> dict[str, Any]:
    state = "ending" if one.ended else "running" if one.address else "starting"
    told = {"id": one.id, "state": state, "address": one.address or None}
    return {**one.asked, "user_data": None, **told, "dollars_per_hour": TYPES[one.asked["type"]]["dollars_per_hour"]}


def refused(status: int, code: str, message: str) -> fake_server.Answer:
    return fake_server.Answer(status, {"error": {"code": code, "message": message}})
