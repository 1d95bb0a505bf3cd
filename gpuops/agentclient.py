"""The client's end of the conversation with an agent: JSON lines, many requests at once.

    -> {"id": 7, "verb": "tail", "args": {…}}
    <- {"id": 7, "item": {…}}            any number, for verbs that stream
    <- {"id": 7, "ok": {…}}              or  {"id": 7, "error": {"kind", "say", "hint", "data"}}
    -> {"id": 7, "verb": "cancel"}       the stream ends with an error of kind `cancelled`

A shell's start-up file may talk before the agent does: everything up to the magic line is noise.
"""

from __future__ import annotations

import itertools
import json
import queue
import threading
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from gpuops.agent.whole import Whole
from gpuops.connection import WORDS_S, Channel, Connection
from gpuops.errors import ConnectionLost, NodeError, NodeRefused
from gpuops.models import Resource
from gpuops.output import span

MAGIC = b"gpuops-agent 1\n"
NOISE_LIMIT = 1 << 20
LINE_LIMIT = 64 << 20
"""The longest message borne, in bytes: a plan for half a million files fits."""
GREETING_S = 60.0
"""How long the magic line may take: a login, then up to 30 s for an agent that is being started anew."""
SHOWN = 200
"""How much of a stranger's words goes into a message, in characters."""
ANSWER_S = 60.0
"""How long an agent may take to answer, and be silent between the items of a stream, in seconds."""


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


Items = Generator[dict[str, Any], None, dict[str, Any]]
"""The items of a request; what the generator returns is the last word."""


class Stream(Iterator[dict[str, Any]]):
    """A request under way. `answer` is its last word once the items have ended, empty before."""

    def __init__(self, items: Items) -> None:
        self._items = items
        self.answer: dict[str, Any] = {}

    def __next__(self) -> dict[str, Any]:
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


class AgentClient(Programs):
    """One conversation with one agent. Thread-safe; ends for good when the channel does.

    Whatever is at the other end: nothing here waits without a limit, and nothing but NodeError is raised.
    One thread reads and one writes, so that a node that takes nothing blocks nobody else.
    """

    def __init__(self, connection: Connection, paths: NodePaths, greeting_s: float = GREETING_S) -> None:
        super().__init__(connection, paths)
        self._channel: Channel = connection.open(paths.argv("connect"))
        self._ids = itertools.count(1)
        self._answers: dict[int, queue.SimpleQueue[dict[str, Any] | None]] = {}
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
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
        try:
            self._channel.wait(timeout=WORDS_S)
        except TimeoutError:
            pass  # it talks but is no agent: close() ends it
        complaint = (self._channel.errors().strip() or seen.decode(errors="replace").strip()).splitlines()
        last = complaint[-1] if complaint else "nothing was said"
        try:
            return self._refusal(json.loads(last)["error"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return ConnectionLost(
                f"the agent on {self.label} does not answer ({_shown(last)})",
                "see `gpuops status`; `gpuops down` cleans up",
            )

    def _refusal(self, error: Any) -> NodeRefused:
        """The agent's own refusal. Raises KeyError or TypeError for what is none."""
        data = error.get("data") if isinstance(error, dict) else None
        return NodeRefused(
            f"{self.label}: {error['say']}",
            str(error.get("hint", "")),
            str(error.get("kind", "refused")),
            data if isinstance(data, dict) else None,
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
            with self._lock:
                self._lost = True
                for answers in list(self._answers.values()):  # whoever hears it takes theirs away
                    answers.put(None)
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
        """Hand a message to whoever asked. What is none of ours is dropped: the request runs into its limit."""
        try:
            message = json.loads(line)
            answers = self._answers.get(message["id"])
            sound = any(isinstance(message.get(kind), dict) for kind in ("item", "ok", "error"))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return
        if answers is not None and sound:
            answers.put(message)

    def _write(self) -> None:
        try:
            while (data := self._outgoing.get()) is not None:
                Whole(self._channel.stdin).write(data)
                self._channel.stdin.flush()
        except (OSError, ValueError):
            pass  # the reader sees the same end, and tells every waiter

    def _ask(self, verb: str, args: dict[str, Any]) -> tuple[int, queue.SimpleQueue[Any]]:
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        line_id = next(self._ids)
        with self._lock:
            if self._lost:
                raise self._gone()
            self._answers[line_id] = answers
        self._outgoing.put(json.dumps({"id": line_id, "verb": verb, "args": args}).encode() + b"\n")
        return line_id, answers

    def call(self, verb: str, timeout: float = ANSWER_S, **args: Any) -> dict[str, Any]:
        """One question, one answer. Raises NodeRefused, ConnectionLost."""
        stream = self.stream(verb, timeout=timeout, **args)
        for _ in stream:
            pass
        return stream.answer

    def stream(self, verb: str, timeout: float = ANSWER_S, **args: Any) -> Stream:
        """A streaming verb: iterate over its items, then look at `.answer`.

        `timeout` is the longest silence in seconds that is borne. Iterating raises NodeRefused,
        ConnectionLost. Closing the stream early cancels the request.
        """
        return Stream(self._items(verb, timeout, args))

    def _items(self, verb: str, timeout: float, args: dict[str, Any]) -> Items:
        line_id, answers = self._ask(verb, args)
        finished = False
        try:
            while True:
                try:
                    message = answers.get(timeout=max(0.0, timeout))
                except queue.Empty:
                    raise ConnectionLost(
                        f"{self.label} has not answered '{verb}' for {span(timeout)}",
                        "check the node and the network; `gpuops status` looks again",
                    ) from None
                if message is None:
                    finished = True
                    raise self._gone()
                if "item" in message:
                    yield message["item"]
                    continue
                finished = True
                if "error" in message:
                    raise self._refusal({"say": "refused", **message["error"]})
                answer: dict[str, Any] = message["ok"]
                return answer
        finally:
            self._answers.pop(line_id, None)
            if not finished:
                self._cancel(line_id)

    def _cancel(self, line_id: int) -> None:
        self._outgoing.put(json.dumps({"id": line_id, "verb": "cancel"}).encode() + b"\n")

    def _gone(self) -> ConnectionLost:
        return ConnectionLost(
            f"the connection to {self.label} ended",
            "the node may be well: `gpuops logs -f` and `gpuops status` look again",
        )

    def close(self) -> None:
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

    def _items(self, verb: str, timeout: float, args: dict[str, Any]) -> Items:  # noqa: ARG002 (an agent's signature)
        raise self._error
        yield  # what makes this a generator

    def close(self) -> None:
        """Nothing is open."""


def _shown(text: str) -> str:
    """What a stranger said, fit for a terminal: one short line without control characters."""
    clean = "".join(char if char.isprintable() else "?" for char in text)
    return clean if len(clean) <= SHOWN else clean[:SHOWN] + "…"
