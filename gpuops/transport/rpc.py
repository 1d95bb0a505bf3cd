"""The client's end of the conversation with an agent: JSON lines, many requests at once.

    -> {"id": 7, "verb": "tail", "args": {…}}
    <- {"id": 7, "item": {…}}            any number, for verbs that stream
    <- {"id": 7, "ok": {…}}              or  {"id": 7, "error": {"kind", "say", "hint", "data"}}
    -> {"id": 7, "verb": "cancel"}       the stream ends with an error of kind `cancelled`

A shell's start-up file may talk before the agent does: everything up to the magic line is noise. What a node says
after it has a shape (`transport.schemas`), or the request fails at once: nothing that has none gets past this module.
"""

from __future__ import annotations

import itertools
import json
import queue
import re
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from math import inf
from typing import Any

from gpuops.agent.wire import MAGIC, Whole
from gpuops.core.errors import ConnectionLost, MalformedAnswer, NodeError, NodeRefused
from gpuops.core.format import span
from gpuops.core.models import Resource
from gpuops.transport.connection import WORDS_S, Channel, Connection

NOISE_LIMIT = 1 << 20
LINE_LIMIT = 64 << 20
"""The longest message borne, in bytes: a plan for half a million files fits."""
GREETING_S = 60.0
"""How long the magic line may take: a login, then up to 30 s for an agent that is being started anew."""
SHOWN = 200
"""How much of a stranger's words goes into a message, in characters."""
ANSWER_S = 60.0
"""How long an agent may take to answer, and be silent between the items of a stream, in seconds. And how long what has
come may lie here before nobody is believed to want it any more."""
BORNE = 8 << 20
"""So many bytes that nobody has taken yet stop the reading: the node waits then, and nothing is lost."""
MOST = LINE_LIMIT
"""So many are borne where somebody waits for another answer, which lies behind them."""
HEAD = re.compile(rb'\s*\{\s*"id"\s*:\s*(\d{1,15})\s*[,}]')
"""How each message begins: whose it is can be told of one that cannot be read, too."""


class NodePaths:
    """Where things lie on a node, as far as a client must know to start programs there."""

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
        return [self.python, "-I", self.agent, mode, "--node", self.node, *arguments]


Items = Generator[Any, None, Any]
"""The items of a request; what the generator returns is the last word."""


class Stream(Iterator[Any]):
    """A request under way. `answer` is its last word once the items have ended, empty before."""

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
    """Starting the agent's bulk modes on a node, as programs of their own: they need no agent that lives."""

    def __init__(self, connection: Connection, paths: NodePaths) -> None:
        self.label = connection.label
        self.connection = connection
        self.paths = paths

    def bulk(self, mode: str, *arguments: str) -> Channel:
        """Start `receive`, `send`, `restore` or `left`. Raises ConnectionLost."""
        return self.connection.open(self.paths.argv(mode, *arguments))

    def close(self) -> None:
        """Nothing is open but what `bulk` gave; the connection stays."""


class _Inbox:
    """What has come for one request and was not taken yet."""

    def __init__(self) -> None:
        self.lines: deque[bytes] = deque()

    @property
    def size(self) -> int:
        return sum(map(len, self.lines))


