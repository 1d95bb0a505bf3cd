"""What a provisioner makes of answers that do not come. For providers that are reached by `http://`, which are fakes:
their address is put behind an endpoint that passes requests on and can be told to lose the answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from gpuops.commands.prove.fault_injection import ContractBroken, NotRunnable
from gpuops.commands.prove.sandbox import Sandbox
from gpuops.core.errors import ProviderError, Unknown
from gpuops.core.models import MACHINE, Journal, Resource
from gpuops.ledger.store import LedgerJournal

FORWARD_TIMEOUT_S = 60.0
"""How long the fake may take to answer."""
OF_THE_CONNECTION = ("connection", "content-length", "keep-alive", "transfer-encoding")
"""Headers of one connection, which are not passed on. `Host` is: requests may be signed with it."""


class FaultyEndpoint(ThreadingHTTPServer):
    """A server on the loopback in place of the one at `address` (`host:port`), which passes requests on.

    is_losing   what is asked for is done there, and the connection ends without an answer
    status      not 0: nothing is done there, and this is answered, in text (429, 500)
    delay_s     before anything is done
    """

    daemon_threads = True

    def __init__(self, address: str) -> None:
        super().__init__(("127.0.0.1", 0), _Forwarder)
        self.address = address
        self.is_losing = False
        self.status = 0
        self.delay_s = 0.0


class _Forwarder(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyEndpoint

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        headers = {name: value for name, value in self.headers.items() if name.lower() not in OF_THE_CONNECTION}
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        time.sleep(self.server.delay_s)
        if self.server.status:
            self._answer(self.server.status, {"Content-Type": "text/plain"}, b"on purpose")
            return
        connection = HTTPConnection(self.server.address, timeout=FORWARD_TIMEOUT_S)
        try:
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, HTTPException):
            self.close_connection = True
            return
        finally:
            connection.close()
        if self.server.is_losing:
            self.close_connection = True
            return
        self._answer(answer.status, dict(answer.getheaders()), content)

    def _answer(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in OF_THE_CONNECTION:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@dataclass(frozen=True)
class FaultyEndpoints:
    """One for each address. `env`: the environment that leads to them."""

    env: Mapping[str, str]
    servers: Sequence[FaultyEndpoint]

    def lose(self, is_losing: bool) -> None:
        for server in self.servers:
            server.is_losing = is_losing

    def fail(self, status: int) -> None:
        """Answer everything with a status, and do nothing; 0: no more."""
        for server in self.servers:
            server.status = status


@contextmanager
def losing_endpoints(env: Mapping[str, str], variables: Sequence[str]) -> Iterator[FaultyEndpoints]:
    """Endpoints before the addresses that `variables` (a provisioner's `surroundings`) hold. Raises NotRunnable where
    none is `http://`."""
    urls = {name: urlsplit(env[name]) for name in variables if env.get(name, "").startswith("http://")}
    if not urls:
        raise NotRunnable(f"no variable of `surroundings` ({', '.join(variables)}) holds an address with http://")
    servers = {address: FaultyEndpoint(address) for address in {url.netloc for url in urls.values()}}
    for server in servers.values():
        threading.Thread(target=server.serve_forever, daemon=True, name="endpoint that loses answers").start()
    there = {
        name: url._replace(netloc=f"127.0.0.1:{servers[url.netloc].server_port}").geturl() for name, url in urls.items()
    }
    try:
        yield FaultyEndpoints({**env, **there}, [*servers.values()])
    finally:
        for server in servers.values():
            server.shutdown()
            server.server_close()


@dataclass
class _LosingJournal:
    """A journal after whose first machine no answer comes."""

    journal: Journal
    endpoints: FaultyEndpoints
    has_lost: bool = False

    def will(self, kind: str, mark: str, token: str, region: str) -> None:
        self.journal.will(kind, mark, token, region)
        self.has_lost = self.has_lost or kind == MACHINE
        self.endpoints.lose(self.has_lost)

    def got(self, resource: Resource) -> None:
        self.journal.got(resource)


def lost_answers(sandbox: Sandbox, endpoints: FaultyEndpoints) -> str:
    """No answer is never taken for a refusal, for an empty list or for an end. The provider is reached by way of
    `endpoints`."""
    row = sandbox.record_cluster("w")
    offer = sandbox.list_offers()[0]
    sandbox.start_bill(row.name, offer.per_hour)
    journal = _LosingJournal(LedgerJournal(sandbox.ctx.ledger, row.id), endpoints)
    try:
        sandbox.create_first(offer, sandbox.make_intent(row), journal)
    except Unknown:
        pass
    except ProviderError as error:
        raise ContractBroken(
            f"the answer to the launch was lost, and create raised {type(error).__name__} ({error.message}): "
            "Unknown is promised, it may have happened"
        ) from error
    else:
        if not journal.has_lost:
            raise NotRunnable("no machine was announced alone: ask for one node")
        raise ContractBroken("the answer to the launch was lost, and create returned all the same")
    finally:
        endpoints.lose(False)
    made = sandbox.poll_until(sandbox.core.settle_s, lambda: sandbox.list_cluster_resources(row))
    machines = [resource for resource in made if resource.is_machine]
    if not journal.has_lost or not machines:
        raise ContractBroken("a machine was made whose answer was lost, and no list has it")
    endpoints.lose(True)
    try:
        _must_raise("list_owned", lambda: sandbox.ask_once("list_owned", sandbox.ctx.owner, [machines[0].region]))
        _must_raise("describe", lambda: sandbox.ask_once("describe", machines[0]))
        _must_raise("destroy", lambda: sandbox.ask_once("destroy", made))
        endpoints.lose(False)
        endpoints.fail(500)
        _must_raise("list_owned", lambda: sandbox.ask_once("list_owned", sandbox.ctx.owner, [machines[0].region]))
    finally:
        endpoints.lose(False)
        endpoints.fail(0)
    sandbox.end_cluster(row.name)
    return "a launch, a list, a look and an end without an answer were called unknown, and what was made was found"


def _must_raise(call: str, ask: Callable[[], Any]) -> None:
    try:
        answer = ask()
    except ProviderError:
        return
    raise ContractBroken(f"no answer came, and {call} gave {answer!r}: it must raise")
