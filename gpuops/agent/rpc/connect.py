"""Mode `connect`, which joins a client's stdio to this node's agent, and requests of programs on the node itself.

All of it works from inside the node's folder, so that the socket's path is short.
"""

from __future__ import annotations

import io
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from typing import Any, Sequence

from gpuops.agent.node import (
    HOLDER,
    LOCAL,
    SOCKET,
    Node,
    Refusal,
    local_path,
    parse_node,
    parse_options,
    read_json,
    write_json,
)
from gpuops.agent.process_table import is_living
from gpuops.agent.wire_format import MAGIC, Whole

HOLDER_KILLED = "what held this machine for its batch job was killed"
RESTART_LIMIT_S = 30.0
"""Time that a new agent may take to answer after its predecessor died."""
RETRY_INTERVAL_S = 0.1
LAST_ANSWERS_S = 5.0
"""Time for answers that are on their way after the client has closed its end."""
CHUNK_BYTES = 65536


def dial(limit_s: float | None = None) -> socket.socket:
    """Connect to the agent. Raises OSError where none listens."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(limit_s)
        connection.connect(local_path(SOCKET))
    except OSError:
        connection.close()
        raise
    return connection


def ask(verb: str, args: dict[str, Any], limit_s: float) -> dict[str, Any]:
    """The answer to one request of a verb without items. Raises OSError, also after `limit_s` of silence, and
    ValueError where the agent refuses or fails."""
    with dial(limit_s) as connection, connection.makefile("rb") as lines:
        connection.sendall(json.dumps({"id": 1, "verb": verb, "args": args}).encode() + b"\n")
        line = lines.readline()
    if not line:
        raise ConnectionResetError("the agent closed the connection")
    message = json.loads(line)
    if "error" in message:
        raise ValueError(message["error"]["say"])
    return dict(message["ok"])


def main(_mode: str, arguments: Sequence[str]) -> int:
    """`--node DIR`: print MAGIC, then pass bytes both ways until either side ends, or the client has sent nothing for
    `--silence SECONDS`. What a batch job has left in its folder is served from here, where the node has ended, or by
    `--left` its machine has."""
    node, rest = parse_node(arguments)
    is_jobs = os.path.islink(node.path(LOCAL))
    if "--left" in rest:
        connection = _serve_left(node, "its job is over")
    elif is_jobs and (os.path.exists(node.path("ended.json")) or is_holder_gone(node)):
        connection = _serve_left(node, HOLDER_KILLED)
    else:
        connection = reach(node)
        if is_jobs:
            for sign in (signal.SIGTERM, signal.SIGUSR1):  # sent to all of a job that ends: the client is to hear why
                signal.signal(sign, signal.SIG_IGN)
    silence_s = parse_options([word for word in rest if word != "--left"]).get("silence")
    limit_s = None if silence_s is None else float(silence_s)
    threading.Thread(target=_to_agent, args=(connection, limit_s), daemon=True).start()
    return _to_client(connection)


def _serve_left(node: Node, why: str) -> socket.socket:
    """A conversation with this very process; `why` the node has ended, unless it says so. Raises Refusal(`no-node`)."""
    from gpuops.agent.rpc.server import READING, Conversation
    from gpuops.agent.run.result import settle_lost_runs

    _enter(node)
    if not os.path.exists("ended.json"):
        write_json("ended.json", {"at": time.time(), "why": why})
    settle_lost_runs(node)
    ours, its = socket.socketpair()
    threading.Thread(target=Conversation(node, its, READING).listen, daemon=True).start()
    return ours


def _enter(node: Node) -> None:
    try:
        os.chdir(node.dir)
    except OSError:
        raise Refusal("no-node", f"there is no node in {node.dir}", "it was removed, or never started") from None


def reach(node: Node) -> socket.socket:
    """Connect to the node's agent, which may be restarting. Raises Refusal(`no-node`, `ended`, `no-agent`)."""
    _enter(node)
    deadline = time.monotonic() + RESTART_LIMIT_S
    while True:
        refuse_ended(node)
        try:
            return dial()
        except OSError:
            if not is_watched(node) or time.monotonic() > deadline:
                raise Refusal(
                    "no-agent", f"no agent answers in {node.dir}", "end this node, then start a new one"
                ) from None
        time.sleep(RETRY_INTERVAL_S)


def refuse_ended(node: Node) -> None:
    """Raises Refusal(`ended`) where the node has ended."""
    ended = read_json(node.path("ended.json"))
    if ended:
        raise Refusal("ended", f"this node has ended: {ended.get('why', '')}", "start a new one")


def is_holder_gone(node: Node) -> bool:
    """Whether this machine is a batch job's, and no process holds it any more: nobody else may end what is here."""
    holder = read_json(node.path(HOLDER))
    return bool(holder) and not is_living(holder["pid"], holder["start"])


def is_watched(node: Node) -> bool:
    """Whether the node's watchdog lives, which restarts a dead agent."""
    record = read_json(node.path("watchdog.json"))
    return bool(record) and is_living(record["pid"], record["start"])


def _to_agent(connection: socket.socket, silence_s: float | None) -> None:
    try:
        while True:
            if not select.select([sys.stdin], [], [], silence_s)[0]:
                os._exit(0)  # a client that is gone without an end of its stream (a killed srun)
            chunk = os.read(sys.stdin.fileno(), CHUNK_BYTES)
            if not chunk:
                break
            connection.sendall(chunk)
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # the agent has ended; the other direction notices it too
    time.sleep(LAST_ANSWERS_S)
    os._exit(0)


def _to_client(connection: socket.socket) -> int:
    client = Whole(io.FileIO(sys.stdout.fileno(), "w", closefd=False))
    try:
        client.write(MAGIC)
        while True:
            chunk = connection.recv(CHUNK_BYTES)
            if not chunk:
                return 0
            client.write(chunk)
    except OSError:
        return 0  # one side ended; closing tells the other
