"""The probe before a launch on several machines: every node tries to reach every other, at all its addresses.

Verb `listen` opens ports on a node, `reach` tries those of other nodes, `release` closes them. Listeners answer only
nodes that know the probe's secret, and prove which node they are: one address may exist on several machines.
"""

from __future__ import annotations

import errno
import hmac
import os
import select
import socket
import struct
import threading
import time
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, Sequence

from gpuops.agent.network.interfaces import DISCARD_PORT, port_candidates, source_address
from gpuops.agent.network.unauthenticated_connections import (
    ACCEPT_PAUSE_S,
    MAX_WAITING_CONNECTIONS,
    Strangers,
    proof,
    read_line,
)
from gpuops.agent.node import Emit, Node, Refusal
from gpuops.agent.workers import WORKERS, Job

HELLO = b"gpuops-probe"
CONVERSATION_LIMIT_S = 15.0
"""Time that a caller may take for its line, and again for each later step."""
BURST_BYTES = 4 << 20
"""Sent to measure a path's bandwidth."""
BURST_LIMIT_S = 1.0
CHUNK_BYTES = 1 << 18
MAX_LISTEN_S = 60.0
"""Listeners close after this time, whatever was requested."""
REACH_POLL_INTERVAL_S = 0.01
NO_ROUTE_ERRORS = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.ENETDOWN)

MIN_CONNECT_TIMEOUT_S = 0.01

_LOCK = threading.Lock()
_listening: dict[str, Listeners] = {}
"""Listeners that may still be open, by their probe's secret."""


class ReachState(str, Enum):
    """The result of one attempt; docs/protocol.md names the values."""

    OK = "ok"
    REFUSED = "refused"
    TIMED_OUT = "timed-out"
    NO_ROUTE = "no-route"
    OTHER = "other"
    """Another program, or another node, answered."""
    FAILED = "failed"


class Caller(NamedTuple):
    """What all attempts of one `reach` have in common."""

    node: int
    token: str
    """The probe's secret."""
    burst_bytes: int
    """Sent to each place to measure the bandwidth; 0: nothing is measured."""
    deadline: float
    """Monotonic."""


class Listeners:
    """The listening sockets of one node during a probe."""

    def __init__(self, node: int, token: str) -> None:
        self._node = node
        self._token = token
        self._sockets: list[socket.socket] = []
        self._wake, self._alarm = socket.socketpair()
        self._job: Job | None = None
        self._strangers = Strangers()

    def open(self, port: int) -> int:
        """Listen on a port (0: of the kernel's choice). Returns the port. Raises OSError."""
        listener = bind_all_addresses(port)
        self._sockets.append(listener)
        listener.setblocking(False)  # a caller that has vanished must not block `accept`
        listener.listen(MAX_WAITING_CONNECTIONS)
        return int(listener.getsockname()[1])

    def open_fresh(self) -> int:
        """Listen on a port that a launch may use. Raises OSError."""
        last_error = OSError("all are taken")
        for number in port_candidates():
            try:
                return self.open(number)
            except OSError as error:
                last_error = error
        raise last_error

    def begin(self, for_s: float) -> None:
        """Answer callers for `for_s` seconds, in a thread."""
        self._job = WORKERS.start(partial(self._serve, for_s), "probe")

    def is_over(self) -> bool:
        """Whether the time is over."""
        return self._job is not None and not self._job.is_alive()

    def close(self) -> None:
        """Close the ports; they are free when this returns."""
        self._alarm.close()
        if self._job is not None:
            self._job.join()
        else:
            self._shut()

    def _serve(self, for_s: float) -> None:
        deadline = time.monotonic() + for_s
        try:
            while True:
                left = deadline - time.monotonic()
                ready = select.select([self._wake, *self._sockets], [], [], left)[0] if left > 0 else []
                if not ready or self._wake in ready:
                    return
                for listener in ready:
                    if not self._strangers.accept(listener, self._serve_caller, "probe caller"):
                        time.sleep(ACCEPT_PAUSE_S)
        finally:
            self._shut()

    def _serve_caller(self, connection: socket.socket) -> None:
        try:
            with connection:
                self._converse(connection)
        except (OSError, ValueError):
            pass  # a stranger, or a node that gave up
        finally:
            self._strangers.remove(connection)

    def _converse(self, connection: socket.socket) -> None:
        hello, sender, nonce, proven, count = read_line(connection, time.monotonic() + CONVERSATION_LIMIT_S).split()
        expected = proof(self._token, "reaches", int(sender), nonce.decode())
        if hello != HELLO or not hmac.compare_digest(expected.encode(), proven):
            return
        self._strangers.remove(connection)
        connection.settimeout(CONVERSATION_LIMIT_S)
        connection.sendall(proof(self._token, "listens", self._node, nonce.decode()).encode() + b"\n")
        if int(count):
            connection.sendall(b"%d %.6f\n" % _measure_burst(connection, min(int(count), BURST_BYTES)))
        connection.recv(1)  # the caller closes first, so that our port is left in no TIME_WAIT

    def _shut(self) -> None:
        for opened in (*self._sockets, self._wake, self._alarm):
            opened.close()


