"""The gang link between real endpoints on loopback, with short times."""

from __future__ import annotations

import json
import queue
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from gpuops.agent.network.unauthenticated_connections import proof
from gpuops.agent.peers.link import Head, Link, Member, Times
from tests.ports import free_port

HANG_S = 600.0
TIMES = Times(beat=0.05, silence=HANG_S, join=HANG_S, proof=HANG_S)
"""Nobody is lost because the machine is busy."""
SHORT = TIMES._replace(silence=1.0)
NONCE = "5" * 64
FAILED = {"kind": "rank", "say": "rank 1 failed with exit code 3"}


class Heard:
    """What one node hears, in order."""

    def __init__(self) -> None:
        self.queue: queue.Queue[Any] = queue.Queue()

    def __call__(self, event: Any) -> None:
        self.queue.put(event)

    def next(self, but: int | None = None, within_s: float = HANG_S) -> Any:
        """`but`: a node that may count as lost, on a machine that was too busy for its heartbeats."""
        while (event := self.queue.get(timeout=within_s))["node"] == but:
            pass
        return event


class Lab:
    """Links of one run; all are told to close at the end."""

    def __init__(self) -> None:
        self.place = ("127.0.0.1", free_port())
        self.links: list[Link] = []

    def node(self, index: int, nodes: int = 2, secret: str = "s", times: Times = TIMES) -> tuple[Link, Heard]:
        heard = Heard()
        link = (Member if index else Head)(index, nodes, self.place, secret, heard, times)
        self.links.append(link)
        link.start()
        return link, heard


@pytest.fixture
def lab() -> Iterator[Lab]:
    lab = Lab()
    yield lab
    for link in lab.links:
        link._times = SHORT  # a head waits no longer for who never came
        link.send_event({"event": "ended", "node": lab.links.index(link), "outcome": "done", "reason": {}})
        link.close()


def ended(node: int, outcome: str = "failed") -> dict[str, Any]:
    return {"event": "ended", "node": node, "outcome": outcome, "reason": FAILED}


def stop(node: int) -> dict[str, Any]:
    return {"event": "stop", "node": node, "why": "dinner", "how": "graceful"}


def test_every_node_hears_every_other(lab: Lab) -> None:
    links, heards = zip(*(lab.node(index, 3) for index in range(3)), strict=True)
    for speaker, link in enumerate(links):
        link.send_event(stop(speaker))
        for listener, heard in enumerate(heards):
            if listener != speaker:
                assert heard.next() == stop(speaker)


def test_what_was_said_before_the_link_stood_is_heard(lab: Lab) -> None:
    member, _ = lab.node(1, 3)
    member.send_event(ended(1))
    member.close()
    _, head = lab.node(0, 3)
    assert head.next() == ended(1)
    _, late = lab.node(2, 3)
    assert late.next() == ended(1)


def test_who_has_ended_is_not_missed(lab: Lab) -> None:
    head, _ = lab.node(0, 3)
    (one, _), (_, heard_two) = lab.node(1, 3), lab.node(2, 3)
    one.send_event(ended(1, "done"))
    one.close()
    assert heard_two.next() == ended(1, "done")
    head.send_event(ended(0, "done"))
    head.close()
    assert heard_two.next() == ended(0, "done")
    for link in lab.links:
        link._times = SHORT
    with pytest.raises(queue.Empty):
        heard_two.next(but=2, within_s=3 * SHORT.silence)


def test_a_member_that_never_joins_is_lost(lab: Lab) -> None:
    _, heard = lab.node(0, times=SHORT._replace(join=2.0))
    event = heard.next()
    assert (event["node"], event["outcome"]) == (1, "lost")
    assert event["reason"]["say"] == "node1 did not join the run within 2 s"


def test_a_head_that_never_answers_is_lost(lab: Lab) -> None:
    _, heard = lab.node(1, times=SHORT._replace(join=2.0))
    event = heard.next()
    assert (event["node"], event["outcome"], event["reason"]["kind"]) == (0, "lost", "gang")


def test_a_member_that_falls_silent_is_lost_to_all(lab: Lab) -> None:
    _, head = lab.node(0, 3, times=SHORT)
    _, other = lab.node(2, 3)
    assert Member(1, 3, lab.place, "s", Heard(), TIMES).call_head("member") is not None  # it never beats
    for heard in (head, other):
        event = heard.next(but=2)
        assert (event["node"], event["reason"]["say"]) == (1, "node1 has not been heard for 1 s")


def test_a_head_that_falls_silent_is_lost(lab: Lab) -> None:
    with socket.socket() as listener:
        listener.bind(lab.place)
        listener.listen()
        _, heard = lab.node(1, times=SHORT)
        connection, _ = listener.accept()
        file = connection.makefile("rwb")
        file.write(json.dumps({"nonce": NONCE}).encode() + b"\n")
        file.flush()
        answer = json.loads(file.readline())
        assert answer["proof"] == proof("s", "member", 1, NONCE)
        file.write(json.dumps({"proof": proof("s", "head", 1, answer["nonce"])}).encode() + b"\n")
        file.flush()
        event = heard.next()
        assert (event["node"], event["outcome"]) == (0, "lost")


def test_a_member_with_the_wrong_secret_hears_nothing(lab: Lab) -> None:
    head, _ = lab.node(0)
    head.send_event(ended(0))
    _, heard = lab.node(1, secret="wrong", times=TIMES._replace(join=2.0))
    event = heard.next()
    assert event["outcome"] == "lost"  # its own words: it was never let in


def test_a_broken_connection_is_made_again(lab: Lab) -> None:
    head, _ = lab.node(0)
    member, heard = lab.node(1)
    head.send_event(stop(0))
    assert heard.next() == stop(0)
    assert isinstance(head, Head)
    head._members[1].close()
    assert heard.next() == stop(0)  # said again to who comes back
    member.send_event(ended(1))
