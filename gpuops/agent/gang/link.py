"""The gang link: how the nodes of one run tell each other without the client.

Node 0 listens, the others connect. Both sides prove the run's secret over a nonce of the other's before
anything else is heard; after that it is messages that are signed one by one (wire.py): heartbeats, and events that
node 0 repeats to all. An event said before a link stands is said when it does; a member that comes back hears all of it
again.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import socket
import threading
import time
import traceback
from abc import ABC, abstractmethod
from typing import Any, Callable, Mapping, NamedTuple

from gpuops.agent.gang.channel import Wire, session
from gpuops.agent.network.strangers import PAUSE_S, WAITING, Crowd, close, line, proof
from gpuops.agent.node import log

Hear = Callable[[Mapping[str, Any]], None]
GIVE, TAKE = "give", "take"
"""Roles of those who connect for another purpose than to be told (handover.py)."""
EVENTS, EVENT_LIMIT = 2000, 1 << 16
"""Of one node during a run, and bytes of each: an agent says some dozens, of some hundred bytes."""
NONCE = re.compile("[0-9a-f]{64}")


class Times(NamedTuple):
    """In seconds; tests shorten them."""

    beat: float = 2.0
    silence: float = 15.0
    """Without a heartbeat for this long a node counts as lost."""
    join: float = 60.0
    """How long the nodes may take to find each other."""
    proof: float = 10.0
    """For all of it, of either side."""


TIMES = Times()


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

    def _is_event(self, message: Mapping[str, Any]) -> bool:
        """Whether it is of a node of this run; the others are heartbeats."""
        return isinstance(message.get("event"), str) and message.get("node") in range(self._nodes)

    def _pass_on(self, event: Mapping[str, Any]) -> None:
        """To whoever runs this node. What it cannot make sense of ends no thread of ours."""
        try:
            self._hear(event)
        except Exception:
            log(f"what another node says makes no sense: {event}\n{traceback.format_exc()}")

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
            self._listener.listen(WAITING)
        except OSError:
            self._listener.close()
            raise
        self._shut = threading.Event()
        self._strangers = Crowd()
        self._members: dict[int, Wire] = {}
        self._heard: dict[int, float] = {}
        self._counts: dict[int, int] = {}

    def begin(self) -> None:
        """Let the others in, and watch over them until all have ended."""
        due = time.monotonic() + self._times.join - self._times.silence
        self._heard = {member: due for member in range(self._nodes) if member != self._node}
        threading.Thread(target=self._accept, name="gang", daemon=True).start()
        threading.Thread(target=self._watch, name="gang watch", daemon=True).start()

    def drop(self) -> None:
        """The run did not begin after all."""
        self._shut.set()
        close(self._listener)

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
        while not self._shut.is_set():
            if not self._strangers.let_in(self._listener, self._admit, "gang member"):
                self._shut.wait(PAUSE_S)

    def _admit(self, connection: socket.socket) -> None:
        try:
            member, role, wire = self._prove(connection)
        except Exception:  # whatever a stranger says: it is one, and nothing else comes of it
            close(connection)
            return
        finally:
            self._strangers.leave(connection)
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

    def _prove(self, connection: socket.socket) -> tuple[int, str, Wire]:
        """Which node it is, in which role, and the way to it. Raises any Exception for who is none of ours."""
        deadline, nonce = time.monotonic() + self._times.proof, os.urandom(32).hex()
        _say(connection, {"nonce": nonce}, deadline)
        answer = _said(connection, deadline)
        member, role, theirs = answer["node"], answer["role"], _nonce(answer)
        if type(member) is not int or member not in self._heard or role not in ("member", GIVE, TAKE):
            raise ValueError("no node of this run")
        _check(answer, proof(self._secret, role, member, nonce))
        keys = session(self._secret, role, member, nonce, theirs)
        _say(connection, {"proof": proof(self._secret, "head", member, theirs)}, deadline)
        return member, role, Wire(connection, keys.head, keys.member, self._times.proof)

    def _listen(self, member: int, wire: Wire) -> None:
        for message in wire.messages():
            if self._is_event(message) and message not in self._said:
                if not self._is_borne(member, message):
                    break
                self._repeat(message, member)
                self._pass_on(message)
        wire.close()

    def _is_borne(self, member: int, event: Mapping[str, Any]) -> bool:
        """Whether it is one of so many that an agent says: all are kept, and repeated to all."""
        self._counts[member] = self._counts.get(member, 0) + 1
        return self._counts[member] <= EVENTS and len(json.dumps(event)) <= EVENT_LIMIT

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
        self.drop()
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
        deadline = time.monotonic() + self._times.proof
        try:
            connection = socket.create_connection(self._place, timeout=self._times.proof)
        except OSError:
            return None
        try:
            return self._prove(connection, role, deadline)
        except Exception:  # not our head: somebody else listens there, or it went away
            close(connection)
            return None

    def _prove(self, connection: socket.socket, role: str, deadline: float) -> Wire:
        """The way to node 0. Raises any Exception where it is not node 0 that answers."""
        challenge, nonce = _nonce(_said(connection, deadline)), os.urandom(32).hex()
        mine = proof(self._secret, role, self._node, challenge)
        _say(connection, {"node": self._node, "role": role, "nonce": nonce, "proof": mine}, deadline)
        _check(_said(connection, deadline), proof(self._secret, "head", self._node, nonce))
        keys = session(self._secret, role, self._node, challenge, nonce)
        return Wire(connection, keys.member, keys.head, self._times.proof)

    def _converse(self, wire: Wire) -> None:
        with self._lock:
            self._wire = wire
            said = list(self._said)
        for event in said:
            wire.send(event)
        beats = threading.Thread(target=self._beat, args=(wire,), name="gang beat", daemon=True)
        beats.start()
        for message in wire.messages():
            if self._is_event(message):
                self._note(message)
                self._pass_on(message)
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


def _say(connection: socket.socket, words: Mapping[str, Any], deadline: float) -> None:
    connection.settimeout(max(0.001, deadline - time.monotonic()))
    connection.sendall(json.dumps(words).encode() + b"\n")


def _said(connection: socket.socket, deadline: float) -> dict[str, Any]:
    """What a stranger says. Raises OSError, ValueError, RecursionError."""
    words = json.loads(line(connection, deadline))
    if not isinstance(words, dict):
        raise ValueError("nothing of ours was said")
    return words


def _nonce(words: Mapping[str, Any]) -> str:
    """Raises ValueError, KeyError, TypeError where there is none."""
    if not NONCE.fullmatch(words["nonce"]):
        raise ValueError("nothing of ours was said")
    return str(words["nonce"])


def _check(answer: Mapping[str, Any], expected: str) -> None:
    """Raises ValueError, KeyError, TypeError for a proof that is none."""
    if not hmac.compare_digest(answer["proof"], expected):
        raise ValueError("not one of ours")
