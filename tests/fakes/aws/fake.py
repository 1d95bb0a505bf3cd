"""A fake AWS that tests and programs talk to over HTTP, and its inside for those who test with it."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tests.fakes.aws import checks, course, launching, routing, signatures, wire
from tests.fakes.aws.faults import Fault, Script
from tests.fakes.aws.happenings import Happenings
from tests.fakes.aws.holdings import HOME, Holdings
from tests.fakes.aws.knobs import Knobs
from tests.fakes.aws.requests import Answer, Refusal, Request
from tests.fakes.aws.server import CHECKIP, Handler, Server
from tests.fakes.aws.world import World
from tests.fakes.peers import client_pid
from tests.fakes.web import loopback

if TYPE_CHECKING:
    from tests.system.lab.hosts import Lab

Callback = Callable[[Request, str], None]
TICK_S = 0.2


class FakeAWS(Knobs, Holdings, Happenings):
    """The service, listening from here on.

    folder   its own: configuration for a client, and the log of requests, lie there.
    lab      where its instances are machines; without one nothing is behind them.
    """

    def __init__(self, folder: Path, lab: Lab | None = None) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.world = World()
        self.requests: list[Request] = []
        self.problems: list[str] = []
        """What went wrong inside the fake itself; close() raises it."""
        self.callbacks: list[Callback] = []
        self.script = Script()
        self.forbidden: set[str] = set()
        self.expired = False
        self.caller_address: str | None = None if lab else "203.0.113.7"
        """What the checkip address tells; None: where the request comes from."""
        self.key = f"AKIACANARY{secrets.token_hex(5).upper()}"
        self.secret = f"canary+secret/{secrets.token_hex(13)}"
        self._valid = {self.key}
        self._lab = lab
        if lab:
            from tests.fakes.aws.body import Bodies

            self.world.bodies = Bodies(lab, self.world, self.powered_off)
        self._server = Server(self.world.bodies.listen() if self.world.bodies else loopback(), Handler, self)
        self._write_configuration()
        self._closed = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)
        self._ticker.start()

    # ---- where it is, and who may ask

    @property
    def url(self) -> str:
        host, port = self._server.socket.getsockname()
        return f"http://{host}:{port}"

    @property
    def env(self) -> dict[str, str]:
        """For a command that is to take this for AWS."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_DEFAULT_REGION": HOME,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": str(self.folder / "config"),
            "AWS_SHARED_CREDENTIALS_FILE": str(self.folder / "credentials"),
            "GPUOPS_CHECKIP_URL": self.url + CHECKIP,
        }

    @property
    def secrets(self) -> list[str]:
        """What must never reach a node."""
        return [self.key, self.secret]

    def _write_configuration(self) -> None:
        """A default profile, and `work`, whose region is another."""
        keys = f"aws_access_key_id = {self.key}\naws_secret_access_key = {self.secret}\n"
        (self.folder / "credentials").write_text(f"[default]\n{keys}\n[work]\n{keys}")
        (self.folder / "config").write_text(f"[default]\nregion = {HOME}\n\n[profile work]\nregion = us-west-2\n")

    def client(self, service: str, region: str = HOME, **options: Any) -> Any:
        """boto3's client for tests: it asks once. `options` are those of botocore's Config."""
        from botocore.config import Config

        config = Config(**{"retries": {"total_max_attempts": 1}, "read_timeout": 300, **options})
        return _session().client(
            service,
            region,
            endpoint_url=self.url,
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
            config=config,
        )

    def wrong_keys(self) -> None:
        """The keys in `env` are void from here on."""
        self._valid.clear()

    def right_keys(self) -> None:
        self._valid.add(self.key)

    def deny(self, *permissions: str) -> None:
        """`ec2:RunInstances`, `servicequotas:*`."""
        self.forbidden |= set(permissions)

    def permit(self, *permissions: str) -> None:
        """Take a denial back; without a name: all."""
        self.forbidden = self.forbidden - set(permissions) if permissions else set()

    # ---- what happens

    def play(self, *faults: Fault) -> None:
        self.script.play(*faults)

    def on_answer(self, callback: Callback) -> None:
        """`callback(request, moment)` for every request, in the thread that serves it.

        moment   "before": nothing is done yet; "after": done, and the answer not sent; "sent".
        """
        self.callbacks.append(callback)

    def advance(self, seconds: float) -> None:
        """Let time pass for AWS, with all that it brings; machines of a lab do not notice."""
        self.world.clock.advance(seconds)
        self.settle()

    def asked(self, action: str = "*") -> list[Request]:
        """The requests so far; `action` as in Fault."""
        return [one for one in self.requests if Fault(action).fits(one)]

    # ---- for the server

    def meet(self, request: Request) -> Fault | None:
        """What was played for it."""
        with self.world.lock:
            return self.script.meet(request, launching.zone_of(self.world, request))

    def answer(self, request: Request) -> Answer:
        try:
            with self.world.lock:
                course.settle(self.world)
                self._judge(request)
                return routing.answer(self.world, request)
        except Refusal as refusal:
            return wire.refusal(request, refusal)
        except NotImplementedError:
            self.problems.append(f"the fake does not know {request.permission}")
            said = f"The action {request.action} is not valid for this web service."
            return wire.refusal(request, Refusal("InvalidAction", said))

    def _judge(self, request: Request) -> None:
        if not request.key:
            raise checks.nobody(request)
        if request.key not in self._valid:
            raise checks.unknown_key(request)
        if not signatures.check(request, self.secret, self.world.now()):
            raise checks.wrong_signature(request)
        if self.expired:
            raise checks.expired(request)
        if self.world.closed(request.region):
            raise checks.in_closed_region(request)
        lacking = checks.missing_permission(request, self.forbidden)
        if lacking:
            raise checks.denied(request, self.world.arn(), lacking)

    def pid_of(self, peer: tuple[str, int]) -> int:
        networks = ["self", *([str(self._lab.laptop.pid)] if self._lab else [])]
        return client_pid(peer, self._server.socket.getsockname(), networks)

    def _tick(self) -> None:
        while not self._closed.wait(TICK_S):
            self.settle()

    # ---- the end

    def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        self._ticker.join()
        self._server.end()
        if self.world.bodies:
            self.world.bodies.close()
            self.problems += self.world.bodies.problems
        (self.folder / "requests").write_text("".join(f"{one}\n" for one in self.requests))
        self.world.moto.end()
        assert not self.problems, "inside the fake:\n" + "\n".join(self.problems)

    def __enter__(self) -> FakeAWS:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()


@cache
def _session() -> Any:
    """One for all: what it has read of a service is not read again."""
    import boto3

    return boto3.Session()
