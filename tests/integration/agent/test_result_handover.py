"""What a run left on a machine that goes is handed to a node that stays: whole, and over nothing that is newer."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpuops.agent import client_activity
from gpuops.agent.node import Node
from gpuops.agent.peers import result_handover
from gpuops.agent.peers.link import Head, Link, Member, Times
from gpuops.agent.peers.result_handover import Handover
from gpuops.agent.result_storage import wait_for_download
from gpuops.agent.run_documents import LaunchSpec
from tests.integration.agent.conftest import until
from tests.ports import free_port

HANG_S = 600.0
TIMES = Times(beat=0.05, silence=HANG_S, join=HANG_S, proof=HANG_S)
"""Nobody is lost because the machine is busy."""
OLD, NEW = 1_700_000_000_000_000_000, 1_700_000_100_000_000_000
"""Times of files (ns)."""


class Side:
    """One node of a run, in this process."""

    def __init__(self, folder: Path, index: int, place: tuple[str, int], secret: str = "s", **spec: Any) -> None:
        self.folder = folder / f"n{index}"
        self.run = self.folder / "runs/r-1"
        self.tree = self.folder / "project"
        for path in (self.run, self.tree):
            path.mkdir(parents=True)
        self.spec = {"run": "r-1", "node": index, "nodes": 2, "tree": "project", "outs": ["*.pt", "last"], **spec}
        (self.run / "spec.json").write_text(json.dumps(self.spec))
        (self.run / "inventory.json").write_text("{}")
        self.node = Node(str(self.folder))
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.done = threading.Event()
        kind = Member if index else Head
        self.link: Link = kind(index, 2, place, secret, lambda _event: None, TIMES)
        self.handover = Handover(self.node, LaunchSpec.parse(self.spec), self.link, self.done, self.event)
        self.link.start()

    def event(self, kind: str, **data: Any) -> None:
        self.events.append((kind, data))

    def file(self, path: str, content: bytes, mtime_ns: int = NEW) -> Path:
        place = self.tree / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        os.utime(place, ns=(mtime_ns, mtime_ns))
        return place

    def said(self, kind: str) -> Any:
        return until(lambda: [data for name, data in self.events if name == kind], f"{kind}: {self.events}")[0]

    def files(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.tree)): path.read_bytes() for path in self.tree.rglob("*") if path.is_file()}


class Pair:
    def __init__(self, folder: Path) -> None:
        place = ("127.0.0.1", free_port())
        self.head, self.member = Side(folder, 0, place), Side(folder, 1, place)

    def reclaim(self, *going: int, left_s: float = 60.0) -> None:
        """Everybody knows; then the run ends everywhere."""
        for side in (self.head, self.member):
            for index in going:
                side.handover.note(index, left_s)
        for side in (self.head, self.member):
            ended = {"event": "ended", "node": side.spec["node"], "outcome": "stopped", "reason": {}}
            side.link.send_event(ended)
            side.link.close()
            side.done.set()
            side.handover.begin()

    def sides(self, going: int) -> tuple[Side, Side]:
        """Who goes, who stays."""
        return (self.head, self.member) if going == 0 else (self.member, self.head)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    for side in (pair.head, pair.member):
        side.link.open_until = 0.0
        side.link.send_event({"event": "ended", "node": side.spec["node"], "outcome": "done", "reason": {}})
        side.link.close()


@pytest.mark.parametrize("going", [0, 1])
def test_what_goes_lies_where_somebody_stays(pair: Pair, going: int) -> None:
    giver, taker = pair.sides(going)
    large = os.urandom(3 * result_handover.MAX_FRAME_BYTES + 17)
    giver.file("snapshots/toy/step-00000120.pt", large)
    giver.file("snapshots/toy/last", b"step-00000120.pt\n")
    giver.file("empty.pt", b"")
    giver.file("notes.txt", b"no pattern names it")
    (taker.run / wait_for_download.HOME).write_text("{}")  # all that it had before is at home
    pair.reclaim(going)
    assert giver.said("handed") == {"to": taker.spec["node"], "files": 3, "bytes": len(large) + 17}
    assert taker.said("took") == {"of": going, "files": 3, "bytes": len(large) + 17}
    assert taker.files() == {
        "snapshots/toy/step-00000120.pt": large, "snapshots/toy/last": b"step-00000120.pt\n", "empty.pt": b"",
    }  # fmt: skip
    assert (taker.tree / "snapshots/toy/last").stat().st_mtime_ns == NEW
    assert not (taker.run / wait_for_download.HOME).exists(), "it is held again"
    assert result_handover.handed_files(str(taker.run)) == dict.fromkeys(taker.files(), going)
    assert not list(taker.folder.glob(f"{result_handover.PART}*"))


def test_who_came_second_takes_what_the_first_did_not(pair: Pair) -> None:
    """One that comes to take may be taken back itself."""
    pair.head.file("a.pt", b"a")
    pair.head.handover.note(0, 60.0)
    pair.head.done.set()
    first = pair.member.link.call_head("take")
    assert first is not None
    offered = first.receive()
    assert offered is not None
    assert offered["path"] == "a.pt"
    second = pair.member.link.call_head("take")
    assert second is not None
    first.close()
    assert second.receive() == offered
    second.send({"want": True})
    assert [second.read(), second.read()] == [b"a", b""]
    second.send({"kept": True})
    assert second.receive() == {"end": True}
    assert pair.head.said("handed") == {"to": 1, "files": 1, "bytes": 1}
    third = pair.member.link.call_head("take")
    assert third is not None
    assert third.receive() == {"end": True}, "once is enough"


def test_two_that_hand_over_at_once_are_both_noted(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of node 0's was at home: whoever comes first says that it is not any more."""
    (pair.head.run / wait_for_download.HOME).write_text("{}")
    exists = os.path.exists

    def slowly(path: str) -> bool:
        found = exists(path)
        time.sleep(0.1)
        return found

    monkeypatch.setattr(result_handover.os.path, "exists", slowly)
    with ThreadPoolExecutor() as pool:
        noted = [pool.submit(pair.head.handover._hold, f"{of}.pt", of) for of in (1, 2)]
        for one in noted:
            one.result(HANG_S)
    assert result_handover.handed_files(str(pair.head.run)) == {"1.pt": 1, "2.pt": 2}
    assert not (pair.head.run / wait_for_download.HOME).exists()


