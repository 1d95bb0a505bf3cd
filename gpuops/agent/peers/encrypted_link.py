"""One encrypted connection between two nodes that hold a certificate made for it alone.

The client makes the certificate and its key for one pair of nodes and one push, and gives them to both over their own
logins. Each shows it to the other, and trusts no other (TLS): a stranger can neither take a node's place, nor read or
alter what passes. Strangers at the port are disconnected, and wait for nobody else.
"""

from __future__ import annotations

import queue
import select
import socket
import ssl
import tempfile
import threading
import time
from functools import partial
from typing import Sequence

from gpuops.agent.network.probe import bind_all_addresses
from gpuops.agent.network.unauthenticated_connections import (
    ACCEPT_PAUSE_S,
    MAX_WAITING_CONNECTIONS,
    Strangers,
    close,
    read_line,
)
from gpuops.agent.peers.stream_onward import cut
from gpuops.agent.workers import WORKERS

GREETING = b"gpuops-link 1\n"
"""Said by the listening node, to the one connection that it keeps."""
KEY_BEGINS = "-----BEGIN PRIVATE KEY-----"
HANDSHAKE_LIMIT_S = 5.0
STAGGER_S = 0.2
"""A node's next address is tried so much later: the first ones are preferred."""
POLL_INTERVAL_S = 0.2


def make_context(credentials: str, listens: bool, folder: str) -> ssl.SSLContext:
    """For one end of a connection. `credentials`: the certificate and then its key, as PEM; `folder`: where a file
    that only this user may read exists for a moment.

    Raises OSError, also for credentials that are none.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if listens else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False  # the certificate is this connection's own: whoever holds its key is meant
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=credentials.partition(KEY_BEGINS)[0])
    with tempfile.NamedTemporaryFile("w", dir=folder) as file:  # `ssl` reads a key from a file alone
        file.write(credentials)
        file.flush()
        context.load_cert_chain(file.name)
    return context


class Listener:
    """A port on all addresses of this node, open until the other node has come, or the time is over."""

    def __init__(self, context: ssl.SSLContext, for_s: float) -> None:
        """Raises OSError."""
        self._context = context
        self._socket = bind_all_addresses(0)
        self._socket.setblocking(False)  # a caller that has vanished must not block `accept`
        self._socket.listen(MAX_WAITING_CONNECTIONS)
        self.port = int(self._socket.getsockname()[1])
        self._deadline = time.monotonic() + for_s
        self._strangers = Strangers()
        self._changed = threading.Condition()
        self._is_closed = False
        self._peer: ssl.SSLSocket | None = None
        WORKERS.start(self._serve, "link listener")

    def peer(self, limit_s: float) -> ssl.SSLSocket | None:
        """The connection to the other node; None where it has not come within the limit."""
        with self._changed:
            self._changed.wait_for(lambda: self._peer is not None, limit_s)
            return self._peer

    def close(self) -> None:
        """Close the port, and end a connection that has been made (`cut`)."""
        with self._changed:
            self._is_closed = True
            peer = self._peer
        if peer is not None:
            cut(peer)

    def _serve(self) -> None:
        with self._socket:
            while not self._is_closed and self._peer is None and time.monotonic() < self._deadline:
                if not select.select([self._socket], [], [], POLL_INTERVAL_S)[0]:
                    continue
                if not self._strangers.accept(self._socket, self._greet, "link caller"):
                    time.sleep(ACCEPT_PAUSE_S)

    def _greet(self, connection: socket.socket) -> None:
        try:
            with connection:  # TLS gets a handle of its own: a stranger is disconnected through this one
                connection.settimeout(HANDSHAKE_LIMIT_S)
                self._keep(self._context.wrap_socket(connection.dup(), server_side=True))
        except (OSError, ValueError):
            pass  # a stranger, or a node that chose another of our addresses
        finally:
            self._strangers.remove(connection)

    def _keep(self, link: ssl.SSLSocket) -> None:
        with self._changed:
            is_first = self._peer is None and not self._is_closed
            if is_first:
                link.sendall(GREETING)
                link.settimeout(None)
                self._peer = link
                self._changed.notify_all()
        if not is_first:
            close(link)


def connect(places: Sequence[tuple[str, int]], context: ssl.SSLContext, limit_s: float) -> ssl.SSLSocket:
    """The connection to the node that listens at one of its `places`, by the first that answers.

    Raises OSError where none does within the limit: why not, at the first place.
    """
    deadline = time.monotonic() + limit_s
    outcomes: queue.SimpleQueue[tuple[int, ssl.SSLSocket | Exception]] = queue.SimpleQueue()
    settled = threading.Event()

    def attempt(number: int) -> None:
        if settled.wait(number * STAGGER_S):
            return
        try:
            outcomes.put((number, _call(places[number], context, deadline)))
        except (OSError, ValueError) as error:
            outcomes.put((number, error))

    for number in range(len(places)):
        WORKERS.start(partial(attempt, number), "link caller")
    failures: dict[int, Exception] = {}
    try:
        while len(failures) < len(places):
            number, outcome = outcomes.get(timeout=max(0.0, deadline - time.monotonic()))
            if isinstance(outcome, ssl.SSLSocket):
                return outcome
            failures[number] = outcome
    except queue.Empty:
        pass
    finally:
        settled.set()
    raise OSError(None, str(failures.get(0) or "no answer"))


def _call(place: tuple[str, int], context: ssl.SSLContext, deadline: float) -> ssl.SSLSocket:
    """Raises OSError."""
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise socket.timeout("no answer")
    link = context.wrap_socket(socket.create_connection(place, left_s))
    try:
        if read_line(link, deadline) != GREETING:
            raise ConnectionError("another program answers")
        link.settimeout(None)
        return link
    except OSError:
        link.close()
        raise
