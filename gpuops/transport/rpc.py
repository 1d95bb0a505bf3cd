"""The client's end of the conversation with an agent: JSON lines, many requests at once.

    -> {"id": 7, "verb": "tail", "args": {…}}
    <- {"id": 7, "item": {…}}            any number, for verbs that stream
    <- {"id": 7, "ok": {…}}              or  {"id": 7, "error": {"kind", "say", "hint", "data"}}
    -> {"id": 7, "verb": "cancel"}       the stream ends with an error of kind `cancelled`

A shell's start-up file may print before the agent does: everything up to the magic line is noise. Every message after
it is converted to a shape of `transport.schemas`; one of another shape fails its request at once.
"""

from __future__ import annotations

import itertools
import json
import queue
import re
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from gpuops.agent.wire_format import MAGIC, Whole
from gpuops.agent.workers import WORKERS
from gpuops.core.errors import ConnectionLost, MalformedAnswer, NoAnswer, NodeError, NodeRefused
from gpuops.core.format import one_line, span
from gpuops.core.models import Resource
from gpuops.transport.connection import STDERR_LIMIT_S, Channel, Connection, NoMark, read_to_mark

MAX_LINE_BYTES = 64 << 20
"""The longest message that is read: a plan for half a million files fits."""
GREETING_TIMEOUT_S = 60.0
"""Time limit for the magic line: a login, then up to 30 s for an agent that is being restarted."""
HEARTBEAT_INTERVAL_S = 30.0
"""Where nothing else is sent for this long, an empty line is: `connect --silence` ends without any."""
MAX_SHOWN_CHARS = 200
"""An error message quotes at most this much of the output of a program that is no agent."""
ANSWER_TIMEOUT_S = 60.0
"""Time limit for an agent's answer, and for the silence between the items of a stream. Messages that no caller takes
for this long end the connection."""
MAX_UNREAD_BYTES = 8 << 20
"""Reading stops while callers have this much to take: the node waits, and nothing is lost."""
MAX_UNREAD_BYTES_WHILE_WAITING = MAX_LINE_BYTES
"""The same while a caller waits for an answer that lies behind what others have not taken."""
MESSAGE_ID = re.compile(rb'\s*\{\s*"id"\s*:\s*(\d{1,15})\s*[,}]')
"""The beginning of each message: the request that it answers is known even where the rest cannot be parsed."""


class NodePaths:
    """The paths on a node that a client needs to start programs there."""

    def __init__(self, machine: Resource, cluster: str, index: int, artefact: str) -> None:
        """Raises NodeError where the provisioner left out how the machine is reached."""
        missing = [name for name in ("root", "python") if not machine.data.get(name)] + ["artefact"] * (not artefact)
        if missing:
            raise NodeError(
                f"the provisioner does not say of {machine.name}: {', '.join(missing)}",
                "this is a bug in the provisioner: report it to whoever wrote it",
            )
        root = str(machine.data["root"])
        self.python = str(machine.data["python"])
        self.root = root
        self.agent = f"{root}/agent/{artefact}.pyz"
        self.node = f"{root}/{cluster}/n{index}"

    def argv(self, mode: str, *arguments: str) -> list[str]:
        """The command line of one of the agent's modes (`connect`, `receive`, `send`, `init`)."""
        return [self.python, "-IS", self.agent, mode, "--node", self.node, *arguments]


@dataclass(frozen=True)
class Encoded:
    """An argument of a request as the JSON text that is sent: a long one, made once for several nodes."""

    text: str


def encode_request(line_id: int, verb: str, args: Mapping[str, Any]) -> bytes:
    """The line of a request."""
    given = (f"{json.dumps(name)}: {one.text if isinstance(one, Encoded) else json.dumps(one)}"
             for name, one in args.items())  # fmt: skip
    return f'{{"id": {line_id}, "verb": {json.dumps(verb)}, "args": {{{", ".join(given)}}}}}\n'.encode()


Items = Generator[Any, None, Any]
"""The items of a request; the generator returns the last message."""


class Stream(Iterator[Any]):
    """A request under way. `answer` is its last message once the items have ended, empty before."""

    def __init__(self, items: Items) -> None:
        self._items = items
        self.answer: Any = {}

    def __next__(self) -> Any:
        try:
            return next(self._items)
        except StopIteration as end:
            self.answer = end.value or self.answer
            raise

    def close(self) -> None:
        self._items.close()


class Programs:
    """Starts the agent's bulk modes on a node, as programs of their own: they need no running agent."""

    def __init__(self, connection: Connection, paths: NodePaths) -> None:
        self.label = connection.label
        self.connection = connection
        self.paths = paths

    def bulk(self, mode: str, *arguments: str) -> Channel:
        """Start `receive`, `rsync-receive`, `send`, `restore` or `left`. Raises ConnectionLost."""
        return self.connection.open(self.paths.argv(mode, *arguments))

    def close(self) -> None:
        """Nothing to close: the caller closes the channels of `bulk`; the connection stays open."""


