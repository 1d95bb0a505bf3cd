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
from typing import Any, Sequence

from gpuops.agent.network.interfaces import DISCARD_PORT, port_candidates, source_address
from gpuops.agent.network.unauthenticated import ACCEPT_PAUSE_S, BACKLOG, Strangers, proof, read_line
from gpuops.agent.node import Emit, Node, Refusal

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
NO_ROUTE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.ENETDOWN)

_LOCK = threading.Lock()
_listening: dict[str, Listeners] = {}
"""Listeners that may still be open, by their probe's secret."""


class Listeners:
    """The listening sockets of one node during a probe."""

    def __init__(self, node: int, token: str) -> None:
        self._node = node
        self._token = token
        self._sockets: list[socket.socket] = []
        self._wake, self._alarm = socket.socketpair()
        self._thread: threading.Thread | None = None
        self._strangers = Strangers()

    def open(self, port: int) -> int:
        """Listen on a port (0: of the kernel's choice). Returns the port. Raises OSError."""
        listener = _bound(port)
        self._sockets.append(listener)
        listener.setblocking(False)  # a caller that has vanished must not block `accept`
        listener.listen(BACKLOG)
        return int(listener.getsockname()[1])

    def open_fresh(self) -> int:
        """Listen on a port that a launch may use. Raises OSError."""
        problem = OSError("all are taken")
        for number in port_candidates():
            try:
                return self.open(number)
            except OSError as error:
                problem = error
        raise problem

    def begin(self, for_s: float) -> None:
        """Answer callers for `for_s` seconds, in a thread."""
        self._thread = threading.Thread(target=self._serve, args=(for_s,), name="probe", daemon=True)
        self._thread.start()

    def is_over(self) -> bool:
        """Whether the time is over."""
        return self._thread is not None and not self._thread.is_alive()

    def close(self) -> None:
        """Close the ports; they are free when this returns."""
        self._alarm.close()
        if self._thread is not None:
            self._thread.join()
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
                    if not self._strangers.accept(listener, self._serve_caller, "probe hears"):
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
        for end in (*self._sockets, self._wake, self._alarm):
            end.close()


def _bound(port: int) -> socket.socket:
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


def _measure_burst(connection: socket.socket, wanted: int) -> tuple[int, float]:
    """How many bytes came after the first chunk, and in how many seconds."""
    first = len(connection.recv(CHUNK_BYTES))
    began = last = time.monotonic()
    total = first
    while total < wanted and last - began < BURST_LIMIT_S:
        chunk = len(connection.recv(CHUNK_BYTES))
        if not chunk:
            break
        total += chunk
        last = time.monotonic()
    return total - first, last - began


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
    own, token = int(args["from"]), str(args["token"])
    count = BURST_BYTES if args.get("burst") else 0
    deadline = time.monotonic() + float(args["limit_s"])
    targets = [
        [
            Attempt(own, int(target["node"]), str(address), int(port), token, count, deadline)
            for address, port in target["places"]
        ]
        for target in args["targets"]
    ]
    for attempts in targets:
        for attempt in attempts:
            threading.Thread(target=attempt.run, name="probe reaches", daemon=True).start()
    settle_s = float(args.get("settle_s") or args["limit_s"])
    while time.monotonic() < deadline and not all(_is_settled(attempts, settle_s) for attempts in targets):
        time.sleep(REACH_POLL_INTERVAL_S)
    return {"tried": [attempt.result() for attempts in targets for attempt in attempts]}


def _is_settled(attempts: Sequence[Attempt], settle_s: float) -> bool:
    """Whether the attempts at one target need no more time. Where an address has answered on one port, its other ports
    are always waited for: the node is only busy."""
    waiting = [attempt for attempt in attempts if attempt.ended is None]
    good = {one.address: one.ended for one in attempts if one.ended is not None and one.state == "ok"}
    if not waiting or not good:
        return not waiting
    is_busy = any(attempt.address in good for attempt in waiting)
    return not is_busy and time.monotonic() - min(good.values()) > settle_s


class Attempt:
    """One attempt to reach one place."""

    def __init__(self, own: int, node: int, address: str, port: int, token: str, count: int, deadline: float) -> None:
        self._own = own
        self._node = node
        self._place = (address, port)
        self.address = address
        self._token = token
        self._count = count
        self._deadline = deadline
        self._ms: float | None = None
        self._mb_s: float | None = None
        self._why = ""
        self.state = "timed-out"
        self.ended: float | None = None
        """When the state was known (monotonic)."""

    def result(self) -> dict[str, Any]:
        address, port = self._place
        # An attempt that is not over counts as timed out, even if it ends while this is being sent.
        state = self.state if self.ended is not None else "timed-out"
        return {
            "node": self._node, "address": address, "port": port, "state": state, "why": self._why,
            "source": _source(address), "ms": self._ms, "mb_s": self._mb_s,
        }  # fmt: skip

    def run(self) -> None:
        """Connect, and verify which node answers."""
        state = "failed"
        try:
            state = self._try()
        except socket.timeout:
            state = "timed-out"
        except ConnectionRefusedError:
            state = "refused"
        except OSError as error:
            state = (
                "no-route" if error.errno in NO_ROUTE else "timed-out" if error.errno == errno.ETIMEDOUT else "failed"
            )
            self._why = error.strerror or str(error)
        finally:
            self.state = state
            self.ended = time.monotonic()

    def _try(self) -> str:
        family = socket.AF_INET6 if ":" in self._place[0] else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as connection:
            began = time.monotonic()
            connection.settimeout(max(0.01, self._deadline - began))
            connection.connect(self._place)
            self._ms = round((time.monotonic() - began) * 1000, 3)
            # Closed by a reset: a port in TIME_WAIT could not be used by the launch.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return self._ask(connection)

    def _ask(self, connection: socket.socket) -> str:
        nonce = os.urandom(16).hex()
        mine = proof(self._token, "reaches", self._own, nonce)
        connection.sendall(b"%s %d %s %s %d\n" % (HELLO, self._own, nonce.encode(), mine.encode(), self._count))
        expected = proof(self._token, "listens", self._node, nonce).encode()
        try:
            if not hmac.compare_digest(read_line(connection, self._deadline).strip(), expected):
                return "other"
        except ConnectionError:
            return "other"  # it disconnected
        if self._count:
            self._measure(connection)
        return "ok"

    def _measure(self, connection: socket.socket) -> None:
        """Send until the other side has counted enough. A failure here is none of the attempt: nothing is measured."""
        chunk = memoryview(bytes(CHUNK_BYTES))
        left = self._count
        deadline = time.monotonic() + 2 * BURST_LIMIT_S
        try:
            while left > 0 and not select.select([connection], [], [], 0)[0] and time.monotonic() < deadline:
                if select.select([connection], [connection], [], BURST_LIMIT_S)[1]:
                    left -= connection.send(chunk[:left])
            count, seconds = read_line(connection, deadline).split()
            self._mb_s = round(int(count) / max(float(seconds), 1e-6) / 1e6, 1) if int(count) else None
        except (OSError, ValueError):
            pass


def _source(address: str) -> str:
    """This node's own address towards another; empty where there is no route."""
    try:
        return source_address(socket.AF_INET6 if ":" in address else socket.AF_INET, (address, DISCARD_PORT))
    except OSError:
        return ""
