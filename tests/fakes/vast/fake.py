"""A fake Vast.ai that tests and programs talk to over HTTP, and its inside for those who test with it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tests.fakes.peers import client_pid
from tests.fakes.runpod.clock import DrivenClock
from tests.fakes.runpod.faults import Fault, Script
from tests.fakes.vast import spec, views
from tests.fakes.vast.records import Ask, Instance, Life
from tests.fakes.vast.server import Answer, Handler, Request, Server
from tests.fakes.vast.service import Service
from tests.fakes.web import loopback

if TYPE_CHECKING:
    from tests.system.lab.hosts import Lab


class FakeVast:
    """The service, listening from here on.

    folder   its own: the log of requests lies there.
    lab      where its instances are machines; without one nothing is behind them.
    frozen   whether time passes by `advance` alone.
    """

    def __init__(self, folder: Path, lab: Lab | None = None, frozen: bool = False) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.clock = DrivenClock(frozen)
        self.requests: list[Request] = []
        self.problems: list[str] = []
        """What the fake did against the vendor's description, or went wrong inside it; close() raises them."""
        self.callbacks: list[Callable[[Any, str], None]] = []
        self.script = Script()
        self.haste = 1.0
        """So many times faster than at Vast.ai one may ask again."""
        self.last_asked: dict[tuple[str, str], float] = {}
        self._landscape: Any = None
        listening = None
        make_body = None
        if lab:
            from tests.fakes.vast.container import VastLandscape

            self._landscape = VastLandscape(lab, self)
            listening, make_body = self._landscape.listen(), self._landscape.make_body
        self.service = Service(self.clock, make_body)
        self._server = Server(listening or loopback(), Handler, self)
        self._closed = False
        if self._landscape:
            self._landscape.begin()

    # ---- where it is, and who may ask

    @property
    def url(self) -> str:
        host, port = self._server.socket.getsockname()
        return f"http://{host}:{port}"

    @property
    def env(self) -> dict[str, str]:
        """For a command that is to take this for the service."""
        return {"VAST_URL": self.url, "VAST_API_KEY": self.service.key}

    # ---- what there is

    def settle(self) -> None:
        with self.service.lock:
            self.service.settle()

    @property
    def pods(self) -> dict[str, Instance]:
        """All instances that there ever were, by id."""
        self.settle()
        return {one.id: one for one in list(self.service.instances.values())}

    def running(self) -> list[Instance]:
        """What costs money now, if only for its disk."""
        return [one for one in self.pods.values() if one.bills]

    def asks(self, **wanted: Any) -> list[Ask]:
        """Those of which all that is true."""
        return [ask for ask in self.service.asks.values() if wanted.items() <= ask.document.items()]

    @property
    def life(self) -> Life:
        return self.service.life

    @life.setter
    def life(self, life: Life) -> None:
        self.service.life = life

    # ---- what happens

    def renew_key(self) -> None:
        """The account has another key, and the former one no longer."""
        with self.service.lock:
            former, self.service.key = self.service.key, secrets.token_hex(32)
            for one in self.service.instances.values():
                one.account = self.service.key if one.account == former else one.account

    def play(self, *faults: Fault) -> None:
        self.script.play(*faults)

    def on_answer(self, callback: Callable[[Any, str], None]) -> None:
        """`callback(request, moment)` for every request, in the thread that serves it: "before", "after", "sent"."""
        self.callbacks.append(callback)

    def advance(self, seconds: float) -> None:
        """Let time pass, with all that it brings."""
        self.clock.advance(seconds)
        self.settle()

    def outbid(self, one: Instance) -> None:
        """Somebody pays more: it stands still, and its disk bills on."""
        with self.service.lock:
            self.service.settle()
            self.service.stop(one)

    def add_instance(self, label: str, key: str = "", **request: Any) -> Instance:
        """One that somebody made elsewhere."""
        with self.service.lock:
            free = next(ask for ask in self.service.asks.values() if not ask.taken)
            body = {"image": "ubuntu:24.04", "label": label, "runtype": "ssh", **request}
            return self.service.create(key or self.service.key, free.id, body)

    def asked(self, method: str = "*", path: str = "") -> list[Request]:
        """The requests so far; `path` as in Fault.at."""
        return [
            one for one in self.requests if Fault(f"{method} {path or one.path}").fits(one.method, one.path, one.body)
        ]

    # ---- for the server and the lab

    def meet(self, request: Request) -> Fault | None:
        with self.service.lock:
            return self.script.meet(request.method, request.path, request.body)

    def judge(self, request: Request, answer: Answer) -> None:
        self.problems += spec.mismatches(request, answer)

    def ports_of(self, one: Instance) -> list[dict[str, Any]]:
        return views.ports_of(one)

    def pid_of(self, peer: tuple[str, int]) -> int:
        networks = ["self", *(self._landscape.networks() if self._landscape else [])]
        return client_pid(peer, self._server.socket.getsockname(), networks)

    # ---- the end

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._server.end()
        if self._landscape:
            self._landscape.close()
        (self.folder / "requests").write_text("".join(f"{one}\n" for one in self.requests))
        assert not self.problems, "the fake is not as the service:\n" + "\n".join(self.problems)

    def __enter__(self) -> FakeVast:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()
