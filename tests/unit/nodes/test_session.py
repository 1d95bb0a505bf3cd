"""Sessions with nodes: what is open when a conversation does not come about."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuops.agent.wire_format import PROTOCOL
from gpuops.core.errors import ConnectionLost, NodeRefused
from gpuops.core.models import Resource
from gpuops.nodes import bootstrap, session
from gpuops.nodes.session import ClusterSession
from gpuops.transport.rpc import NodePaths, UnreachableAgent
from gpuops.transport.schemas import OtherHello, Pong
from tests.conftest import HANG_S
from tests.fakes.host import ROOT, FakeConnection, FakeHost
from tests.fakes.provider import surroundings


class DeadConnection:
    """A connection on which no program starts."""

    label = "node0"

    def __init__(self) -> None:
        self.closed = False

    def open(self, _argv: Sequence[str], _early: bytes = b"") -> Any:
        raise ConnectionLost("node0 does not answer")

    def close(self) -> None:
        self.closed = True


class OtherAgent:
    """The conversation with an agent that another version of gpuops has started."""

    label = "node0"
    connection = DeadConnection()

    def call(self, verb: str, **_: Any) -> Any:
        return OtherHello(PROTOCOL + 1) if verb == "hello" else Pong(time=time.time())

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("verb", ["a look or an end", "lease", "train"])
def test_an_agent_of_another_version_is_looked_at_and_ended_but_gets_no_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: str
) -> None:
    """A run that goes on while gpuops is upgraded is brought home by the new one."""
    _, world = surroundings(tmp_path, monkeypatch)
    monkeypatch.setattr(session, "_open_client", lambda *_: OtherAgent())
    data = {"root": "/r", "python": "python3", "artefact": "a"}
    machine = Resource("machine", "m", "r", "gpuops-0a1b2c3d-lab-0", False, data=data)
    monkeypatch.setattr(session, "nodes_of", lambda *_: [machine])
    row = cast(Any, SimpleNamespace(name="lab"))
    if verb == "train":
        with pytest.raises(NodeRefused, match="node0 was started by another version of gpuops"):
            session.open_session(world, row)
        return
    lease = {"any_version": True} if verb == "lease" else {"some": True}
    opened = session.open_session(world, row, **lease)
    assert opened.hellos == [None]
    assert opened.present() == opened.clients
    assert opened.skews == [pytest.approx(0.0, abs=HANG_S)]


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


def test_a_part_of_a_session_has_its_own_numbers_and_reconnects_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    machines = [Resource("machine", f"m{index}", "r", f"gpuops-0a1b2c3d-lab-{index}", False) for index in range(3)]
    clients = [cast(Any, SimpleNamespace(close=lambda: None, paths=index)) for index in range(3)]
    whole = ClusterSession(cast(Any, None), machines, list(clients), [None] * 3, [0.0, 1.0, 2.0])
    part = whole.part([2, 0])
    assert (part.machines, part.clients, part.skews) == (machines[2::-2], clients[2::-2], [2.0, 0.0])
    assert [part.number(0), part.number(1), whole.number(1)] == [2, 0, 1]
    assert part.part([2, 0]) is part
    assert part.part([1]).clients == [clients[1]]

    opened = SimpleNamespace()
    monkeypatch.setattr(session, "_open_client", lambda paths, _machine, index: (paths, index) == (2, 2) and opened)
    moved = replace(machines[2], address="10.0.0.9")
    assert part.reconnect(0, moved) is opened
    assert (part.clients[0], part.machines[0], whole.clients[2], whole.machines[2]) == (opened, moved, opened, moved)
    assert whole.clients[:2] == clients[:2]


def test_an_agent_that_somebody_removed_is_put_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also for a run: the machine, its project and its other nodes are as they were."""
    _, world = surroundings(tmp_path, monkeypatch)
    sha = bootstrap.build_agent(tmp_path)[1]
    host = FakeHost(agents=set())
    monkeypatch.setattr(session, "connect", lambda *_: FakeConnection(host, "node0"))
    machine = Resource("machine", "m", "r", "gpuops-0a1b2c3d-lab-0", False, data={"root": ROOT, "artefact": sha})
    monkeypatch.setattr(session, "nodes_of", lambda *_: [machine])
    removed = ConnectionLost("node0: python3: can't open file 'x.pyz'")

    def contact(*_: Any, **__: Any) -> str:
        if sha not in host.agents:
            raise removed
        return "a session"

    monkeypatch.setattr(session, "contact_cluster", contact)
    assert session.open_session(world, cast(Any, SimpleNamespace(name="lab"))) == cast(Any, "a session")
    host.takes_agents = False
    assert not session.restore_agents(world, {0: machine}, removed), "the error stands"
    machine.data["artefact"] = "0123456789ab"
    assert not session.is_agent_removed(machine, removed), "another version's: nobody here has it"
