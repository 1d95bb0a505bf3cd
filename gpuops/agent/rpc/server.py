"""Serves agent.sock: JSON lines; a thread reads each connection, a thread answers each request.

-> {"id": 7, "verb": "tail", "args": {…}}
<- {"id": 7, "item": {…}}            any number
<- {"id": 7, "ok": {…}}              or  {"id": 7, "error": {"kind", "say", "hint", "data"}}
-> {"id": 7, "verb": "cancel"}       the request ends with an error of kind `cancelled`
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import threading
import time
import traceback
from functools import partial
from typing import Any, Callable, Collection, Dict

from gpuops.agent.client_activity import connected, note_heard
from gpuops.agent.node import SOCKET, Cancelled, Emit, Node, Refusal, local_path, log, read_json
from gpuops.agent.workers import WORKERS

Verb = Callable[[Node, Dict[str, Any], Emit], Dict[str, Any]]

VERBS = {
    "ping": "rpc.hello:ping",
    "hello": "rpc.hello:hello",
    "route": "network.interfaces:route",
    "port": "network.interfaces:port",
    "addresses": "network.interfaces:addresses",
    "listen": "network.probe:listen",
    "release": "network.probe:release",
    "reach": "network.probe:reach",
    "python": "python.setup:python",
    "setup": "python.setup:setup",
    "plan": "files.push_steps:plan",
    "receive": "files.push_steps:receive_message",
    "commit": "files.push_steps:commit",
    "copies": "files.copies:copies",
    "edits": "files.push_steps:edits",
    "start": "run.run_verbs:start",
    "run": "run.run_verbs:run",
    "stop": "run.run_verbs:stop",
    "sample": "run.samples:sample",
    "urls": "result_storage.bucket_sink:renew",
    "leave": "run.run_verbs:leave",
    "home": "result_storage.wait_for_download:home",
    "tail": "run.log_tail:tail",
    "outs": "files.output_files:outs",
    "sums": "files.output_files:sums",
    "left": "files.output_files:left_here",
    "made": "files.earlier_outputs:made",
    "discard": "run.run_verbs:discard",
    "lease": "lease_clock:lease",
}
"""Module and function of each verb, imported with its first request."""
READING = frozenset({"ping", "run", "tail", "outs", "sums", "left", "made", "stop", "home"})
"""Verbs that need nothing but the node's files."""
ACTIVITY = frozenset({"python", "setup", "plan", "receive", "commit", "discard", "start", "home"})
"""Verbs that are a sign of use, at their start and with every item."""
MAX_WAITING_CONNECTIONS = 64
"""Connections that may wait to be accepted."""
ACCEPT_RETRY_INTERVAL_S = 0.2
"""Pause after a failed accept: the connection still waits, and would be tried again at once."""


def find_verb(name: str) -> Verb:
    """The function of a verb. Raises Refusal(`unknown-verb`)."""
    if name not in VERBS:
        raise Refusal(
            "unknown-verb", f"this agent does not know '{name}'", "it is older than your gpuops: start a new node"
        )
    module, function = VERBS[name].split(":")
    verb: Verb = getattr(importlib.import_module("gpuops.agent." + module), function)
    return verb


class Server:
    """The listening socket. Only this user can open it: the folder is 0700, the socket 0600."""

    def __init__(self, node: Node) -> None:
        self._node = node
        path = local_path(SOCKET)
        if os.path.lexists(path):
            os.unlink(path)  # of a killed agent; the watchdog runs one agent at a time
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(path)
        os.chmod(path, 0o600)
        self._socket.listen(MAX_WAITING_CONNECTIONS)

    def serve(self) -> None:
        """Accept until the process ends."""
        while True:
            connection = accept_connection(self._socket)
            try:
                WORKERS.start(Conversation(self._node, connection).listen, "client")
            except RuntimeError as error:
                log(f"no client can be served: {error}")  # no more threads; the next client may find one
                connection.close()


def accept_connection(listener: socket.socket, sleep: Callable[[float], None] = time.sleep) -> socket.socket:
    """Wait for a client, also while the system refuses it: no file descriptor is left, or that client has gone."""
    reported: set[int | None] = set()
    while True:
        try:
            return listener.accept()[0]
        except OSError as error:
            if error.errno not in reported:
                log(f"no client can be accepted: {error}")
            reported.add(error.errno)
            sleep(ACCEPT_RETRY_INTERVAL_S)


class Conversation:
    """One client, which may disconnect after any byte that it sends or receives. `verbs`: those of a node that has
    ended; None: all."""

    def __init__(self, node: Node, connection: socket.socket, verbs: Collection[str] | None = None) -> None:
        self._node = node
        self._verbs = verbs
        self._socket = connection
        self._write = threading.Lock()
        self._open: dict[Any, threading.Event] = {}
        self._gone = threading.Event()

    def listen(self) -> None:
        """Read requests until the client disconnects; the requests still open then end with `Cancelled`."""
        try:
            with connected(), self._socket, self._socket.makefile("rb") as lines:
                for line in lines:
                    if line != b"\n":  # that only says that somebody is there
                        note_heard()
                        self._take(line)
                self._gone.set()
        except OSError:
            self._gone.set()

    def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
            request, verb = message["id"], message["verb"]
            args = message.get("args") or {}
            if not isinstance(request, (int, str)):
                return
        except (ValueError, KeyError, TypeError, AttributeError):
            return  # a torn line of a client that died, or one without an id to answer to
        if verb == "cancel":
            if request in self._open:
                self._open[request].set()
            return
        self._open[request] = threading.Event()
        WORKERS.start(partial(self._answer, request, verb, args), "request")

    def _answer(self, request: Any, verb: str, args: dict[str, Any]) -> None:
        try:
            answer = {"ok": self._call(request, verb, args)}
        except Refusal as refusal:
            answer = _error(refusal.kind, refusal.say, refusal.hint, refusal.data)
        except Cancelled:
            answer = _error("cancelled", "the request was cancelled", "", {})
        except OSError as error:
            log(f"{verb} failed\n{traceback.format_exc()}")
            answer = _error("system", f"'{verb}' failed on this node: {error}", "check its disk and its network", {})
        except Exception as error:
            log(f"{verb} failed\n{traceback.format_exc()}")
            say = f"the agent met a bug in '{verb}': {type(error).__name__}: {error}"
            answer = _error("bug", say, "its agent.log has the details", {})
        try:
            self._send({"id": request, **answer})
            note_heard()
        except Cancelled:
            pass  # the client has disconnected
        self._open.pop(request, None)

    def _call(self, request: Any, verb: str, args: dict[str, Any]) -> dict[str, Any]:
        if self._verbs is not None and verb not in self._verbs:
            why = (read_json("ended.json") or {}).get("why") or "its job is over"
            raise Refusal("ended", f"this node has ended: {why}", "start a new one")
        cancelled = self._open[request]
        is_use = verb in ACTIVITY

        def emit(item: dict[str, Any]) -> None:
            if cancelled.is_set():
                raise Cancelled
            if is_use:
                self._node.touch()
            self._send({"id": request, "item": item})

        if is_use:
            self._node.touch()
        return find_verb(verb)(self._node, args, emit)

    def _send(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        if self._gone.is_set():
            raise Cancelled
        try:
            with self._write:
                self._socket.sendall(data)
        except OSError:
            self._gone.set()
            raise Cancelled from None


def _error(kind: str, say: str, hint: str, data: dict[str, Any]) -> dict[str, Any]:
    return {"error": {"kind": kind, "say": say, "hint": hint, "data": data}}
