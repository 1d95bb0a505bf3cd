"""When a followed node counts as reachable, and how its malformed responses are counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from gpuops.core.errors import ConnectionLost, GpuopsError, LocalDisk, MalformedAnswer, NoAnswer
from gpuops.runs import follow
from gpuops.runs.follow import Follower
from gpuops.runs.outcome.node_report import NodeReport, ReasonKind, parse_report
from gpuops.sync.run_folder import RunHome
from tests.fakes.provider import FakeClock

if TYPE_CHECKING:
    from gpuops.nodes.session import ClusterSession

HOURS = 3600.0
DONE = {"outcome": "done"}
Attempt = Callable[[FakeClock, Callable[..., None]], Any]
"""One stream of logs: it may let time pass and send bytes, then returns the node's result or raises."""


class AnsweringNode:
    """As ClusterSession, of one node that answers each reconnection."""

    clients = (None,)

    def reconnect(self, _index: int) -> AnsweringNode:
        return self

    def call(self, _verb: str) -> None:
        pass


class NonsenseNode(AnsweringNode):
    def call(self, _verb: str) -> None:
        raise MalformedAnswer("node0", "to 'ping'")


def follow_attempts(
    attempts: Sequence[Attempt],
    monkeypatch: pytest.MonkeyPatch,
    session: AnsweringNode | None = None,
    say: Callable[[str], None] = lambda _: None,
    nodes: int = 1,
) -> tuple[NodeReport, int]:
    """The report of a node whose streams behave as `attempts`, and how many of them were made."""
    clock, made = FakeClock(), list[int]()

    def scripted_mirror(*args: Any) -> Any:
        made.append(len(made))
        return attempts[made[-1]](clock, args[-1])

    monkeypatch.setattr(follow, "mirror", scripted_mirror)
    monkeypatch.setattr(follow, "RECONNECT_INTERVAL_S", 0.0)
    follower = Follower(
        cast("ClusterSession", session or AnsweringNode()),
        "r-1",
        RunHome(Path("unused")),
        nodes,
        on_bytes=lambda *_: None,
        say=say,
        clock=clock,
        machine_has_ended=lambda _: False,
    )
    for other in range(1, nodes):
        follower._store_report(other, parse_report(other, DONE))
    follower._run_node_thread(0)
    return follower.reports[0], len(made)


def failing(error: GpuopsError, after_s: float = 0.0, send_at_s: float | None = None) -> Attempt:
    def attempt(clock: FakeClock, receive: Callable[..., None]) -> Any:
        if send_at_s is not None:
            clock.sleep(send_at_s)
            receive(0, "launcher.out", 0, b"line\n")
        clock.sleep(after_s)
        raise error

    return attempt


def done(_clock: FakeClock, _receive: Callable[..., None]) -> Any:
    return DONE


@pytest.mark.parametrize("first", [LocalDisk("this disk is full"), MalformedAnswer("node0", "to 'tail'")])
@pytest.mark.parametrize("send_at_s", [None, 1.0])
def test_a_cut_long_after_another_error_is_only_a_cut(
    monkeypatch: pytest.MonkeyPatch, first: GpuopsError, send_at_s: float | None
) -> None:
    cut = failing(ConnectionLost("cut by this test"), after_s=2 * HOURS, send_at_s=send_at_s)
    report, attempts = follow_attempts([failing(first), cut, done], monkeypatch)
    assert (report.document["outcome"], attempts) == ("done", 3)


def test_a_silent_agent_is_named_as_soon_as_it_was_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection stands: to make another may hang for as long again."""
    said: list[str] = []
    silent = failing(NoAnswer("node0 has not answered 'tail' for 30 s", silent_s=30.0), after_s=30.0)
    follow_attempts([silent, done], monkeypatch, say=said.append)
    assert said == [
        "node0 does not answer; the run goes on without this computer, trying again",
        "node0 answers again",
    ]
    said.clear()
    follow_attempts([failing(ConnectionLost("cut by this test")), done], monkeypatch, say=said.append)
    assert said == []


def test_bytes_show_that_the_node_is_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "UNREACHABLE_TIMEOUT_S", 10.0)
    monkeypatch.setattr(follow, "SLOW_RECONNECT_INTERVAL_S", 0.0)
    cut = failing(ConnectionLost("cut by this test"), after_s=1.0, send_at_s=15.0)
    report, attempts = follow_attempts([failing(LocalDisk("this disk is full")), cut, done], monkeypatch)
    assert (report.document["outcome"], attempts) == ("done", 3)


def test_each_malformed_response_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    nonsense = failing(MalformedAnswer("node0", "to 'tail'"))
    report, attempts = follow_attempts([nonsense] * 9, monkeypatch)
    assert (report.kind, attempts) == (ReasonKind.NONSENSE, follow.MAX_MALFORMED_RESPONSES)
    report, attempts = follow_attempts([nonsense] * 9, monkeypatch, NonsenseNode())
    assert (report.kind, attempts) == (ReasonKind.NONSENSE, 2), "a stream's, a ping's, and a stream's"


def test_good_bytes_do_not_excuse_malformed_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = failing(MalformedAnswer("node0", "to 'tail'"), send_at_s=1.0)
    report, attempts = follow_attempts([mixed] * 9, monkeypatch)
    assert (report.kind, attempts) == (ReasonKind.NONSENSE, follow.MAX_MALFORMED_RESPONSES)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(LocalDisk("this disk is full"), "done"), (ConnectionLost("cut by this test"), "lost")],
)
def test_the_last_node_is_not_lost_for_a_fault_of_this_computer(
    monkeypatch: pytest.MonkeyPatch, error: GpuopsError, outcome: str
) -> None:
    attempts = [failing(error, after_s=40.0), failing(error, after_s=40.0), done]
    report, _ = follow_attempts(attempts, monkeypatch, NonsenseNode() if outcome == "lost" else None, nodes=2)
    assert report.document["outcome"] == outcome
