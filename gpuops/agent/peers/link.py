"""The gang link: the nodes of one run exchange events and heartbeats without the client.

Node 0 (the head) listens, the others (members) connect. Each side first proves that it knows the run's secret, over a
nonce of the other; then they exchange signed messages (peers.authenticated_channel): heartbeats, and events that node
0 repeats to all. Events of the time before a connection are sent once it exists; a member that reconnects receives all
events again.
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
from functools import partial
from typing import Any, Callable, Mapping, NamedTuple

from gpuops.agent.network.unauthenticated_connections import (
    ACCEPT_PAUSE_S,
    MAX_WAITING_CONNECTIONS,
    Strangers,
    close,
    proof,
    read_line,
)
from gpuops.agent.node import log
from gpuops.agent.peers.authenticated_channel import Channel, session_keys
from gpuops.agent.peers.events import RunEnded
from gpuops.agent.run_documents import Outcome, Reason
from gpuops.agent.workers import WORKERS

Message = Mapping[str, Any]
"""An event or a heartbeat as JSON (peers.events)."""
Receive = Callable[[Message], None]
MEMBER, GIVE, TAKE = "member", "give", "take"
"""Roles of a node that connects: to exchange events, or to hand over results (peers.result_handover)."""
MAX_EVENTS, MAX_EVENT_BYTES = 2000, 1 << 16
"""Of one node during a run, and of each event: an agent sends some dozens, of some hundred bytes."""
RECONNECT_INTERVAL_S = 0.2
MIN_TIMEOUT_S = 0.001
NONCE = re.compile("[0-9a-f]{64}")


class Times(NamedTuple):
    """In seconds; tests shorten them."""

    beat: float = 2.0
    """Between two heartbeats."""
    silence: float = 15.0
    """A node without a heartbeat for this long counts as lost."""
    join: float = 60.0
    """Limit for the nodes to find each other."""
    proof: float = 10.0
    """Limit for both proofs together."""


TIMES = Times()


class Link(ABC):
    """What both ends share. `receive` is called, from threads of the link, with each event of another node."""

    def __init__(self, node: int, nodes: int, secret: str, receive: Receive, times: Times) -> None:
        self._node = node
        self._nodes = nodes
        self._secret = secret
        self._receive = receive
        self._times = times
        self._lock = threading.RLock()
        self._events: list[Message] = []
        """All events so far, for members that connect later."""
        self._ended_nodes: set[int] = set()
        """Nodes whose run has ended, or that are lost."""
        self._has_ended = threading.Event()
        """Set once this node's run has ended."""
        self.visit: Callable[[int, str, Channel], None] | None = None
        """Serves a node that connects to node 0 in the role GIVE or TAKE."""
        self.open_until = 0.0
        """Until when nodes may connect for that (monotonic)."""

    @abstractmethod
    def start(self) -> None:
        """The run begins: connect to the others."""

    @abstractmethod
    def release_port(self) -> None:
        """The run did not begin: release the port."""

    @abstractmethod
    def send_event(self, event: Message) -> None:
        """Send an event to all other nodes."""

    def call_head(self, role: str) -> Channel | None:  # noqa: ARG002 (members override it)
        """Open another connection to node 0, in this role; None where that fails."""
        return None

    def close(self) -> None:
        """This node's run has ended. Events sent before are still delivered; this does not wait for it."""
        self._has_ended.set()

    def _note_end(self, event: Message) -> None:
        if event.get("event") == "ended":
            self._ended_nodes.add(event["node"])

    def _is_valid_event(self, message: Message) -> bool:
        """Whether it is an event of a node of this run; other messages are heartbeats."""
        return isinstance(message.get("event"), str) and message.get("node") in range(self._nodes)

    def _deliver(self, event: Message) -> None:
        """Call `receive`. An event that it cannot handle must not end the link's thread."""
        try:
            self._receive(event)
        except Exception:
            log(f"an event of another node cannot be handled: {event}\n{traceback.format_exc()}")

    def _lost_event(self, node: int, say: str) -> Message:
        return RunEnded(node, Outcome.LOST, Reason("gang", say)).document()