def bind_all_addresses(port: int) -> socket.socket:
    """A socket on all addresses of both families, or of IPv4 alone where there is no IPv6. Raises OSError."""
    try:
        both = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        both.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        return _bind(both, "::", port)
    except OSError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.ENOPROTOOPT):
            raise
        return _bind(socket.socket(socket.AF_INET, socket.SOCK_STREAM), "0.0.0.0", port)


def _bind(listener: socket.socket, address: str, port: int) -> socket.socket:
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
    except OSError:
        listener.close()
        raise
    return listener


def _measure_burst(connection: socket.socket, expected_bytes: int) -> tuple[int, float]:
    """How many bytes came after the first chunk, and in how many seconds."""
    first = total = len(connection.recv(CHUNK_BYTES))
    started_at = ended_at = time.monotonic()
    while total < expected_bytes and ended_at - started_at < BURST_LIMIT_S:
        chunk = len(connection.recv(CHUNK_BYTES))
        if not chunk:
            break
        total += chunk
        ended_at = time.monotonic()
    return total - first, ended_at - started_at


def listen(_node: Node, args: dict[str, Any], _emit: Emit) -> dict[str, Any]:
    """Verb: open ports on all addresses for `for_s` or until `release`: `{fresh: [ports], ephemeral: [ports]}`.

    `fresh`: how many below the ephemeral ones, as a launch uses them; `ephemeral`: how many of the kernel's choice, as
    gloo and NCCL use them. Raises Refusal(`no-port`).
    """
    listeners = Listeners(int(args["node"]), str(args["token"]))
    try:
        fresh = [listeners.open_fresh() for _ in range(int(args.get("fresh") or 0))]
        ephemeral = [listeners.open(0) for _ in range(int(args.get("ephemeral") or 0))]
    except OSError as error:
        listeners.close()
        raise Refusal("no-port", f"no port could be opened: {error}", "check the node's network") from error
    listeners.begin(min(float(args["for_s"]), MAX_LISTEN_S))
    with _LOCK:
        for token in [token for token, older in _listening.items() if older.is_over()]:
            del _listening[token]
        _listening[str(args["token"])] = listeners
    return {"fresh": fresh, "ephemeral": ephemeral}


def release(_node: Node, args: dict[str, Any], _emit: Emit) -> dict[str, Any]:
    """Verb: close the listeners of a probe; their ports are free when this answers."""
    with _LOCK:
        listeners = _listening.pop(str(args["token"]), None)
    if listeners is not None:
        listeners.close()
    return {}


def reach(_node: Node, args: dict[str, Any], _emit: Emit) -> dict[str, Any]:
    """Verb: try all places of all `targets` (`[{node, places: [[address, port]…]}]`) at once, for `limit_s` at most.

    Answers `{tried: [{node, address, port, state, why, source, ms, mb_s}]}`. `state`: `ok`, `refused`, `timed-out`,
    `no-route`, `other` (another node answered) or `failed`; `why`: the system's message; `source`: this node's own
    address towards the place; `mb_s`: measured with `burst`. Once a target was reached at one address, its other
    addresses have `settle_s` more.
    """
    deadline = time.monotonic() + float(args["limit_s"])
    caller = Caller(int(args["from"]), str(args["token"]), BURST_BYTES if args.get("burst") else 0, deadline)
    targets = [
        [Attempt(caller, int(target["node"]), str(address), int(port)) for address, port in target["places"]]
        for target in args["targets"]
    ]
    for attempts in targets:
        for attempt in attempts:
            WORKERS.start(attempt.run, "probe reaches")
    settle_s = float(args.get("settle_s") or args["limit_s"])
    while time.monotonic() < deadline and not all(_is_settled(attempts, settle_s) for attempts in targets):
        time.sleep(REACH_POLL_INTERVAL_S)
    return {"tried": [attempt.result() for attempts in targets for attempt in attempts]}


