"""What a machine's provider says is heard once, whatever else its service does; and how much time a stop then has."""

from __future__ import annotations

import json
import queue
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuops.agent.node import Node
from gpuops.agent.run import preemption_notices
from gpuops.agent.run.preemption_notices import Ec2, Notice
from gpuops.agent.run.stopping import KILL_DELAY_S, Step, StopAction, shorten_steps, stop_steps
from gpuops.agent.run_documents import StopMode
from tests.fakes.aws.imds import Service

HANG_S = 600.0
ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
AT = 1795162920.0
"""2026-11-20T08:22:00Z"""


class Metadata:
    """A metadata service under way, and what it tells."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "imds.json"
        self.tell({})
        self.service = Service(("127.0.0.1", 0), str(self.file))
        threading.Thread(target=self.service.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.service.server_address[1]}"

    def tell(self, known: dict[str, str]) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(known))
        new.replace(self.file)


@pytest.fixture
def metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Metadata]:
    monkeypatch.setattr(preemption_notices, "ANSWER_LIMIT_S", HANG_S)  # on a busy machine it answers as well
    metadata = Metadata(tmp_path)
    yield metadata
    metadata.service.shutdown()
    metadata.service.server_close()


def action(when: str = "2026-11-20T08:22:00Z", what: str = "terminate") -> dict[str, str]:
    return {ACTION: json.dumps({"action": what, "time": when})}


def test_a_quiet_machine_says_nothing(metadata: Metadata) -> None:
    assert Ec2(metadata.url)() == []


@pytest.mark.parametrize("what", ["terminate", "stop", "hibernate"])
def test_an_interruption(metadata: Metadata, what: str) -> None:
    metadata.tell(action(what=what))
    assert Ec2(metadata.url)() == [Notice("reclaim", "AWS", AT)]


def test_a_hint_and_then_both(metadata: Metadata) -> None:
    hint = {REBALANCE: '{"noticeTime": "2026-11-20T08:20:00Z"}'}
    metadata.tell(hint)
    source = Ec2(metadata.url)
    assert source() == [Notice("rebalance", "AWS", AT - 120)]
    metadata.tell({**hint, **action()})
    assert source() == [Notice("reclaim", "AWS", AT)]


def test_a_hint_that_cannot_be_read_hides_no_interruption(metadata: Metadata) -> None:
    metadata.tell({REBALANCE: "nonsense", **action()})
    assert Ec2(metadata.url)() == [Notice("reclaim", "AWS", AT)]


def test_one_token_serves_many_questions_and_another_is_had_when_it_has_ended(metadata: Metadata) -> None:
    source = Ec2(metadata.url)
    assert source() + source() == []
    assert len(metadata.service.tokens) == 1
    metadata.service.tokens.clear()  # the machine slept for longer than a token lives
    metadata.tell(action())
    assert source() == [Notice("reclaim", "AWS", AT)]
    assert len(metadata.service.tokens) == 1


def test_a_proxy_of_the_environment_is_not_asked(metadata: Metadata, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    assert Ec2(metadata.url)() == []


def test_a_time_that_nobody_can_read_is_an_interruption_all_the_same(metadata: Metadata) -> None:
    metadata.tell(action("soon"))
    [notice] = Ec2(metadata.url)()
    assert notice == Notice("reclaim", "AWS", None)
    assert preemption_notices.notice_reason(notice, 1).say == "AWS takes node1 back"


@pytest.mark.parametrize(
    "text",
    ["<html>welcome to this hotel</html>", "{}", '{"action": "none"}', "[]", '"terminate"', "\N{SNOWMAN}", ""],
)
def test_what_is_no_such_document_ends_no_run(metadata: Metadata, text: str) -> None:
    metadata.tell({ACTION: text})
    with pytest.raises(ValueError, match=r"instance-action|Expecting"):
        Ec2(metadata.url)()


def test_how_a_notice_is_told() -> None:
    assert preemption_notices.notice_reason(Notice("reclaim", "AWS", AT), 1).document() == {
        "kind": "reclaim", "by": "AWS", "say": "AWS takes node1 back at 08:22:00Z", "at": AT, "node": 1,
    }  # fmt: skip
    assert preemption_notices.notice_reason(Notice("rebalance", "AWS", AT), 0).say == "AWS may take node0 back soon"


# How it is heard by whoever runs something.


class Watched:
    """A node whose notices are watched."""

    def __init__(self, folder: Path, settings: dict[str, object]) -> None:
        folder.mkdir(parents=True)
        (folder / "node.json").write_text(json.dumps(settings))
        self.heard: queue.Queue[Notice] = queue.Queue()
        self.done = threading.Event()
        preemption_notices.watch_notices(Node(str(folder)), self.done, self.heard.put)

    def next(self) -> Notice:
        return self.heard.get(timeout=HANG_S)


def watchers() -> int:
    return sum(thread.name == "notices" for thread in threading.enumerate())


def until_none() -> None:
    deadline = time.monotonic() + HANG_S
    while watchers():
        assert time.monotonic() < deadline, "still watching"
        time.sleep(0.01)


def test_each_is_heard_once_and_the_last_is_the_last(metadata: Metadata, tmp_path: Path) -> None:
    watched = Watched(tmp_path / "lab/n0", {"notices": {"kind": "ec2", "url": metadata.url, "every_s": 0.02}})
    metadata.tell({REBALANCE: '{"noticeTime": "2026-11-20T08:20:00Z"}'})
    assert watched.next().kind == "rebalance"
    metadata.tell({**action(), REBALANCE: '{"noticeTime": "2026-11-20T08:21:00Z"}'})
    assert watched.next().kind == "reclaim"
    until_none()
    assert watched.heard.empty()


def test_trouble_is_logged_once_and_ends_nothing(
    metadata: Metadata, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Semaphore(0)
    ask = Ec2._request

    def counted(self: Ec2, *args: object) -> object:
        asked.release()
        return ask(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Ec2, "_request", counted)
    metadata.tell({ACTION: "nonsense"})
    watched = Watched(tmp_path / "lab/n0", {"notices": {"kind": "ec2", "url": metadata.url, "every_s": 0.02}})
    for _ in range(10):
        assert asked.acquire(timeout=HANG_S)
    metadata.tell(action())
    assert watched.next() == Notice("reclaim", "AWS", AT)
    assert capsys.readouterr().err.count("notices cannot be read") == 1


def test_a_service_that_is_absent_or_takes_no_end_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preemption_notices, "ANSWER_LIMIT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it takes connections, and never says a word
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        watched = [
            Watched(tmp_path / f"lab/n{index}", {"notices": {"kind": "ec2", "url": one}})
            for index, one in enumerate([url, "http://127.0.0.1:9", "http://[bad", "http://127.0.0.1:port"])
        ]
        for one in watched:
            one.done.set()
        until_none()
    assert all(one.heard.empty() for one in watched)


def test_a_kind_that_this_agent_does_not_know_and_none_at_all(tmp_path: Path) -> None:
    Watched(tmp_path / "lab/n0", {"notices": {"kind": "smoke", "url": "http://127.0.0.1:9"}})
    Watched(tmp_path / "lab/n1", {})
    assert watchers() == 0


def test_a_virtual_node_hears_what_is_said_of_its_machine(metadata: Metadata, tmp_path: Path) -> None:
    metadata.tell(action())
    settings = {"index": 0, "notices": {"kind": "ec2", "url": metadata.url, "every_s": 0.02}}
    Watched(tmp_path / "lab/n0", settings).done.set()
    assert Watched(tmp_path / "lab/n1", {"index": 1, "on": 0}).next().kind == "reclaim"
    until_none()


# How much time a stop has.


@pytest.mark.parametrize(
    ("left", "within"),
    [(120.0, 80.0), (115.0, 75.0), (41.0, 1.0), (40.0, 0.0), (3.0, 0.0), (-900.0, 0.0), (7200.0, 80.0)],
)
def test_a_reserve_is_kept_for_the_results(left: float, within: float) -> None:
    assert preemption_notices.stop_within_s(Notice("reclaim", "AWS", AT), AT - left) == within
    assert (
        preemption_notices.stop_within_s(Notice("reclaim", "AWS", None), AT)
        == preemption_notices.DEFAULT_NOTICE_S
        - preemption_notices.POLL_INTERVAL_S
        - preemption_notices.UPLOAD_RESERVE_S
    )


@pytest.mark.parametrize(
    ("grace", "within", "term", "kill"),
    [
        (10.0, None, 10.0, 20.0),
        (10.0, 75.0, 10.0, 20.0),  # time enough
        (60.0, 75.0, 60.0, 75.0),
        (600.0, 75.0, 75.0 - KILL_DELAY_S, 75.0),
        (10.0, 1.0, 0.0, KILL_DELAY_S),  # a notice that came late
        (10.0, 0.0, 0.0, KILL_DELAY_S),
        (0.0, 75.0, 0.0, 0.0),
    ],
)
def test_a_stop_fits_into_what_is_left(grace: float, within: float | None, term: float, kill: float) -> None:
    steps = [Step(0.0, StopAction.ASK), Step(term, StopAction.TERM), Step(kill, StopAction.KILL)]
    assert stop_steps(StopMode.GRACEFUL, grace, within) == steps


def test_a_stop_that_has_begun_is_hastened() -> None:
    rest = stop_steps(StopMode.GRACEFUL, 100.0)[1:]  # asked 30 s ago
    assert shorten_steps(rest, 30.0 + 20.0) == [Step(48.0, StopAction.TERM), Step(50.0, StopAction.KILL)]
    assert shorten_steps(stop_steps(StopMode.NOW, 100.0), 50.0) == stop_steps(StopMode.NOW, 100.0)
