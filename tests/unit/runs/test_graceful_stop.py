"""A stop reaches every node of a run, also one that could not be reached when it was asked for."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuops.core.errors import ConnectionLost, GpuopsError, NodeRefused
from gpuops.nodes.session import ClusterSession
from gpuops.runs import graceful_stop
from gpuops.runs.follow import Follower
from gpuops.runs.outcome.node_report import parse_report
from gpuops.sync.run_folder import RunHome
from tests.fakes.provider import FakeClock

CUT = ConnectionLost("cut by this test")


class Agent:
    """Fails as `errors` say, one for each request, then obeys."""

    def __init__(self, *errors: GpuopsError) -> None:
        self.errors = list(errors)
        self.asked: list[str] = []
        self.answered = threading.Event()

    def call(self, verb: str, *, run: str, how: str, why: str, kind: str = "stop") -> None:  # noqa: ARG002
        self.asked.append(f"{verb} {run} {how}: {why}")
        if self.errors:
            error = self.errors.pop(0)
            if not isinstance(error, ConnectionLost):
                self.answered.set()
            raise error
        self.answered.set()


def following(*agents: Agent) -> Follower:
    session = cast(ClusterSession, type("Session", (), {"clients": agents}))
    nothing: Any = lambda *_: None  # noqa: E731
    return Follower(
        session, "r-1", RunHome(Path("unused")), len(agents), on_bytes=nothing, say=nothing, clock=FakeClock(),
        machine_has_ended=lambda _: False,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graceful_stop, "RECONNECT_INTERVAL_S", 0.0)


def test_a_node_that_is_cut_off_is_asked_again_and_delays_no_other() -> None:
    agents = Agent(CUT, CUT), Agent(), Agent(NodeRefused("it has ended", kind="ended"))
    graceful_stop.stop_followed(following(*agents), "graceful", "interrupted")
    for agent, times in zip(agents, (3, 1, 1), strict=True):
        assert agent.answered.wait(10)
        assert agent.asked == ["stop r-1 graceful: interrupted"] * times


def test_a_node_that_has_reported_is_not_asked() -> None:
    gone, living = Agent(*[CUT] * 1000), Agent()
    follower = following(gone, living)
    follower.reports[0] = parse_report(0, {"outcome": "done"})
    graceful_stop.stop_followed(follower, "now", "interrupted twice")
    assert living.answered.wait(10)
    assert gone.asked == []


def test_a_launch_that_is_called_off_reaches_a_node_whose_conversation_was_cut() -> None:
    cut, other, never_asked = Agent(CUT), Agent(), Agent()
    session = cast(Any, SimpleNamespace(clients=[cut, other, never_asked], reconnect=lambda _index: cut))
    graceful_stop.stop_nodes(session, "r-1", "now", "it did not start everywhere", nodes=2)
    assert [agent.answered.is_set() for agent in session.clients] == [True, True, False]