class AgentClient(Programs):
    """One conversation with one agent. Thread-safe; ends for good when the channel does.

    Whatever is at the other end: nothing here waits without a limit, nothing grows without one, and nothing but
    NodeError is raised. One thread reads and one writes, so that a node that takes nothing blocks nobody else.
    """

    def __init__(self, connection: Connection, paths: NodePaths, greeting_s: float = GREETING_S) -> None:
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
        self._noise = bytearray()
        for work, name in ((self._read, "reader"), (self._write, "writer")):
            threading.Thread(target=work, daemon=True, name=f"{self.label} {name}").start()
        self._await_greeting(greeting_s)

    def _await_greeting(self, limit_s: float) -> None:
        try:
            if not self._greeted.wait(limit_s):
                raise ConnectionLost(
                    f"the agent on {self.label} has said nothing for {span(limit_s)}",
                    "see `gpuops status`; `gpuops down` cleans up",
                )
            if not self._is_agent:
                raise self._no_answer(bytes(self._noise))
        except BaseException:
            self.close()
            raise

    def _no_answer(self, seen: bytes) -> NodeError:
        """Why the magic line never came: the agent's own refusal, or the last thing anybody said."""
        from gpuops.transport import validation

        try:
            self._channel.wait(timeout=WORDS_S)
        except TimeoutError:
            pass  # it talks but is no agent: close() ends it
        complaint = (self._channel.errors().strip() or seen.decode(errors="replace").strip()).splitlines()
        last = complaint[-1] if complaint else "nothing was said"
        return validation.parse_refusal_line(self.label, last) or ConnectionLost(
            f"the agent on {self.label} does not answer ({_shown(last)})",
            "see `gpuops status`; `gpuops down` cleans up",
        )

    def _read(self) -> None:
        try:
            rest = self._skip_noise()
            if rest is not None:
                self._is_agent = True
                self._greeted.set()
                self._read_lines(rest)
        except (OSError, ValueError):
            pass  # the stream is gone: said to every waiter below
        finally:
            with self._changed:
                self._lost = True
                self._changed.notify_all()
            self._greeted.set()

    def _skip_noise(self) -> bytes | None:
        """Read up to the magic line; what came after it, or None where it did not come."""
        while chunk := self._channel.stdout.read(65536):
            searched = max(0, len(self._noise) - len(MAGIC))
            self._noise += chunk
            at = self._noise.find(MAGIC, searched)
            if at >= 0:
                return bytes(self._noise[at + len(MAGIC) :])
            if len(self._noise) > NOISE_LIMIT:
                break
        return None

    def _read_lines(self, rest: bytes) -> None:
        """Deliver line after line, until the stream ends or a line is longer than any message."""
        parts, size = [rest], 0
        while True:
            *lines, tail = parts[-1].split(b"\n")
            if lines:
                self._deliver(b"".join(parts[:-1]) + lines[0])
                for line in lines[1:]:
                    self._deliver(line)
                parts, size = [tail], 0
            size += len(tail)
            chunk = self._channel.stdout.read(65536)
            if not chunk or size > LINE_LIMIT:
                return
            parts.append(chunk)

    def _deliver(self, line: bytes) -> None:
        """Hand a message to whoever asked, and go on reading once there is room. What nobody waits for is dropped.

        Raises OSError where nobody takes anything.
        """
        head = HEAD.match(line)
        with self._changed:
            inbox = self._inboxes.get(int(head[1])) if head else None
            if inbox is None:
                return
            inbox.lines.append(line)
            self._held += len(line)
            self._changed.notify_all()
            while not self._has_room():
                held = self._held
                if not self._changed.wait_for(lambda: self._held < held or self._has_room(), ANSWER_S):  # noqa: B023
                    raise OSError(f"{held} bytes that nobody takes")

    def _has_room(self) -> bool:
        """Who waits for another answer may be the one who is to take what lies here, and would never come to it."""
        return self._lost or self._held <= (MOST if self._starving else BORNE)

    def _take(self, inbox: _Inbox, verb: str, limit_s: float) -> bytes:
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
                raise self._gone()
        raise ConnectionLost(
            f"{self.label} has not answered '{verb}' for {span(limit_s)}",
            "check the node and the network; `gpuops status` looks again",
        )

    def _write(self) -> None:
        try:
            while (data := self._outgoing.get()) is not None:
                Whole(self._channel.stdin).write(data)
                self._channel.stdin.flush()
        except (OSError, ValueError):
            pass  # the reader sees the same end, and tells every waiter

    def _ask(self, verb: str, args: dict[str, Any]) -> tuple[int, _Inbox]:
        inbox = _Inbox()
        line_id = next(self._ids)
        with self._changed:
            if self._lost:
                raise self._gone()
            self._inboxes[line_id] = inbox
        self._outgoing.put(json.dumps({"id": line_id, "verb": verb, "args": args}).encode() + b"\n")
        return line_id, inbox

    def call(self, verb: str, timeout: float = ANSWER_S, **args: Any) -> Any:
        """One question, one answer, of the shape that `answers` has for it. Raises NodeRefused, ConnectionLost,
        MalformedAnswer."""
        stream = self.stream(verb, timeout=timeout, **args)
        for _ in stream:
            pass
        return stream.answer

    def stream(self, verb: str, timeout: float = ANSWER_S, within: float = inf, **args: Any) -> Stream:
        """A streaming verb: iterate over its items, then look at `.answer`.

        `timeout` is the longest silence in seconds that is borne, `within` how long all of it may take: a node
        that only says that it is busy is not waited for. Iterating raises NodeRefused, ConnectionLost, MalformedAnswer.
        Closing the stream early cancels the request.
        """
        return Stream(self._items(verb, timeout, args, within))

    def _items(self, verb: str, timeout: float, args: dict[str, Any], within: float = inf) -> Items:
        from gpuops.transport import validation  # and msgspec: not before a node is talked to

        line_id, inbox = self._ask(verb, args)
        finished, end = False, time.monotonic() + within
        try:
            while True:
                line = self._take(inbox, verb, timeout)
                if time.monotonic() > end:
                    raise MalformedAnswer(self.label, f"to '{verb}': no end after {span(within)}")
                try:
                    kind, said = validation.parse_message(self.label, verb, line)
                except NodeRefused:
                    finished = True
                    raise
                if kind == "item":
                    yield said
                elif kind == "ok":
                    finished = True
                    return said
        finally:
            self._forget(line_id, inbox)
            if not finished:
                self._outgoing.put(json.dumps({"id": line_id, "verb": "cancel"}).encode() + b"\n")

    def _forget(self, line_id: int, inbox: _Inbox) -> None:
        with self._changed:
            self._inboxes.pop(line_id, None)
            self._held -= inbox.size
            self._changed.notify_all()

    def _gone(self) -> ConnectionLost:
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


class Nowhere:
    """The connection to a node that does not answer, among others that do."""

    def __init__(self, label: str, error: NodeError) -> None:
        self.label = label
        self._error = error

    def open(self, argv: Sequence[str]) -> Channel:  # noqa: ARG002 (a connection's signature)
        raise self._error

    def close(self) -> None:
        """Nothing is open."""


class Absent(AgentClient):
    """The conversation with such a node: whatever is asked of it fails as the first question did."""

    def __init__(self, label: str, paths: NodePaths, error: NodeError) -> None:
        Programs.__init__(self, Nowhere(label, error), paths)
        self._error = error

    def _items(self, verb: str, timeout: float, args: dict[str, Any], within: float = inf) -> Items:  # noqa: ARG002
        raise self._error
        yield  # what makes this a generator

    def close(self) -> None:
        """Nothing is open."""


def _shown(text: str) -> str:
    """What a stranger said, fit for a terminal: one short line without control characters."""
    clean = "".join(char if char.isprintable() else "?" for char in text)
    return clean if len(clean) <= SHOWN else clean[:SHOWN] + "…"
