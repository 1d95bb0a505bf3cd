"""Sessions with nodes: what is open when a conversation does not come about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from gpuops.core.errors import ConnectionLost
from gpuops.core.models import Resource
from gpuops.nodes import session
from gpuops.nodes.session import ClusterSession
from gpuops.transport.rpc import NodePaths, UnreachableAgent


class DeadConnection:
    """A connection on which no program starts."""

    label = "node0"

    def __init__(self) -> None:
        self.closed = False

    def open(self, _argv: Sequence[str]) -> Any:
        raise ConnectionLost("node0 does not answer")

    def close(self) -> None:
        self.closed = True


def test_a_reconnection_that_fails_leaves_no_connection_open(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[DeadConnection] = []

    def connect(*_: Any) -> DeadConnection:
        opened.append(DeadConnection())
        return opened[-1]

    monkeypatch.setattr(session, "connect", connect)
    machine = Resource("machine", "m", "r", "gpuops-0a1b2c3d-lab-0", False, data={"root": "/r", "python": "python3"})
    lost = UnreachableAgent("node0", NodePaths(machine, "lab", 0, "a"), ConnectionLost("cut"))
    live = ClusterSession(cast(Any, None), [machine], [lost])
    for _ in range(2):
        with pytest.raises(ConnectionLost, match="does not answer"):
            live.reconnect(0)
    assert [connection.closed for connection in opened] == [True, True]
