"""What listens on a node during a probe, answers those who know its secret, and shows that it is this node."""

from __future__ import annotations

import errno
import hmac
import os
import random
import select
import socket
import struct
import threading
import time
from typing import Any, Sequence

from gpuops.agent.network.interfaces import LOWEST_PORT, TRIES, ephemeral_start
from gpuops.agent.network.strangers import PAUSE_S, WAITING, Crowd, line, proof
from gpuops.agent.node import Node, Refusal

HELLO = b"gpuops-probe"
HEAR_S = 15.0
"""How long one who connects may take to say what is due, and how long to close."""
BURST = 4 << 20
"""Bytes sent to see how fast the way is."""
BURST_S = 1.0


class Ear:
    """What listens on one node during a probe."""

    def __init__(self, node: int, token: str) -> None:
        self._node = node
        self._token = token
        self._sockets: list[socket.socket] = []
        self._wake, self._alarm = socket.socketpair()
        self._thread: threading.Thread | None = None
        self._strangers = Crowd()

    def open(self, port: int) -> int:
        """Listen on a port; 0: the kernel's choice. The port. Raises OSError."""
        listener = _bound(port)
        self._sockets.append(listener)
        listener.setblocking(False)  # who connects and vanishes must not be waited for
        listener.listen(WAITING)
        return int(listener.getsockname()[1])

    def open_fresh(self) -> int:
        """Listen on a port that a launch may use. Raises OSError."""
        problem = OSError("all are taken")
        for number in random.SystemRandom().sample(range(LOWEST_PORT, ephemeral_start()), TRIES):
            try:
                return self.open(number)
            except OSError as error:
                problem = error
        raise problem

    def begin(self, for_s: float) -> None:
        """Answer for so long, in a thread."""
        self._thread = threading.Thread(target=self._serve, args=(for_s,), name="probe", daemon=True)
        self._thread.start()

    def over(self) -> bool:
        """Whether its time is over."""
        return self._thread is not None and not self._thread.is_alive()

    def close(self) -> None:
        """When this returns, the ports are free."""
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
                    if not self._strangers.let_in(listener, self._hear, "probe hears"):
                        time.sleep(PAUSE_S)
        finally:
            self._shut()

    def _hear(self, connection: socket.socket) -> None:
        try:
            with connection:
                self._converse(connection)
        except (OSError, ValueError):
            pass  # no node of ours, or one that gave up
        finally:
            self._strangers.leave(connection)

    def _converse(self, connection: socket.socket) -> None:
        hello, sender, nonce, proven, count = line(connection, time.monotonic() + HEAR_S).split()
        expected = proof(self._token, "reaches", int(sender), nonce.decode())
        if hello != HELLO or not hmac.compare_digest(expected.encode(), proven):
            return
        self._strangers.leave(connection)
        connection.settimeout(HEAR_S)
        connection.sendall(proof(self._token, "listens", self._node, nonce.decode()).encode() + b"\n")
        if int(count):
            connection.sendall(b"%d %.6f\n" % _taken(connection, min(int(count), BURST)))
        connection.recv(1)  # the one who asked closes first: none of our ports is left waiting

    def _shut(self) -> None:
        for one in (*self._sockets, self._wake, self._alarm):
            one.close()


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


def _bind(one: socket.socket, address: str, port: int) -> socket.socket:
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((address, port))
    except OSError:
        one.close()
        raise
    return one


def _taken(connection: socket.socket, wanted: int) -> tuple[int, float]:
    """Bytes that came after the first of them, and in how many seconds."""
    first = len(connection.recv(1 << 18))
    began = last = time.monotonic()
    total = first
    while total < wanted and last - began < BURST_S:
        chunk = len(connection.recv(1 << 18))
        if not chunk:
            break
        total += chunk
        last = time.monotonic()
    return total - first, last - began


LISTEN_S = 60.0
"""The longest time that listeners stay, whatever is asked for."""
LOOK_S = 0.01
NO_WAY = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.ENETDOWN)

_LOCK = threading.Lock()
_listening: dict[str, Ear] = {}
"""By their probe's secret, those that may still be there."""


def listen(_node: Node, args: dict[str, Any], _emit: Any) -> dict[str, Any]:
    """Verb: `{fresh: [ports], ephemeral: [ports]}` that now listen, on all addresses, for `for_s` or until `release`.

    `fresh`: so many of those that a launch uses, below the ephemeral ones; `ephemeral`: so many of the kernel's
    choice, as gloo and NCCL take them. Raises Refusal(`no-port`).
    """
    ear = Ear(int(args["node"]), str(args["token"]))
    try:
        fresh = [ear.open_fresh() for _ in range(int(args.get("fresh") or 0))]
        ephemeral = [ear.open(0) for _ in range(int(args.get("ephemeral") or 0))]
    except OSError as error:
        ear.close()
        raise Refusal("no-port", f"no port could be opened: {error}", "check the node's network") from error
    ear.begin(min(float(args["for_s"]), LISTEN_S))
    with _LOCK:
        for token in [token for token, older in _listening.items() if older.over()]:
            del _listening[token]
        _listening[str(args["token"])] = ear
    return {"fresh": fresh, "ephemeral": ephemeral}