class Head(Link):
    """Node 0's end."""

    def __init__(
        self, node: int, nodes: int, endpoint: tuple[str, int], secret: str, receive: Receive, times: Times = TIMES
    ) -> None:
        """Listens at once. Raises OSError where it cannot."""
        super().__init__(node, nodes, secret, receive, times)
        family = socket.AF_INET6 if ":" in endpoint[0] else socket.AF_INET
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind((endpoint[0].strip("[]"), endpoint[1]))
            self._listener.listen(MAX_WAITING_CONNECTIONS)
        except OSError:
            self._listener.close()
            raise
        self._port_closed = threading.Event()
        self._strangers = Strangers()
        self._members: dict[int, Channel] = {}
        self._last_heard: dict[int, float] = {}
        """When each member was last heard (monotonic)."""
        self._event_counts: dict[int, int] = {}

    def start(self) -> None:
        """Accept the others, and watch them until all have ended."""
        # A member that never joins counts as lost once the time to join is over.
        assumed = time.monotonic() + self._times.join - self._times.silence
        self._last_heard = {member: assumed for member in range(self._nodes) if member != self._node}
        WORKERS.start(self._accept, "gang")
        WORKERS.start(self._watch, "gang watch")

    def release_port(self) -> None:
        """Close the port."""
        self._port_closed.set()
        close(self._listener)

    def send_event(self, event: Message) -> None:
        """Send an event to all other nodes."""
        self._repeat(event, self._node)

    def _repeat(self, event: Message, origin: int) -> None:
        with self._lock:
            self._note_end(event)
            self._events.append(event)
            channels = [channel for member, channel in self._members.items() if member != origin]
        for channel in channels:
            channel.send(event)

    def _accept(self) -> None:
        while not self._port_closed.is_set():
            if not self._strangers.accept(self._listener, self._admit, "gang member"):
                self._port_closed.wait(ACCEPT_PAUSE_S)

    def _admit(self, connection: socket.socket) -> None:
        try:
            member, role, channel = self._prove(connection)
        except Exception:  # a stranger, whatever it sends
            close(connection)
            return
        finally:
            self._strangers.remove(connection)
        if role != MEMBER:
            if self.visit is not None:
                self.visit(member, role, channel)
            channel.close()
            return
        with self._lock:
            older = self._members.get(member)
            self._members[member] = channel
            events = list(self._events)
        if older is not None:
            older.close()
        for event in events:
            channel.send(event)
        self._listen(member, channel)

    def _prove(self, connection: socket.socket) -> tuple[int, str, Channel]:
        """Which node it is, in which role, and the channel to it. Raises any Exception for a stranger."""
        deadline, nonce = time.monotonic() + self._times.proof, os.urandom(32).hex()
        _send_line(connection, {"nonce": nonce}, deadline)
        answer = _receive_line(connection, deadline)
        member, role, member_nonce = answer["node"], answer["role"], _parse_nonce(answer)
        if type(member) is not int or member not in self._last_heard or role not in (MEMBER, GIVE, TAKE):
            raise ValueError("no node of this run")
        _check_proof(answer, proof(self._secret, role, member, nonce))
        keys = session_keys(self._secret, role, member, nonce, member_nonce)
        _send_line(connection, {"proof": proof(self._secret, "head", member, member_nonce)}, deadline)
        return member, role, Channel(connection, keys.head, keys.member, self._times.proof)

    def _listen(self, member: int, channel: Channel) -> None:
        for message in channel.messages():
            if self._is_valid_event(message) and message not in self._events:
                if not self._is_within_limits(member, message):
                    break
                self._repeat(message, member)
                self._deliver(message)
        channel.close()

    def _is_within_limits(self, member: int, event: Message) -> bool:
        """Whether the member may send this event: all are stored, and repeated to all."""
        self._event_counts[member] = self._event_counts.get(member, 0) + 1
        return self._event_counts[member] <= MAX_EVENTS and len(json.dumps(event)) <= MAX_EVENT_BYTES

    def _watch(self) -> None:
        while not (self._has_ended.is_set() and self._ended_nodes >= set(self._last_heard)):
            time.sleep(self._times.beat)
            with self._lock:
                channels = dict(self._members)
            for member, channel in channels.items():
                self._last_heard[member] = channel.heard
                channel.send({"beat": time.time()})
            for member in self._unheard_members():
                say = f"node{member} has not been heard for {self._times.silence:.0f} s"
                if member not in channels:
                    say = f"node{member} did not join the run within {self._times.join:.0f} s"
                self._repeat(self._lost_event(member, say), self._node)
                self._receive(self._lost_event(member, say))
        while time.monotonic() < self.open_until:
            time.sleep(self._times.beat)
        self.release_port()
        with self._lock:
            channels = dict(self._members)  # again: one may have connected since
        for channel in channels.values():
            channel.close()

    def _unheard_members(self) -> list[int]:
        limit = time.monotonic() - self._times.silence
        return [
            member for member, heard in self._last_heard.items() if heard < limit and member not in self._ended_nodes
        ]


