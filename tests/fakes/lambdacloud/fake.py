"""A fake Lambda Cloud that programs talk to over HTTP, and its inside for those who test with it."""

from __future__ import annotations

import re
import secrets
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tests.fakes.lambdacloud.catalog import FAMILIES, REGIONS, STOCK, TYPES, image_views, region_view, type_view
from tests.fakes.openapi import Spec, description
from tests.fakes.peers import client_pid
from tests.fakes.web import Answer, JsonFake, Request

if TYPE_CHECKING:
    from tests.system.lab.hosts import Lab

PREFIX = "/api/v1"
TAG = re.compile(r"[a-z][a-z0-9-:]+")
INVALID = "global/invalid-parameters"
ABSENT = "global/object-does-not-exist"
FULL = "instance-operations/launch/insufficient-capacity"
MESSAGES = {
    FULL: "Not enough capacity to fulfill launch request.",
    "global/quota-exceeded": "Quota exceeded.",
    "global/account-inactive": "Your account is inactive.",
    "global/internal-error": "An internal server error occurred.",
    "global/duplicate": "An SSH key with that name exists.",
    "provider/internal-unavailable": "Try again shortly.",
}


@dataclass
class Refusal(Exception):
    status: int
    code: str
    message: str = ""

    def answer(self) -> Answer:
        error = {"code": self.code, "message": self.message or MESSAGES.get(self.code, "Invalid request data.")}
        return Answer(self.status, {"error": {**error, "suggestion": "Try again later."}})


@dataclass
class Fault:
    """What the next `times` requests to a path meet, after the first `skip`."""

    at: str
    """`POST /instance-operations/launch`."""
    status: int = 0
    """0: what is right is answered, unless it `cuts`."""
    code: str = "global/internal-error"
    times: int = 1
    skip: int = 0
    done: bool = False
    """What was asked for is done, and only the answer goes wrong."""
    cuts: bool = False
    hangs: float = 0.0

    def meets(self, request: Request) -> bool:
        verb, _, path = self.at.partition(" ")
        if verb != request.method or not re.fullmatch(re.escape(path).replace(r"\*", "[^/]+"), request.path):
            return False
        self.skip -= 1
        if self.skip >= 0 or self.times <= 0:
            return False
        self.times -= 1
        return True

    def answer(self) -> Answer:
        text = Answer(429, raw=b"error code: 1015")
        return text if self.status == 429 else Refusal(self.status, self.code).answer()


@dataclass(eq=False)
class Instance:
    id: str
    request: dict[str, Any]
    launched: float
    address: str
    private: str
    ended: float = 0.0
    """When its end was asked for: from then on it costs nothing."""
    calls_it: str = ""
    """`unhealthy`, `preempted`: what it is instead."""

    @property
    def name(self) -> str:
        return str(self.request.get("name", ""))

    @property
    def tags(self) -> dict[str, str]:
        return {tag["key"]: tag["value"] for tag in self.request.get("tags", [])}

    @property
    def bills(self) -> bool:
        return not self.ended


