"""Talking to this node's own agent, as `init`, `connect` and the watchdog do, from inside the node's folder."""

from __future__ import annotations

import json
import socket
from typing import Any

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