def release(_node: Node, args: dict[str, Any], _emit: Any) -> dict[str, Any]:
    """Verb: the listeners of a probe go; when this answers, their ports are free."""
    with _LOCK:
        ear = _listening.pop(str(args["token"]), None)
    if ear is not None:
        ear.close()
    return {}


def reach(_node: Node, args: dict[str, Any], _emit: Any) -> dict[str, Any]:
    """Verb: try all places of all `targets` (`[{node, places: [[address, port]…]}]`) at once.

    `{tried: [{node, address, port, state, why, source, ms, mb_s}]}`; `state` is `ok`, `refused`, `timed-out`,
    `no-route`, `other` (not the node that was meant) or `failed`; `why`: the system's words; `source`: our own
    address towards it, where known; `mb_s` is measured with `burst`. Takes `limit_s`; for a target that was
    reached some way, its other addresses have `settle_s` more.
    """
    own, token = int(args["from"]), str(args["token"])
    count = BURST if args.get("burst") else 0
    deadline = time.monotonic() + float(args["limit_s"])
    targets = [
        [Try(own, int(target["node"]), str(address), int(port), token, count, deadline) for address, port in places]
        for target in args["targets"]
        for places in [target["places"]]
    ]
    for tries in targets:
        for one in tries:
            threading.Thread(target=one.run, name="probe reaches", daemon=True).start()
    settle_s = float(args.get("settle_s") or args["limit_s"])
    while time.monotonic() < deadline and not all(_settled(tries, settle_s) for tries in targets):
        time.sleep(LOOK_S)
    return {"tried": [one.result() for tries in targets for one in tries]}


def _settled(tries: Sequence[Try], settle_s: float) -> bool:
    """Whether nothing more is to be learned of one target. An address that has answered on one port is waited for on
    the others: its node is only busy."""
    waiting = [one for one in tries if one.ended is None]
    good = {one.address: one.ended for one in tries if one.ended is not None and one.state == "ok"}
    if not waiting or not good:
        return not waiting
    return not any(one.address in good for one in waiting) and time.monotonic() - min(good.values()) > settle_s


class Try:
    """One attempt at one place."""

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
        """When it was known (monotonic)."""

    def result(self) -> dict[str, Any]:
        address, port = self._place
        # What is not known by now counts as silence, whatever comes of it while this is sent.
        state = self.state if self.ended is not None else "timed-out"
        return {
            "node": self._node, "address": address, "port": port, "state": state, "why": self._why,
            "source": source(address), "ms": self._ms, "mb_s": self._mb_s,
        }  # fmt: skip

    def run(self) -> None:
        """Connect, and make sure of who answers."""
        state = "failed"
        try:
            state = self._try()
        except socket.timeout:
            state = "timed-out"
        except ConnectionRefusedError:
            state = "refused"
        except OSError as error:
            state = "no-route" if error.errno in NO_WAY else "timed-out" if error.errno == errno.ETIMEDOUT else "failed"
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
            # Closed at once and for good: a port that is left waiting could not be used by the launch.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return self._ask(connection)

    def _ask(self, connection: socket.socket) -> str:
        nonce = os.urandom(16).hex()
        mine = proof(self._token, "reaches", self._own, nonce)
        connection.sendall(b"%s %d %s %s %d\n" % (HELLO, self._own, nonce.encode(), mine.encode(), self._count))
        expected = proof(self._token, "listens", self._node, nonce).encode()
        try:
            if not hmac.compare_digest(line(connection, self._deadline).strip(), expected):
                return "other"
        except ConnectionError:
            return "other"  # it ended the conversation
        if self._count:
            self._measure(connection)
        return "ok"

    def _measure(self, connection: socket.socket) -> None:
        """Send until the other side has seen enough. What fails here measures nothing, and is no failure."""
        piece = memoryview(bytes(1 << 18))
        left = self._count
        deadline = time.monotonic() + 2 * BURST_S
        try:
            while left > 0 and not select.select([connection], [], [], 0)[0] and time.monotonic() < deadline:
                if select.select([connection], [connection], [], BURST_S)[1]:
                    left -= connection.send(piece[:left])
            count, seconds = line(connection, deadline).split()
            self._mb_s = round(int(count) / max(float(seconds), 1e-6) / 1e6, 1) if int(count) else None
        except (OSError, ValueError):
            pass


def source(address: str) -> str:
    """Our own address that the kernel uses towards another; empty where there is no way."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return ""