class FakeLambda(JsonFake):
    """folder   its own: the log of requests lies there.
    lab      where its instances are machines; without one nothing is behind them.
    """

    prefix = PREFIX

    def __init__(self, folder: Path, lab: Lab | None = None) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.key = f"secret_gpuops_{secrets.token_hex(16)}"
        self.apart_s, self.launches_apart_s = 1.0, 12.0
        """Between two requests, and two launches; sooner it is 429, in text."""
        self.address_s, self.active_s = 0.0, 0.3
        """After a launch; with a lab the address comes when it boots."""
        self.ending_s, self.linger_s = 0.2, 0.2
        """How long it is terminating, and how long `terminated` is listed."""
        self.has_private_addresses = True
        self.is_active = True
        self.has_moved = False
        """301, as the former host."""
        self.refuses: set[str] = set()
        """Types that are listed as free, and never are."""
        self.stock = {name: list(regions) for name, regions in STOCK.items()}
        self.mishap = ""
        """Of the next machines' boots, with a lab (tests/fakes/aws/orders.py)."""
        self.instances: dict[str, Instance] = {}
        """All that there ever were."""
        self.ssh_keys: dict[str, dict[str, str]] = {}
        self._faults: list[Fault] = []
        self._last = self._last_launch = 0.0
        document = description("lambda-openapi.json")
        self._spec = Spec(document, PREFIX) if document else None
        self._lab = lab
        self.machines: Any = None
        if lab:
            from tests.fakes.aws.machines import Machines

            self.machines = Machines(lab)  # that one switches itself off ends no bill
        self._closed = False
        super().__init__(self.machines.listen() if lab else None)

    @property
    def env(self) -> dict[str, str]:
        return {"LAMBDA_API_URL": self.url, "LAMBDA_API_KEY": self.key}

    def play(self, *faults: Fault) -> None:
        self._faults += faults

    def running(self) -> list[Instance]:
        return [one for one in self.instances.values() if one.bills]

    def asked(self, method: str, path: str) -> list[Request]:
        return [one for one in self.requests if (one.method, one.path) == (method, path)]

    # ---- for the server

    def meet(self, request: Request) -> Fault | None:
        with self.lock:
            return next((fault for fault in self._faults if fault.meets(request)), None)

    def pid_of(self, peer: tuple[str, int]) -> int:
        networks = ["self", *([str(self._lab.laptop.pid)] if self._lab else [])]
        return client_pid(peer, self.server.socket.getsockname(), networks)

    def serve(self, request: Request, fault: Fault | None) -> Answer:
        with self.lock:
            if fault and (fault.status or fault.cuts) and not fault.done:
                return fault.answer() if fault.status else Answer(500)
            answer = self.respond(request)
            if self._spec and answer.raw is None and answer.status != 301:
                self.problems += self._spec.mismatches(request, answer)
            return fault.answer() if fault and fault.status else answer

    def respond(self, request: Request) -> Answer:
        if self.has_moved:
            return Answer(301, raw=b"", headers={"Location": f"https://cloud.lambda.ai{PREFIX}{request.path}"})
        given = request.headers.get("authorization", "")
        try:
            if not given:
                raise Refusal(401, "global/invalid-api-key", "No API key was provided.")
            if given != f"Bearer {self.key}":
                raise Refusal(401, "global/invalid-api-key", "API key was invalid, expired, or deleted.")
            if not self.is_active:
                raise Refusal(403, "global/account-inactive")
            now = time.monotonic()
            is_launch = request.path == "/instance-operations/launch"
            if now - self._last < self.apart_s or (is_launch and now - self._last_launch < self.launches_apart_s):
                return Answer(429, raw=b"error code: 1015")
            self._last, self._last_launch = now, now if is_launch else self._last_launch
            return Answer(200, {"data": self._data(request)})
        except Refusal as refusal:
            return refusal.answer()

    def _data(self, request: Request) -> Any:
        first, _, last = request.path.strip("/").partition("/")
        match request.method, first, last:
            case "GET", "instance-types", "":
                return {
                    name: {
                        "instance_type": type_view(name),
                        "regions_with_capacity_available": [region_view(one) for one in self.stock.get(name, [])],
                    }
                    for name in TYPES
                }
            case "GET", "images", "":
                return image_views()
            case "GET", "instances", "":
                return [self._view(one) for one in self.instances.values() if self._status(one)]
            case "GET", "instances", id:
                return self._view(self._known(id))
            case "POST", "instance-operations", "launch":
                return self._launch(request.body)
            case "POST", "instance-operations", "terminate":
                return {"terminated_instances": self._terminate(request.body["instance_ids"])}
            case "GET", "ssh-keys", "":
                return list(self.ssh_keys.values())
            case "POST", "ssh-keys", "":
                return self._add_key(request.body)
        raise Refusal(404, ABSENT)

    # ---- instances

    def _launch(self, body: dict[str, Any]) -> Any:
        kind, region, keys = body["instance_type_name"], body["region_name"], body["ssh_key_names"]
        family = body.get("image", {}).get("family", FAMILIES[0])
        wrong = [
            "Requested too many instances." if body.get("quantity", 1) > 1 else "",
            "" if len(keys) == 1 else "Exactly one SSH key must be specified.",
            "" if kind in TYPES and region in REGIONS else "Unknown instance type or region.",
            "" if len(body.get("name", "")) <= 64 else "name: too long",
            "" if len(body.get("user_data", "")) <= 1_000_000 else "user_data: too long",
            "" if family in FAMILIES else "Unknown image family.",
            *(
                "" if TAG.fullmatch(tag["key"]) and len(tag["key"]) <= 55 and len(tag["value"]) <= 128 else "tags"
                for tag in body.get("tags", [])
            ),
        ]
        if told := [one for one in wrong if one]:
            raise Refusal(400, INVALID, told[0])
        if keys[0] not in self.ssh_keys:
            raise Refusal(400, ABSENT, "Specified SSH key does not exist.")
        if body.get("file_system_names"):
            raise Refusal(400, "instance-operations/launch/file-system-in-wrong-region")
        if region not in self.stock.get(kind, []) or kind in self.refuses:
            raise Refusal(400, FULL)
        return {"instance_ids": [self.add(body).id]}

    def add(self, body: dict[str, Any]) -> Instance:
        """An instance, whoever asks for it."""
        id, number = secrets.token_hex(16), len(self.instances) + 2
        place = self.machines.machine(id) if self.machines else None
        address = place.public if place else f"127.0.{number >> 8}.{number & 255}"
        private = place.address if place else f"10.0.{number >> 8}.{number & 255}"
        one = self.instances[id] = Instance(id, body, time.time(), address, private)
        if self.machines:
            from tests.fakes.aws.machines import Order

            order = Order(id=id, user_data=body.get("user_data", ""), mishap=self.mishap)
            threading.Thread(target=self.machines.start, args=(order,), daemon=True).start()
        return one

    def _terminate(self, ids: list[str]) -> list[Any]:
        """All of them, or none where one is not there."""
        for one in [self._known(id) for id in ids]:
            one.ended = one.ended or time.time()
            if self.machines:
                threading.Thread(target=self.machines.stop, args=(one.id,), daemon=True).start()
        return [self._view(self.instances[id]) for id in ids]

    def _known(self, id: str) -> Instance:
        if id not in self.instances or not self._status(self.instances[id]):
            raise Refusal(404, ABSENT, "Specified instance does not exist.")
        return self.instances[id]

    def _status(self, one: Instance) -> str:
        """Empty once it is not listed any more."""
        if one.ended:
            ago = time.time() - one.ended
            return "terminating" if ago < self.ending_s else "terminated" if ago < self.ending_s + self.linger_s else ""
        return one.calls_it or ("active" if time.time() - one.launched >= self.active_s else "booting")

    def _view(self, one: Instance) -> dict[str, Any]:
        status, has_address = self._status(one), time.time() - one.launched >= self.address_s
        able = {"available": status == "active"}
        return {
            "id": one.id,
            "name": one.name,
            **({"ip": one.address} if has_address else {}),
            **({"private_ip": one.private} if has_address and self.has_private_addresses else {}),
            "status": status,
            "ssh_key_names": one.request["ssh_key_names"],
            "file_system_names": [],
            "region": region_view(one.request["region_name"]),
            "instance_type": type_view(one.request["instance_type_name"]),
            "hostname": one.address.replace(".", "-"),
            "jupyter_token": "a-secret-of-jupyter",
            "jupyter_url": "https://jupyter-x.lambdaspaces.com/?token=a-secret-of-jupyter",
            "is_reserved": False,
            "actions": {
                name: able if able["available"] else {"available": False, "reason_code": "vm-has-not-launched"}
                for name in ("migrate", "rebuild", "restart", "cold_reboot", "terminate")
            },
            "tags": one.request.get("tags", []),
        }

    def _add_key(self, body: dict[str, str]) -> dict[str, str]:
        if body["name"] in self.ssh_keys:
            raise Refusal(400, INVALID, MESSAGES["global/duplicate"])
        one = {"id": secrets.token_hex(16), "name": body["name"], "public_key": body["public_key"]}
        self.ssh_keys[body["name"]] = one
        return one

    # ---- the end

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.server.end()
        if self.machines:
            self.machines.close()
            self.problems += self.machines.problems
        (self.folder / "requests").write_text("".join(f"{one}\n" for one in self.requests))
        assert not self.problems, "the fake is not as the service:\n" + "\n".join(self.problems)

    def __enter__(self) -> FakeLambda:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()
