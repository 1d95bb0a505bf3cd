"""Talking to this node's own agent, as `init`, `connect` and the watchdog do, from inside the node's folder."""

from __future__ import annotations

import io
import json
import os
import socket
import sys
import threading
import time
from typing import Any, Sequence

from gpuops.agent.node import Node, Refusal, node_of, read_json
from gpuops.agent.processes import lives
from gpuops.agent.wire import Whole

SOCKET = "agent.sock"
"""Relative on purpose: the path of a Unix socket may have 107 bytes, a node's folder may have more."""


def dial(limit_s: float | None = None) -> socket.socket:
    """A connection to the agent. Raises OSError when none listens."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(limit_s)
        connection.connect(SOCKET)
    except OSError:
        connection.close()
        raise
    return connection


def ask(verb: str, args: dict[str, Any], limit_s: float) -> dict[str, Any]:
    """The answer to one question. Raises OSError (also after `limit_s` of silence) and ValueError."""
    with dial(limit_s) as connection, connection.makefile("rb") as lines:
        connection.sendall(json.dumps({"id": 1, "verb": verb, "args": args}).encode() + b"\n")
        for line in lines:
            message = json.loads(line)
            if "item" not in message:
                return dict(message.get("ok") or {})
    raise ConnectionResetError("the agent closed the connection")


MAGIC = b"gpuops-agent 1\n"
RETRY_S = 30.0
"""How long a new agent may take to answer after its predecessor died, in seconds."""
LINGER_S = 5.0
"""How long answers are waited for after the client has closed its end, in seconds."""


def main(_mode: str, arguments: Sequence[str]) -> int:
    node, _ = node_of(arguments)
    connection = reach(node)
    threading.Thread(target=_to_agent, args=(connection,), daemon=True).start()
    return _to_client(connection)


def reach(node: Node) -> socket.socket:
    """A connection to the node's agent. Raises Refusal(`no-node`, `ended`, `no-agent`)."""
    try:
        os.chdir(node.dir)
    except OSError:
        raise Refusal("no-node", f"there is no node in {node.dir}", "it was removed, or never started") from None
    deadline = time.monotonic() + RETRY_S
    while True:
        refuse_ended(node)
        try:
            return dial()
        except OSError:
            if not watched(node) or time.monotonic() > deadline:
                raise Refusal("no-agent", f"no agent answers in {node.dir}", "end this node and start anew") from None
        time.sleep(0.1)


def refuse_ended(node: Node) -> None:
    """Raises Refusal(`ended`) when the node's life is over."""
    ended = read_json(node.path("ended.json"))
    if ended:
        raise Refusal("ended", f"this node has ended: {ended.get('why', '')}", "start a new one")


def watched(node: Node) -> bool:
    """Whether the node's watchdog lives: it starts a new agent where one died."""
    noted = read_json(node.path("watchdog.json"))
    return bool(noted) and lives(noted["pid"], noted["start"])


def _to_agent(connection: socket.socket) -> None:
    try:
        while True:
            chunk = os.read(sys.stdin.fileno(), 65536)
            if not chunk:
                break
            connection.sendall(chunk)
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # the agent is gone; the other direction sees it too
    time.sleep(LINGER_S)
    os._exit(0)


def _to_client(connection: socket.socket) -> int:
    client = Whole(io.FileIO(sys.stdout.fileno(), "w", closefd=False))
    try:
        client.write(MAGIC)
        while True:
            chunk = connection.recv(65536)
            if not chunk:
                return 0
            client.write(chunk)
    except OSError:
        return 0  # either side ended; the other has been told by the closing
