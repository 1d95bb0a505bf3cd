"""What listens on a node during a probe, answers those who know its secret, and shows that it is this node."""

from __future__ import annotations

import errno
import hmac
import random
import select
import socket
import threading
import time

from gpuops.agent.network import LOWEST_PORT, TRIES, ephemeral_start
from gpuops.agent.strangers import PAUSE_S, WAITING, Crowd, line, proof

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