def test_a_file_that_cannot_be_read_keeps_no_other_behind(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.member.file("a.pt", b"a")
    pair.member.file("c.pt", b"c")
    newest = Handover._newest
    monkeypatch.setattr(Handover, "_newest", lambda self: iter([("gone.pt", NEW + 1), *newest(self)]))
    pair.reclaim(1)
    assert pair.head.said("took") == {"of": 1, "files": 2, "bytes": 2}
    assert not [data for name, data in pair.member.events if name == "unhanded"]


def test_nothing_that_is_newer_is_overwritten_and_nothing_is_written_outside(pair: Pair, tmp_path: Path) -> None:
    giver, taker = pair.sides(1)
    for name in ("older.pt", "newer.pt", "same.pt", "link.pt", "out/there.pt", "folder.pt"):
        giver.file(name, b"theirs")
    taker.file("older.pt", b"ours", OLD)
    taker.file("newer.pt", b"ours", NEW + 1)
    taker.file("same.pt", b"ours", NEW)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (taker.tree / "out").symlink_to(elsewhere)
    (taker.tree / "link.pt").symlink_to(elsewhere / "there.pt")
    (taker.tree / "folder.pt").mkdir()
    pair.reclaim(1)
    assert giver.said("handed")["files"] == 1
    assert taker.files() == {"older.pt": b"theirs", "newer.pt": b"ours", "same.pt": b"ours"}
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("path", ["../outside.pt", "/outside.pt", "a/../../outside.pt", "notes.txt"])
def test_a_giver_is_not_believed_everything(pair: Pair, path: str) -> None:
    pair.head.handover.note(1, 60.0)
    pair.head.done.set()
    wire = pair.member.link.call_head("give")
    assert wire is not None
    wire.send({"path": path, "size": 1, "mtime_ns": NEW})
    answer = wire.receive()
    assert answer in (None, {"want": False})
    wire.close()
    assert pair.head.files() == {}


@pytest.mark.parametrize("said", [[b"ab"], [b"abc", b"d"], [b"abc" * 1000]], ids=["less", "more", "much more"])
def test_fewer_or_more_bytes_than_were_announced_are_not_kept(pair: Pair, said: list[bytes]) -> None:
    pair.head.file("a.pt", b"before", OLD)
    pair.head.handover.note(1, 60.0)
    pair.head.done.set()
    wire = pair.member.link.call_head("give")
    assert wire is not None
    wire.send({"path": "a.pt", "size": 3, "mtime_ns": NEW})
    assert wire.receive() == {"want": True}
    with contextlib.suppress(OSError):  # it goes as soon as there are too many
        for block in [*said, b""]:
            wire.write(block)
        assert wire.receive() is None
    wire.close()
    assert pair.head.said("unhanded") == {"why": "a.pt is not as long as was announced"}
    assert pair.head.files() == {"a.pt": b"before"}
    assert not list(pair.head.folder.glob(f"{result_handover.PART}*"))


def test_a_giver_that_vanishes_leaves_nothing_half(pair: Pair) -> None:
    pair.head.handover.note(1, 60.0)
    pair.head.done.set()
    wire = pair.member.link.call_head("give")
    assert wire is not None
    wire.send({"path": "a.pt", "size": 10_000_000, "mtime_ns": NEW})
    assert wire.receive() == {"want": True}
    wire.write(b"abc")
    wire.close()
    assert pair.head.said("unhanded") == {"why": "the other node has disconnected"}
    assert pair.head.files() == {}


@pytest.mark.parametrize("going", [0, 1])
def test_what_was_fetched_is_not_handed_over(pair: Pair, going: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is there has the time to fetch it; only what is at home then is left alone."""
    giver, taker = pair.sides(going)
    giver.file("a.pt", b"a")
    monkeypatch.setattr(client_activity, "silent_for_s", lambda: 0.0)
    looked = threading.Event()
    monkeypatch.setattr(result_handover.end_after_upload, "is_attended", lambda *_: looked.set() or True)
    pair.reclaim(going)
    assert looked.wait(HANG_S), "it waits for who is there"
    (giver.run / wait_for_download.HOME).write_text("{}")
    until(lambda: not any(thread.name == "handover" for thread in threading.enumerate()), "it is over")
    assert taker.files() == {}


def test_with_somebody_there_it_is_handed_over_before_it_is_too_late(pair: Pair, monkeypatch: Any) -> None:
    giver, taker = pair.sides(1)
    giver.file("a.pt", b"a")
    monkeypatch.setattr(result_handover.end_after_upload, "is_attended", lambda *_: True)
    pair.reclaim(1, left_s=result_handover.LATEST_START_S + 0.5)
    assert taker.said("took")["files"] == 1


def test_what_a_sink_has_is_safe(pair: Pair) -> None:
    giver, taker = pair.sides(1)
    giver.file("a.pt", b"a")
    (giver.run / "sink.json").write_text('{"state": "safe", "folder": "/x"}')
    pair.reclaim(1)
    until(lambda: not any(thread.name == "handover" for thread in threading.enumerate()), "it is over")
    assert (giver.events, taker.files()) == ([], {})


def test_where_nobody_stays_nothing_is_handed_over(pair: Pair) -> None:
    pair.member.file("a.pt", b"a")
    pair.reclaim(0, 1)
    assert pair.member.said("unhanded") == {"why": "node0 goes as well"}
    assert pair.head.files() == {}


def test_only_one_of_several_takes_what_node_0_leaves(pair: Pair) -> None:
    pair.head.file("a.pt", b"a")
    pair.reclaim(0)
    assert pair.member.said("took")["files"] == 1
    wire = pair.member.link.call_head("take")
    assert wire is not None
    assert wire.receive() == {"end": True}
    wire.close()


def test_a_machine_that_is_about_to_go_breaks_off(pair: Pair) -> None:
    giver, taker = pair.sides(1)
    giver.file("a.pt", b"a" * 100)
    taker.handover.note(1, 60.0)
    pair.reclaim(1, left_s=-1.0)
    assert giver.said("unhanded") == {"why": "the machine was about to go"}
    assert taker.files() == {}


def test_a_head_that_is_dead_is_an_event(pair: Pair) -> None:
    pair.member.file("a.pt", b"a")
    pair.head.link.open_until = 0.0
    pair.head.link.release_port()
    pair.member.handover.note(1, 60.0)
    pair.member.done.set()
    pair.member.handover.begin()
    assert pair.member.said("unhanded") == {"why": "node0 does not answer"}


def test_who_does_not_know_the_secret_gives_and_takes_nothing(pair: Pair) -> None:
    pair.head.file("a.pt", b"a")
    pair.head.handover.note(0, 60.0)
    pair.head.done.set()
    stranger = Member(1, 2, pair.member.link._head_endpoint, "guess", lambda _event: None, TIMES)  # type: ignore[attr-defined]
    assert [stranger.call_head(role) for role in ("give", "take", "head")] == [None] * 3
    assert pair.member.link.call_head("head") is None, "no other role, with the secret either"


def test_a_disk_without_room_takes_nothing(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    giver, taker = pair.sides(1)
    giver.file("a.pt", b"a")
    free: Callable[[str], int] = lambda _path: result_handover.RESERVED_DISK_BYTES  # noqa: E731
    monkeypatch.setattr(result_handover, "free_bytes", free)
    pair.reclaim(1)
    until(lambda: not any(thread.name == "handover" for thread in threading.enumerate()), "it is over")
    assert taker.files() == {}
