"""The gang link: how the nodes of one run tell each other without the client.

Node 0 listens, the others connect. Both sides prove the run's secret over a nonce of the other's before
anything else is heard; after that it is JSON lines: heartbeats, and events that node 0 repeats to all.
An event said before a link stands is said when it does; a member that comes back hears all of it again.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import threading
import time
from abc import ABC, abstractmethod
from typing import Any, Callable, Iterator, Mapping, NamedTuple

Hear = Callable[[Mapping[str, Any]], None]
GIVE, TAKE = "give", "take"
"""Roles of those who connect for another purpose than to be told (handover.py)."""
LINE_LIMIT = 65536


class Times(NamedTuple):
    """In seconds; tests shorten them."""

    beat: float = 2.0
    silence: float = 15.0
    """Without a heartbeat for this long a node counts as lost."""
    join: float = 60.0
    """How long the nodes may take to find each other."""
    proof: float = 10.0


TIMES = Times()


def proof(secret: str, role: str, node: int, nonce: str) -> str:
    """What a side that knows the secret answers to a nonce; role and number keep it from being played back."""
    words = f"{role} {node} {nonce}"
    return hmac.new(secret.encode(), words.encode(), hashlib.sha256).hexdigest()


class Wire:
    """One connection: JSON lines both ways. A peer that does not take our bytes in time is cut off."""

    def __init__(self, connection: socket.socket, times: Times) -> None:
        self._socket = connection
        self._socket.settimeout(times.proof)
        self._write = threading.Lock()
        self._buffer = b""
        self.heard = time.monotonic()

    def send(self, message: Mapping[str, Any]) -> bool:
        """Whether it went out; the connection is closed otherwise."""
        try:
            with self._write:
                self._socket.sendall(json.dumps(message).encode() + b"\n")
            return True
        except OSError:
            self.close()
            return False

    def receive(self) -> dict[str, Any] | None:
        """The next message; None when the connection has ended, or says what is not ours. Raises socket.timeout."""
        while b"\n" not in self._buffer:
            chunk = self._socket.recv(4096)
            self._buffer += chunk
            if not chunk or len(self._buffer) > LINE_LIMIT:
                return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        self.heard = time.monotonic()
        try:
            message = json.loads(line)
        except ValueError:
            return None
        return message if isinstance(message, dict) else None

    def messages(self) -> Iterator[dict[str, Any]]:
        """Every message until the connection ends. Silence is judged by `heard`, elsewhere."""
        while True:
            try:
                message = self.receive()
            except socket.timeout:
                continue
            except OSError:
                return
            if message is None:
                return
            yield message

    def limit(self, seconds: float) -> None:
        """For how long the other side may be silent from now on."""
        self._socket.settimeout(max(0.1, seconds))

    def write(self, data: bytes) -> None:
        """Bytes that are no message. Raises OSError."""
        with self._write:
            self._socket.sendall(data)

    def read(self, most: int) -> bytes:
        """The next bytes that are no message, at least one. Raises OSError."""
        data, self._buffer = self._buffer[:most], self._buffer[most:]
        data = data or self._socket.recv(most)
        if not data:
            raise ConnectionError("the other node has gone")
        return data

    def finish(self) -> None:
        """No more from us; what was sent arrives before the other side notices."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the other side was faster

    def close(self) -> None:
        _close(self._socket)


def _close(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)  # closing alone does not wake a thread that waits in it
    except OSError:
        pass
    connection.close()


