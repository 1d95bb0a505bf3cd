"""Verbs `listen`, `release` and `reach`: can every node reach every other, before anything is started?

A node listens for a short time, on the ports that a run will use; the others try every address that it may be
reached at. What answers must prove, by the probe's secret, that it is the node that was meant: a container
bridge's address is the same on many machines, and leads each of them to itself.

-> gpuops-probe FROM NONCE PROOF BYTES     and so many bytes, where a node measures how fast they travel
<- PROOF                                   then, for bytes: COUNT SECONDS
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

from gpuops.agent.ear import BURST, BURST_S, HELLO, Ear
from gpuops.agent.node import Node, Refusal
from gpuops.agent.strangers import line, proof

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