class _Inbox:
    """The messages of one request that its caller has not taken yet."""

    def __init__(self) -> None:
        self.lines: deque[bytes] = deque()

    @property
    def size(self) -> int:
        return sum(map(len, self.lines))


class AgentClient(Programs):
    """One conversation with one agent. Thread-safe; ends for good when the channel does.

    Every wait and every buffer has a limit whatever is at the other end, and only NodeError is raised. One thread reads
    and one writes, so that a node that stops reading blocks no other.
    """

    def __init__(self, connection: Connection, paths: NodePaths, greeting_s: float = GREETING_TIMEOUT_S) -> None:
        super().__init__(connection, paths)
        self._channel: Channel = connection.open(paths.argv("connect"))
        self._ids = itertools.count(1)
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        """Guards all that follows."""
        self._inboxes: dict[int, _Inbox] = {}
        self._held = 0
        """Bytes in all inboxes."""
        self._starving = 0
        """How many wait at an empty one."""
        self._lost = False
        self._greeted = threading.Event()  # the magic line came, or never will
        self._is_agent = False
        self._noise = b""
        for work, name in ((self._read, "reader"), (self._write, "writer")):
            WORKERS.start(work, f"{self.label} {name}")
        self._await_greeting(greeting_s)

    def _await_greeting(self, limit_s: float) -> None:
        try:
            if not self._greeted.wait(limit_s):
                raise ConnectionLost(
                    f"the agent on {self.label} has said nothing for {span(limit_s)}",
                    "see `gpuops status`; `gpuops down` cleans up",
                )
            if not self._is_agent:
                raise self._explain_no_greeting()
        except BaseException:
            self.close()
            raise

    def _explain_no_greeting(self) -> NodeError:
        """Why the magic line never came: the agent's own refusal, or the last line of any output."""
        from gpuops.transport import validation

        try:
            self._channel.wait(timeout=STDERR_LIMIT_S)
        except TimeoutError:
            pass  # it talks but is no agent: close() ends it
        complaint = (self._channel.errors().strip() or self._noise.decode(errors="replace").strip()).splitlines()
        last = complaint[-1] if complaint else "nothing was said"
        return validation.parse_refusal_line(self.label, last) or ConnectionLost(
            f"the agent on {self.label} does not answer ({one_line(last, MAX_SHOWN_CHARS)})",
            "see `gpuops status`; `gpuops down` cleans up",
        )

    def _read(self) -> None:
        try:
            rest = read_to_mark(self._channel.stdout.read, MAGIC)
            self._is_agent = True
            self._greeted.set()
            self._read_lines(rest)
        except NoMark as error:
            self._noise = error.seen
        except (OSError, ValueError):
            pass  # the stream has ended: every waiter is told below
        finally:
            with self._changed:
                self._lost = True
                self._changed.notify_all()
            self._greeted.set()

    def _read_lines(self, rest: bytes) -> None:
        """Deliver line after line, until the stream ends or a line is longer than any message."""
        parts, size = [rest], 0
        while True:
            *lines, tail = parts[-1].split(b"\n")
            if lines:
                self._deliver_line(b"".join(parts[:-1]) + lines[0])
                for line in lines[1:]:
                    self._deliver_line(line)
                parts, size = [tail], 0
            size += len(tail)
            chunk = self._channel.stdout.read(65536)
            if not chunk or size > MAX_LINE_BYTES:
                return
            parts.append(chunk)

    def _deliver_line(self, line: bytes) -> None:
        """Put a message into its request's inbox, and return once there is room. Messages of no request are dropped.

        Raises OSError where no caller takes anything for ANSWER_TIMEOUT_S.
        """
        head = MESSAGE_ID.match(line)
        with self._changed:
            inbox = self._inboxes.get(int(head[1])) if head else None
            if inbox is None:
                return
            inbox.lines.append(line)
            self._held += len(line)
            self._changed.notify_all()
            while not self._has_room():
                held = self._held
                if not self._changed.wait_for(lambda: self._held < held or self._has_room(), ANSWER_TIMEOUT_S):  # noqa: B023
                    raise OSError(f"{held} bytes that nobody takes")

    def _has_room(self) -> bool:
        """The limit is higher while a caller waits: it may be the one to take what fills the inboxes."""
        return self._lost or self._held <= (MAX_UNREAD_BYTES_WHILE_WAITING if self._starving else MAX_UNREAD_BYTES)

    def _take_line(self, inbox: _Inbox, verb: str, limit_s: float) -> bytes:
        """The next message. Raises ConnectionLost."""
        with self._changed:
            if not inbox.lines:
                self._starving += 1
                self._changed.notify_all()
                self._changed.wait_for(lambda: inbox.lines or self._lost, max(0.0, limit_s))
                self._starving -= 1
            if inbox.lines:
                line = inbox.lines.popleft()
                self._held -= len(line)
                self._changed.notify_all()
                return line
            if self._lost:
                raise self._connection_ended()
        raise NoAnswer(
            f"{self.label} has not answered '{verb}' for {span(limit_s)}",
            "check the node and the network; `gpuops status` looks again",
            limit_s,
        )

    def _write(self) -> None:
        try:
            while (data := self._next_outgoing()) is not None:
                Whole(self._channel.stdin).write(data)
                self._channel.stdin.flush()
        except (OSError, ValueError):
            pass  # the reader sees the same end, and tells every waiter

    def _next_outgoing(self) -> bytes | None:
        try:
            return self._outgoing.get(timeout=HEARTBEAT_INTERVAL_S)
        except queue.Empty:
            return b"\n"

    def _send_request(self, verb: str, args: dict[str, Any]) -> tuple[int, _Inbox]:
        inbox = _Inbox()
        line_id = next(self._ids)
        with self._changed:
            if self._lost:
                raise self._connection_ended()
            self._inboxes[line_id] = inbox
        self._outgoing.put(encode_request(line_id, verb, args))
        return line_id, inbox

    def call(self, verb: str, timeout: float = ANSWER_TIMEOUT_S, **args: Any) -> Any:
        """One request, one answer, of the shape that `schemas.VERB_SHAPES` has for the verb. An argument is what JSON
        can hold, or `Encoded`.

        Raises NodeRefused, ConnectionLost, MalformedAnswer.
        """
        stream = self.stream(verb, timeout=timeout, **args)
        for _ in stream:
            pass
        return stream.answer

    def stream(self, verb: str, timeout: float = ANSWER_TIMEOUT_S, within: float = inf, **args: Any) -> Stream:
        """A streaming verb: iterate over its items, then look at `.answer`.

        `timeout` is the longest silence in seconds that is borne, `within` how long all of it may take: a node
        that only says that it is busy is not waited for. Iterating raises NodeRefused, ConnectionLost, MalformedAnswer.
        Closing the stream early cancels the request.
        """
        return Stream(self._items(verb, timeout, args, within))

    def _items(self, verb: str, timeout: float, args: dict[str, Any], within: float = inf) -> Items:
        from gpuops.transport import validation  # and with it msgspec, only once a node is talked to

        line_id, inbox = self._send_request(verb, args)
        finished, deadline = False, time.monotonic() + within
        try:
            while True:
                line = self._take_line(inbox, verb, timeout)
                if time.monotonic() > deadline:
                    raise MalformedAnswer(self.label, f"to '{verb}': no end after {span(within)}")
                try:
                    kind, value = validation.parse_message(self.label, verb, line)
                except NodeRefused:
                    finished = True
                    raise
                if kind == "item":
                    yield value
                elif kind == "ok":
                    finished = True
                    return value
        finally:
            self._close_request(line_id, inbox)
            if not finished:
                self._outgoing.put(json.dumps({"id": line_id, "verb": "cancel"}).encode() + b"\n")

    def _close_request(self, line_id: int, inbox: _Inbox) -> None:
        with self._changed:
            self._inboxes.pop(line_id, None)
            self._held -= inbox.size
            self._changed.notify_all()

    def _connection_ended(self) -> ConnectionLost:
        return ConnectionLost(
            f"the connection to {self.label} ended",
            "the node may be well: `gpuops logs -f` and `gpuops status` look again",
        )

    def close(self) -> None:
        with self._changed:
            self._lost = True
            self._changed.notify_all()
        self._outgoing.put(None)
        self._channel.close()


class UnreachableConnection:
    """The connection to a node that does not answer, beside those of nodes that do."""

    def __init__(self, label: str, error: NodeError) -> None:
        self.label = label
        self._error = error

    def open(self, argv: Sequence[str], early: bytes = b"") -> Channel:  # noqa: ARG002 (a connection's signature)
        raise self._error

    def close(self) -> None:
        """Nothing is open."""


class UnreachableAgent(AgentClient):
    """The conversation with a node that does not answer: every request fails with the first one's error."""

    def __init__(self, label: str, paths: NodePaths, error: NodeError) -> None:
        Programs.__init__(self, UnreachableConnection(label, error), paths)
        self._error = error

    def _items(self, verb: str, timeout: float, args: dict[str, Any], within: float = inf) -> Items:  # noqa: ARG002
        raise self._error
        yield  # what makes this a generator

    def close(self) -> None:
        """Nothing is open."""