def _is_settled(attempts: Sequence[Attempt], settle_s: float) -> bool:
    """Whether the attempts at one target need no more time. Where an address has answered on one port, its other ports
    are always waited for: the node is only busy."""
    pending = [attempt for attempt in attempts if attempt.ended_at is None]
    reached = {
        attempt.address: attempt.ended_at
        for attempt in attempts
        if attempt.ended_at is not None and attempt.state == ReachState.OK
    }
    if not pending or not reached:
        return not pending
    is_busy = any(attempt.address in reached for attempt in pending)
    return not is_busy and time.monotonic() - min(reached.values()) > settle_s


class Attempt:
    """One attempt to reach a node at one of its addresses and ports."""

    def __init__(self, caller: Caller, node: int, address: str, port: int) -> None:
        self._caller = caller
        self._node = node
        self.address = address
        self._port = port
        self._family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._ms: float | None = None
        self._mb_s: float | None = None
        self._why = ""
        self.state = ReachState.TIMED_OUT
        self.ended_at: float | None = None
        """When the state was known (monotonic)."""

    def result(self) -> dict[str, Any]:
        # An attempt that is not over counts as timed out, even if it ends while this is being sent.
        state = self.state if self.ended_at is not None else ReachState.TIMED_OUT
        return {
            "node": self._node, "address": self.address, "port": self._port, "state": state, "why": self._why,
            "source": self._source(), "ms": self._ms, "mb_s": self._mb_s,
        }  # fmt: skip

    def run(self) -> None:
        """Connect, and verify which node answers."""
        state = ReachState.FAILED
        try:
            state = self._connect()
        except socket.timeout:
            state = ReachState.TIMED_OUT
        except OSError as error:
            state = _state_of(error)
            self._why = "" if state == ReachState.REFUSED else error.strerror or str(error)
        finally:
            self.state = state
            self.ended_at = time.monotonic()

    def _connect(self) -> ReachState:
        with socket.socket(self._family, socket.SOCK_STREAM) as connection:
            started_at = time.monotonic()
            connection.settimeout(max(MIN_CONNECT_TIMEOUT_S, self._caller.deadline - started_at))
            connection.connect((self.address, self._port))
            self._ms = round((time.monotonic() - started_at) * 1000, 3)
            # Closed by a reset: a port in TIME_WAIT could not be used by the launch.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return self._verify(connection)

    def _verify(self, connection: socket.socket) -> ReachState:
        """Prove which node we are, check which one answers, and measure the bandwidth if that was requested."""
        caller, nonce = self._caller, os.urandom(16).hex()
        own_proof = proof(caller.token, "reaches", caller.node, nonce)
        line = (HELLO, caller.node, nonce.encode(), own_proof.encode(), caller.burst_bytes)
        connection.sendall(b"%s %d %s %s %d\n" % line)
        expected = proof(caller.token, "listens", self._node, nonce).encode()
        try:
            if not hmac.compare_digest(read_line(connection, caller.deadline).strip(), expected):
                return ReachState.OTHER
        except ConnectionError:
            return ReachState.OTHER  # it disconnected
        if caller.burst_bytes:
            self._measure(connection)
        return ReachState.OK

    def _measure(self, connection: socket.socket) -> None:
        """Send until the other side has counted enough. A failure leaves the state as it is: nothing is measured."""
        chunk = memoryview(bytes(CHUNK_BYTES))
        left = self._caller.burst_bytes
        deadline = time.monotonic() + 2 * BURST_LIMIT_S
        try:
            while left > 0 and not select.select([connection], [], [], 0)[0] and time.monotonic() < deadline:
                if select.select([connection], [connection], [], BURST_LIMIT_S)[1]:
                    left -= connection.send(chunk[:left])
            count, seconds = read_line(connection, deadline).split()
            self._mb_s = round(int(count) / max(float(seconds), 1e-6) / 1e6, 1) if int(count) else None
        except (OSError, ValueError):
            pass

    def _source(self) -> str:
        """This node's own address towards the other; empty where there is no route."""
        try:
            return source_address(self._family, (self.address, DISCARD_PORT))
        except OSError:
            return ""


def _state_of(error: OSError) -> ReachState:
    if isinstance(error, ConnectionRefusedError):
        return ReachState.REFUSED
    if error.errno in NO_ROUTE_ERRORS:
        return ReachState.NO_ROUTE
    return ReachState.TIMED_OUT if error.errno == errno.ETIMEDOUT else ReachState.FAILED