class Member(Link):
    """Any other node's end."""

    def __init__(
        self, node: int, nodes: int, endpoint: tuple[str, int], secret: str, receive: Receive, times: Times = TIMES
    ) -> None:
        super().__init__(node, nodes, secret, receive, times)
        self._head_endpoint = (endpoint[0].strip("[]"), endpoint[1])
        self._channel: Channel | None = None
        self._head_has_closed = threading.Event()
        """Set when node 0 has closed its end, after this node's run has ended."""

    def start(self) -> None:
        """Connect to node 0, and reconnect whenever the connection breaks."""
        WORKERS.start(self._stay_connected, "gang")

    def release_port(self) -> None:
        """Nothing was opened before `start`."""

    def send_event(self, event: Message) -> None:
        """Send an event to all other nodes."""
        with self._lock:
            self._note_end(event)
            self._events.append(event)
            channel = self._channel
        if channel is not None:
            channel.send(event)

    def _stay_connected(self) -> None:
        limit_s, since = self._times.join, time.monotonic()
        while True:
            channel = self._connect()
            if channel is not None:
                self._exchange(channel)
                limit_s, since = self._times.silence, channel.heard
                channel.close()
            if 0 in self._ended_nodes or (self._has_ended.is_set() and channel is not None):
                return
            if time.monotonic() - since > limit_s:
                self._receive(self._lost_event(0, f"node0 has not been heard for {limit_s:.0f} s"))
                return
            time.sleep(min(RECONNECT_INTERVAL_S, self._times.beat))

    def call_head(self, role: str) -> Channel | None:
        """Open another connection to node 0, in this role; None where that fails."""
        return self._connect(role)

    def _connect(self, role: str = MEMBER) -> Channel | None:
        deadline = time.monotonic() + self._times.proof
        try:
            connection = socket.create_connection(self._head_endpoint, timeout=self._times.proof)
        except OSError:
            return None
        try:
            return self._prove(connection, role, deadline)
        except Exception:  # another program listens there, or node 0 disconnected
            close(connection)
            return None

    def _prove(self, connection: socket.socket, role: str, deadline: float) -> Channel:
        """The channel to node 0. Raises any Exception where another program answers."""
        challenge, nonce = _parse_nonce(_receive_line(connection, deadline)), os.urandom(32).hex()
        mine = proof(self._secret, role, self._node, challenge)
        _send_line(connection, {"node": self._node, "role": role, "nonce": nonce, "proof": mine}, deadline)
        _check_proof(_receive_line(connection, deadline), proof(self._secret, "head", self._node, nonce))
        keys = session_keys(self._secret, role, self._node, challenge, nonce)
        return Channel(connection, keys.member, keys.head, self._times.proof)

    def _exchange(self, channel: Channel) -> None:
        with self._lock:
            self._channel = channel
            events = list(self._events)
        for event in events:
            channel.send(event)
        WORKERS.start(partial(self._send_heartbeats, channel), "gang beat")
        for message in channel.messages():
            if self._is_valid_event(message):
                self._note_end(message)
                self._deliver(message)
        with self._lock:
            self._channel = None
        if self._has_ended.is_set():
            self._head_has_closed.set()

    def _send_heartbeats(self, channel: Channel) -> None:
        """Send heartbeats until the connection breaks or falls silent, or this node's run has ended."""
        while channel.send({"beat": time.time()}) and not self._has_ended.wait(self._times.beat):
            if time.monotonic() - channel.heard > self._times.silence:
                break
        if self._has_ended.is_set():
            channel.finish()
            self._head_has_closed.wait(self._times.silence)
        channel.close()


# Before the proofs: lines of JSON.


def _send_line(connection: socket.socket, message: Message, deadline: float) -> None:
    connection.settimeout(max(MIN_TIMEOUT_S, deadline - time.monotonic()))
    connection.sendall(json.dumps(message).encode() + b"\n")


def _receive_line(connection: socket.socket, deadline: float) -> Message:
    """A stranger's next message. Raises OSError, ValueError, RecursionError."""
    message = json.loads(read_line(connection, deadline))
    if not isinstance(message, dict):
        raise ValueError("no message of the gang link")
    return message


def _parse_nonce(message: Message) -> str:
    """Raises ValueError, KeyError, TypeError for a message without a nonce."""
    if not NONCE.fullmatch(message["nonce"]):
        raise ValueError("no nonce")
    return str(message["nonce"])


def _check_proof(answer: Message, expected: str) -> None:
    """Raises ValueError, KeyError, TypeError for a wrong proof."""
    if not hmac.compare_digest(answer["proof"], expected):
        raise ValueError("wrong proof")
