"""Following a run on a real node while connections come and go."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from gpuops.core.errors import ConnectionLost, NodeRefused
from gpuops.core.models import MachineEnd
from gpuops.core.polling import Clock
from gpuops.runs import follow
from gpuops.runs.follow import Follower
from gpuops.runs.outcome.node_report import ReasonKind, parse_report
from gpuops.sync.run_folder import RunHome
from tests.integration.agent.conftest import HANG_S, until

if TYPE_CHECKING:
    from gpuops.nodes.session import ClusterSession
    from gpuops.transport.rpc import AgentClient
    from tests.integration.agent.conftest import RealNode

COUNT = "import time\nfor n in range(60): print(n, flush=True); time.sleep(0.05)"
ON_AND_ON = """
import itertools, os, time
for n in itertools.count():
    print(n, flush=True)
    if os.path.exists("enough"):
        break
    time.sleep(0.05)
"""


class OneNode:
    """As `Live`, of one node that the test holds in its hands."""

    def __init__(self, node: RealNode) -> None:
        self.node = node
        self.clients: list[Any] = [node.client()]

    def reconnect(self, index: int) -> AgentClient:
        self.clients[index].close()
        self.clients[index] = self.node.client()
        return cast("AgentClient", self.clients[index])


@pytest.fixture
def make(node: RealNode, tmp_path: Path) -> Iterator[Callable[..., Follower]]:
    made: list[Follower] = []

    def one(**options: Any) -> Follower:
        live = options.pop("live", None) or OneNode(node)
        defaults: dict[str, Any] = {
            "on_bytes": lambda *_: None,
            "say": lambda _: None,
            "machine_has_ended": lambda _: False,
        }
        defaults["clock"] = Clock()
        home = RunHome(tmp_path / "home")
        home.create()
        made.append(
            Follower(cast("ClusterSession", live), "r-1", home, options.pop("nodes", 1), **{**defaults, **options})
        )
        return made[-1]

    yield one
    for follower in made:
        follower.quit()
        for client in follower.session.clients:
            client.close()


def ended(follower: Follower) -> dict[str, Any]:
    follower.start()
    assert follower.wait(HANG_S), "it follows for ever"
    return dict(follower.reports[0].document)


def test_cuts_far_apart_do_not_add_up(
    node: RealNode, make: Callable[..., Follower], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "UNREACHABLE_TIMEOUT_S", 1.0)
    cuts: list[float] = []
    node.python("r-1", ON_AND_ON)

    def cut(*_: Any) -> None:
        if not cuts or time.monotonic() - cuts[-1] > 0.8:
            cuts.append(time.monotonic())
            if cuts[-1] - cuts[0] > 1.0:
                (node.folder / "project/enough").touch()
            raise ConnectionLost("cut by this test")

    follower = make(on_bytes=cut)
    assert ended(follower)["outcome"] == "done"
    assert cuts[-1] - cuts[0] > 1.0, "the cuts were too near to each other to show anything"
    lines = follower.home.log(0, "launcher.out").read_text().split()
    assert lines == [str(n) for n in range(len(lines))]
    assert lines == node.file("r-1", "launcher.out").decode().split()


def test_who_watches_sees_bytes_before_the_end(node: RealNode, make: Callable[..., Follower]) -> None:
    node.python("r-1", ON_AND_ON)
    follower = make()
    follower.start()
    assert not follower.watch(HANG_S), "it was silent until the end"
    (node.folder / "project/enough").touch()
    assert follower.wait(HANG_S)
    assert follower.watch(0), "the end is told, too"


def test_the_last_node_is_sought_from_when_the_others_ended(make: Callable[..., Follower]) -> None:
    follower = make(nodes=2)
    follower._store_report(0, parse_report(0, {"outcome": "done"}))
    long_ago = time.monotonic() - 10 * follow.LAST_NODE_TIMEOUT_S
    assert follower._report_if_lost(1, long_ago, ConnectionLost("away")) is None
    follower._last_report_at = long_ago
    verdict = follower._report_if_lost(1, long_ago, ConnectionLost("away"))
    assert verdict is not None
    assert verdict.kind == ReasonKind.UNREACHABLE


def test_a_bug_in_a_follower_ends_as_a_sentence(node: RealNode, make: Callable[..., Follower]) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("no such thing")

    node.python("r-1", COUNT)
    reason = ended(make(on_bytes=broken))["reason"]
    assert reason == {"kind": "node", "say": "following node0 failed: ValueError: no such thing"}
    assert node.result("r-1")["outcome"] == "done"


def test_only_a_final_refusal_is_believed_at_once(node: RealNode, make: Callable[..., Follower]) -> None:
    class Refusing(OneNode):
        def __init__(self) -> None:
            super().__init__(node)
            self.clients[0].close()
            self.clients[0] = self

        def stream(self, *_: Any, **__: Any) -> Any:
            raise NodeRefused("node0: it is just getting up", kind="refused")

        def close(self) -> None:
            pass

    node.python("r-1", "print('well')")
    assert ended(make(live=Refusing()))["outcome"] == "done"


def test_a_run_that_a_node_does_not_know(make: Callable[..., Follower]) -> None:
    assert ended(make())["reason"]["kind"] == "no-run"


@pytest.mark.parametrize(("machine_gone", "kind"), [(True, "gone"), (False, "node")])
def test_a_node_that_ended_while_we_were_away(
    node: RealNode, make: Callable[..., Follower], machine_gone: bool, kind: str
) -> None:
    class Ended(OneNode):
        def reconnect(self, index: int) -> AgentClient:
            raise NodeRefused(f"node{index}: this node has ended: its lease ended", kind="ended")

    node.python("r-1", COUNT)
    live = Ended(node)
    live.clients[0].close()
    reason = ended(make(live=live, machine_has_ended=lambda _: machine_gone))["reason"]
    assert reason == {"kind": kind, "say": "node0: this node has ended: its lease ended"}
    node.result("r-1")


def test_what_its_provider_says_of_its_end_comes_first(node: RealNode, make: Callable[..., Follower]) -> None:
    class Ended(OneNode):
        def reconnect(self, index: int) -> AgentClient:
            raise NodeRefused(f"node{index}: there is no node", kind="no-node")

    node.python("r-1", COUNT)
    live, said = Ended(node), list[str]()
    live.clients[0].close()
    told = MachineEnd("AWS took it back", preempted=True)
    result = ended(
        make(live=live, machine_has_ended=lambda _: True, termination_details=lambda _: told, say=said.append)
    )
    assert result["reason"] == {"kind": "gone", "say": told.say, "reclaimed": True}
    assert said == ["node0 is gone: AWS took it back"]
    node.result("r-1")


def test_whoever_is_away_for_a_while_may_have_to_be_let_in(make: Callable[..., Follower]) -> None:
    asked: list[bool] = []
    follower = make(admit_this_computer=lambda: asked.append(True))
    follower._notify_unreachable(0, 4.0, ConnectionLost("away"))
    assert not asked, "a cut alone changes no address"
    follower._notify_unreachable(0, 6.0, ConnectionLost("away"))
    follower._notify_unreachable(0, 11.0, ConnectionLost("away"))
    follower._notify_unreachable(1, 11.0, NodeRefused("it answers"))
    assert asked == [True]


def test_that_it_does_not_answer_is_said_once_a_minute(make: Callable[..., Follower]) -> None:
    said: list[str] = []
    follower = make(say=said.append)
    for away in (6.0, 11.0, 16.0):
        follower._notify_unreachable(0, away, ConnectionLost("away"))
    assert len(said) == 1
    follower._notified_at[0] -= follow.REMINDER_INTERVAL_S
    follower._notify_unreachable(0, 70.0, ConnectionLost("away"))
    assert len(said) == 2
    follower._mark_reachable(0)
    assert said[2:] == ["node0 answers again"]


def test_who_is_away_can_be_report_if_lost(node: RealNode, make: Callable[..., Follower]) -> None:
    class Away(OneNode):
        def reconnect(self, index: int) -> AgentClient:
            raise ConnectionLost(f"node{index} is away")

    node.python("r-1", COUNT)
    live = Away(node)
    follower = make(live=live)
    follower.abandon()
    assert not follower.reports, "nobody is away yet"
    live.clients[0].close()
    follower.start()
    until(lambda: follower._unreachable_since, "the connection is missed")
    follower.abandon()
    assert follower.wait(HANG_S)
    assert follower.reports[0].kind == ReasonKind.UNREACHABLE
    node.result("r-1")