class Link(ABC):
    """What both ends share. `hear` is called, from threads of ours, with each event of another node."""

    def __init__(self, node: int, nodes: int, secret: str, hear: Hear, times: Times) -> None:
        self._node = node
        self._nodes = nodes
        self._secret = secret
        self._hear = hear
        self._times = times
        self._lock = threading.RLock()
        self._said: list[Mapping[str, Any]] = []
        self._over: set[int] = set()
        """Nodes whose run has ended, or that are lost."""
        self._closing = threading.Event()
        self.visit: Callable[[int, str, Wire], None] | None = None
        """Sees to one who comes to node 0 to give or to take."""
        self.open_until = 0.0
        """Until when somebody may come for that (monotonic)."""

    @abstractmethod
    def begin(self) -> None:
        """The run begins: find the others."""

    @abstractmethod
    def drop(self) -> None:
        """The run did not begin after all."""

    @abstractmethod
    def tell(self, event: Mapping[str, Any]) -> None:
        """Say something to all other nodes."""

    def call_head(self, role: str) -> Wire | None:  # noqa: ARG002 (for those who have one)
        """Another connection to node 0, in this role; None where there is none."""
        return None

    def close(self) -> None:
        """This node's run has ended. What was told is still delivered; nobody waits for it."""
        self._closing.set()

    def _note(self, event: Mapping[str, Any]) -> None:
        if event.get("event") == "ended":
            self._over.add(event["node"])

    def _lost(self, node: int, say: str) -> dict[str, Any]:
        return {"event": "ended", "node": node, "outcome": "lost", "reason": {"kind": "gang", "say": say}}


class Head(Link):
    """Node 0's end."""

    def __init__(
        self, node: int, nodes: int, place: tuple[str, int], secret: str, hear: Hear, times: Times = TIMES
    ) -> None:
        """Listens at once. Raises OSError when it cannot."""
        super().__init__(node, nodes, secret, hear, times)
        family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind((place[0].strip("[]"), place[1]))
            self._listener.listen(64)
        except OSError:
            self._listener.close()
            raise
        self._members: dict[int, Wire] = {}
        self._heard: dict[int, float] = {}

    def begin(self) -> None:
        """Let the others in, and watch over them until all have ended."""
        due = time.monotonic() + self._times.join - self._times.silence
        self._heard = {member: due for member in range(self._nodes) if member != self._node}
        threading.Thread(target=self._accept, name="gang", daemon=True).start()
        threading.Thread(target=self._watch, name="gang watch", daemon=True).start()

    def drop(self) -> None:
        """The run did not begin after all."""
        _close(self._listener)

    def tell(self, event: Mapping[str, Any]) -> None:
        """Say something to all other nodes."""
        self._repeat(event, self._node)

    def _repeat(self, event: Mapping[str, Any], origin: int) -> None:
        with self._lock:
            self._note(event)
            self._said.append(event)
            wires = [wire for member, wire in self._members.items() if member != origin]
        for wire in wires:
            wire.send(event)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed: the run is over
            wire = Wire(connection, self._times)
            threading.Thread(target=self._admit, args=(wire,), name="gang member", daemon=True).start()

    def _admit(self, wire: Wire) -> None:
        try:
            member, role = self._prove(wire)
        except (OSError, ValueError, KeyError, TypeError):
            wire.close()
            return
        if role != "member":
            if self.visit is not None:
                self.visit(member, role, wire)
            wire.close()
            return
        with self._lock:
            older = self._members.get(member)
            self._members[member] = wire
            said = list(self._said)
        if older is not None:
            older.close()
        for event in said:
            wire.send(event)
        self._listen(member, wire)

    def _prove(self, wire: Wire) -> tuple[int, str]:
        """Which node it is, in which role. Raises ValueError for who is none of ours."""
        nonce = os.urandom(32).hex()
        wire.send({"nonce": nonce})
        answer = wire.receive() or {}
        member, role, theirs = int(answer["node"]), str(answer.get("role") or "member"), str(answer["nonce"])
        expected = proof(self._secret, role, member, nonce)
        if (
            role not in ("member", GIVE, TAKE)
            or member not in self._heard
            or not hmac.compare_digest(expected, str(answer["proof"]))
        ):
            raise ValueError("not one of ours")
        wire.send({"proof": proof(self._secret, "head", member, theirs)})
        return member, role

    def _listen(self, member: int, wire: Wire) -> None:
        for message in wire.messages():
            if "event" in message and message not in self._said:
                self._repeat(message, member)
                self._hear(message)
        wire.close()

    def _watch(self) -> None:
        while not (self._closing.is_set() and self._over >= set(self._heard)):
            time.sleep(self._times.beat)
            with self._lock:
                wires = dict(self._members)
            for member, wire in wires.items():
                self._heard[member] = wire.heard
                wire.send({"beat": time.time()})
            for member in self._silent():
                say = f"node{member} has not been heard for {self._times.silence:.0f} s"
                if member not in wires:
                    say = f"node{member} did not join the run within {self._times.join:.0f} s"
                self._repeat(self._lost(member, say), self._node)
                self._hear(self._lost(member, say))
        while time.monotonic() < self.open_until:
            time.sleep(self._times.beat)
        _close(self._listener)
        with self._lock:
            wires = dict(self._members)  # one may just be coming
        for wire in wires.values():
            wire.close()

    def _silent(self) -> list[int]:
        limit = time.monotonic() - self._times.silence
        return [member for member, heard in self._heard.items() if heard < limit and member not in self._over]


