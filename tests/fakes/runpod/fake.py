"""A fake RunPod that tests and programs talk to over HTTP, and its inside for those who test with it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tests.fakes.peers import client_pid
from tests.fakes.runpod import spec
from tests.fakes.runpod.catalog import Stock
from tests.fakes.runpod.clock import DrivenClock
from tests.fakes.runpod.desk import Desk
from tests.fakes.runpod.faults import Fault, Life, Script
from tests.fakes.runpod.records import Cluster, Pod, Volume
from tests.fakes.runpod.requests import Answer, Request
from tests.fakes.runpod.server import VERSION, Handler, Server
from tests.fakes.runpod.service import Service
from tests.fakes.runpod.views import ports_view
from tests.fakes.web import loopback

if TYPE_CHECKING:
    from tests.system.lab.hosts import Lab

Callback = Callable[[Request, str], None]


class FakeRunPod:
    """The service, listening from here on.

    folder   its own: the log of requests lies there.
    lab      where its pods are machines; without one nothing is behind them.
    frozen   whether time passes by `advance` alone.
    """

    def __init__(self, folder: Path, lab: Lab | None = None, frozen: bool = False) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.clock = DrivenClock(frozen)
        self.requests: list[Request] = []
        self.problems: list[str] = []
        """What the fake did against the vendor's description, or went wrong inside it; close() raises them."""
        self.callbacks: list[Callback] = []
        self.script = Script()
        self.terse = False
        """Whether a pod's log is told as far as it goes, and not followed."""
        self._spec = spec.found()
        self._landscape = None
        listening = None
        make_body = None
        if lab:
            from tests.fakes.runpod.landscape import Landscape

            self._landscape = Landscape(lab, self)
            listening, make_body = self._landscape.listen(), self._landscape.make_body
        self.service = Service(self.clock, make_body)
        self.desk = Desk(self.service)
        self._server = Server(listening or loopback(), Handler, self)
        self._closed = False
        if self._landscape:
            self._landscape.begin()

    # ---- where it is, and who may ask

    @property
    def base_url(self) -> str:
        host, port = self._server.socket.getsockname()
        return f"http://{host}:{port}"

    @property
    def url(self) -> str:
        return self.base_url + VERSION

    @property
    def env(self) -> dict[str, str]:
        """For a command that is to take this for the service."""
        return {
            "RUNPOD_API_URL": self.url,
            "RUNPOD_API_BASE_URL": self.base_url,
            "RUNPOD_API_KEY": self.account_key,
        }

    @property
    def account_key(self) -> str:
        return self.service.own.key

    @property
    def read_only_key(self) -> str:
        return self.service.own.read_only_key

    @property
    def other_key(self) -> str:
        """Of another account."""
        return self.service.other.key

    @property
    def account_id(self) -> str:
        return self.service.own.id

    def renew_key(self) -> str:
        """Another key of the same account; the former one is void."""
        self.service.own.key = f"rpa_{secrets.token_hex(20).upper()}"
        return self.account_key

    @property
    def quota(self) -> int:
        """Requests of an account in a minute."""
        return self.desk.quota

    @quota.setter
    def quota(self, most: int) -> None:
        self.desk.quota = most

    # ---- what there is

    def settle(self) -> None:
        with self.service.lock:
            self.service.course.settle()

    @property
    def pods(self) -> dict[str, Pod]:
        """All that there ever were, the ones that ended too."""
        self.settle()
        return dict(self.service.course.pods)

    @property
    def clusters(self) -> dict[str, Cluster]:
        return dict(self.service.clusters)

    @property
    def volumes(self) -> dict[str, Volume]:
        return dict(self.service.volumes)

    def running(self) -> list[Pod]:
        """Pods that bill now: all but the terminated."""
        return [pod for pod in self.pods.values() if pod.bills]

    def per_hour(self) -> float:
        """$/h of all that bills now, disks too."""
        return sum(pod.per_hour for pod in self.running())

    def billed(self) -> float:
        """$ up to now, by the fake's clock; network volumes are not counted."""
        return sum(pod.billed for pod in self.pods.values())

    @property
    def balance(self) -> float:
        self.settle()
        return self.service.own.balance

    @balance.setter
    def balance(self, dollars: float) -> None:
        self.settle()
        self.service.own.balance = dollars

    @property
    def spend_limit(self) -> float:
        return self.service.own.spend_limit

    @spend_limit.setter
    def spend_limit(self, dollars: float) -> None:
        self.service.own.spend_limit = dollars

    @property
    def stock(self) -> Stock:
        """GPU id -> data center -> GPUs that are free; to be changed, or set as a whole."""
        return self.service.shelf.stock

    @stock.setter
    def stock(self, stock: Stock) -> None:
        self.service.shelf.stock = stock

    @property
    def cuda(self) -> dict[str, list[str]]:
        """Data center -> CUDA versions of its machines' drivers."""
        return self.service.shelf.cuda

    @property
    def life(self) -> Life:
        """Of pods for which no fault has another."""
        return self.service.life

    @life.setter
    def life(self, life: Life) -> None:
        self.service.life = life

    @property
    def no_such_images(self) -> set[str]:
        return self.service.no_such_images

    # ---- what happens

    def play(self, *faults: Fault) -> None:
        self.script.play(*faults)

    def on_answer(self, callback: Callback) -> None:
        """`callback(request, moment)` for every request, in the thread that serves it.

        moment   "before": nothing is done yet; "after": done, and the answer not sent; "sent".
        """
        self.callbacks.append(callback)

    def advance(self, seconds: float) -> None:
        """Let time pass, with all that it brings."""
        self.clock.advance(seconds)
        self.settle()

    def end(self, pod: Pod | str, how: str = "EXITED") -> None:
        """A pod ends of itself: EXITED, ERROR, TERMINATED, or GONE (the service does not know it any more)."""
        with self.service.lock:
            self.service.course.settle()
            self.service.course.become(self.service.course.pods[pod] if isinstance(pod, str) else pod, how)

    def add_pod(self, name: str, key: str = "", **request: Any) -> Pod:
        """A pod that somebody made elsewhere, in the console for one."""
        body = {
            "name": name,
            "image": "runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404",
            "gpu": {"id": "NVIDIA GeForce RTX 4090", "count": 1, "minCudaVersion": "12.8"},
            **request,
        }
        with self.service.lock:
            self.service.course.settle()
            account = self.desk.caller(f"Bearer {key or self.account_key}").account
            return self.service.create_pod(account, body, None)

    def add_cluster(self, name: str, **request: Any) -> Cluster:
        """The same of a cluster of two."""
        compute = {"gpuTypeId": "NVIDIA H100 80GB HBM3", "gpuCountPerPod": 1, "podCount": 2}
        body = {"name": name, "type": "TRAINING", "compute": compute, "image": "runpod/pytorch:2", **request}
        with self.service.lock:
            self.service.course.settle()
            return self.service.create_cluster(self.service.own, body, None, {})

    def add_volume(self, name: str, data_center: str, size: int = 10) -> Volume:
        with self.service.lock:
            return self.service.create_volume(self.service.own, {"name": name, "dataCenter": data_center, "size": size})

    def act(self, pod: Pod, action: str) -> None:
        """start, stop, restart or terminate it, as its owner can elsewhere."""
        with self.service.lock:
            self.service.course.settle()
            self.service.act(pod.account, pod.id, action)

    def asked(self, method: str = "*", path: str = "") -> list[Request]:
        """The requests so far; `path` as in Fault.at."""
        return [
            one for one in self.requests if Fault(f"{method} {path or one.path}").fits(one.method, one.path, one.body)
        ]

    # ---- for the server

    def meet(self, request: Request) -> Fault | None:
        """What was played for it."""
        with self.service.lock:
            return self.script.meet(request.method, request.path, request.body)

    def judge(self, request: Request, answer: Answer) -> None:
        if self._spec:
            self.problems += self._spec.mismatches(request, answer)

    def ports_of(self, pod: Pod) -> list[dict[str, Any]]:
        """TCP ports that lead to a pod from outside."""
        return [one for one in ports_view(pod) if one["type"] == "tcp"]

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

    def __enter__(self) -> FakeRunPod:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()