class Member(Link):
    """Any other node's end."""

    def __init__(
        self, node: int, nodes: int, place: tuple[str, int], secret: str, hear: Hear, times: Times = TIMES
    ) -> None:
        super().__init__(node, nodes, secret, hear, times)
        self._place = (place[0].strip("[]"), place[1])
        self._wire: Wire | None = None
        self._parted = threading.Event()

    def begin(self) -> None:
        """Look for node 0, and keep looking when the connection breaks."""
        threading.Thread(target=self._stay, name="gang", daemon=True).start()

    def drop(self) -> None:
        """Nothing was opened yet."""

    def tell(self, event: Mapping[str, Any]) -> None:
        """Say something to all other nodes."""
        with self._lock:
            self._note(event)
            self._said.append(event)
            wire = self._wire
        if wire is not None:
            wire.send(event)

    def _stay(self) -> None:
        limit_s, since = self._times.join, time.monotonic()
        while True:
            wire = self._connect()
            if wire is not None:
                self._converse(wire)
                limit_s, since = self._times.silence, wire.heard
                wire.close()
            if self._head_is_over() or (self._closing.is_set() and wire is not None):
                return
            if time.monotonic() - since > limit_s:
                self._hear(self._lost(0, f"node0 has not been heard for {limit_s:.0f} s"))
                return
            time.sleep(min(0.2, self._times.beat))

    def call_head(self, role: str) -> Wire | None:
        """Another connection to node 0, in this role; None where there is none."""
        return self._connect(role)

    def _connect(self, role: str = "member") -> Wire | None:
        try:
            wire = Wire(socket.create_connection(self._place, timeout=self._times.proof), self._times)
        except OSError:
            return None
        try:
            if self._prove(wire, role):
                return wire
        except (OSError, ValueError, KeyError, TypeError):
            pass  # not our head: somebody else listens there, or it went away
        wire.close()
        return None

    def _prove(self, wire: Wire, role: str) -> bool:
        challenge = wire.receive() or {}
        nonce = os.urandom(32).hex()
        mine = proof(self._secret, role, self._node, str(challenge["nonce"]))
        wire.send({"node": self._node, "role": role, "nonce": nonce, "proof": mine})
        answer = wire.receive() or {}
        return hmac.compare_digest(proof(self._secret, "head", self._node, nonce), str(answer["proof"]))

    def _converse(self, wire: Wire) -> None:
        with self._lock:
            self._wire = wire
            said = list(self._said)
        for event in said:
            wire.send(event)
        beats = threading.Thread(target=self._beat, args=(wire,), name="gang beat", daemon=True)
        beats.start()
        for message in wire.messages():
            if "event" in message:
                self._note(message)
                self._hear(message)
        with self._lock:
            self._wire = None
        if self._closing.is_set():
            self._parted.set()

    def _beat(self, wire: Wire) -> None:
        """Heartbeats, until the connection breaks, falls silent, or this node has said its last word."""
        while wire.send({"beat": time.time()}) and not self._closing.wait(self._times.beat):
            if time.monotonic() - wire.heard > self._times.silence:
                break
        if self._closing.is_set():
            wire.finish()
            self._parted.wait(self._times.silence)
        wire.close()

    def _head_is_over(self) -> bool:
        return 0 in self._over
