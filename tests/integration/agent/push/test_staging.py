"""A node's end of a push, the transfer: what was staged counts only once it is whole, whoever brought it."""

from __future__ import annotations

import fcntl
import io
import os
import random
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuops.agent.files import push_steps, rsync_receiver
from gpuops.agent.files.incoming import MAX_AT_ONCE_BYTES, MAX_WAITING_BYTES, Shelf
from gpuops.agent.node import Node, Refusal
from gpuops.agent.wire_format import END, head
from tests.fakes.inprocess import InProcessClient
from tests.integration.agent.push.tree import (
    commit,
    contents,
    listed,
    make,
    plan,
    push,
    receive,
    staging,
    stream_of,
    with_part,
)

BIG_BYTES = 2 * MAX_AT_ONCE_BYTES
"""Of a file that is not written at once."""


@pytest.mark.parametrize("cut", [0, 5, 100, 612, 620, 1200])
def test_a_torn_transfer_is_no_push(node: Node, here: Path, cut: int) -> None:
    make(here, {"a": "a" * 600, "b": "b" * 600}, 10**18)
    answer = plan(node, here)
    data = stream_of(here, listed(here), answer["need"])
    with pytest.raises(Refusal) as refused:
        receive(node, answer["push"], data[:cut])
    assert refused.value.kind == "torn"
    with pytest.raises(Refusal) as refused:
        commit(node, answer["push"])
    assert refused.value.kind == "incomplete"
    push(node, here)
    assert contents(Path(node.tree("project"))) == contents(here)


def test_what_does_not_fit_the_plan_is_refused(node: Node, here: Path) -> None:
    make(here, {"a": "a" * 600}, 10**18)
    answer = plan(node, here)
    for name, size in (("0", 5), ("1", 600), ("../x", 600), ("-9", 600)):
        with pytest.raises(Refusal) as refused:
            receive(node, answer["push"], head(name, size) + bytes(size) + END)
        assert refused.value.kind == "torn"


@pytest.mark.parametrize(
    "data",
    [b"", b"[", b"x\n", b"7\n", b"{}\n", b"[0, 600]\n", b'["0"]\n', b'["0", -1]\n', b'["0", "600"]\n', b"[" * 200_000],
)
def test_what_is_no_stream_of_files_is_refused(node: Node, here: Path, data: bytes) -> None:
    make(here, {"a": "a" * 600}, 10**18)
    answer = plan(node, here)
    with pytest.raises(Refusal) as refused:
        receive(node, answer["push"], data)
    assert refused.value.kind == "torn"


def test_what_arrived_whole_is_not_asked_for_again(node: Node, here: Path) -> None:
    make(here, {"a": "a" * 600, "b": "b" * 600}, 10**18)
    answer = plan(node, here)
    receive(node, answer["push"], stream_of(here, listed(here), [0]))
    assert plan(node, here)["need"] == [1]
    make(here, {"a": "A" * 600, "b": "b" * 600}, 10**18 + 1)
    assert plan(node, here)["need"] == [0, 1]


def test_an_older_push_writes_nothing_into_a_newer_one(node: Node, here: Path) -> None:
    make(here, {"a": "a" * 600, "b": "b" * 600}, 10**18)
    older = plan(node, here)
    data = stream_of(here, listed(here), older["need"])
    newer: dict[str, Any] = {}

    class Overtaken(io.BytesIO):
        """A newer push begins once half of the older one's first file has come."""

        def read(self, count: int | None = -1) -> bytes:
            half = super().read(min(count or 0, 300))
            if not newer:
                make(here, {"a": "A" * 600, "b": "B" * 600}, 10**18)
                newer.update(plan(node, here))
            return half

    with pytest.raises(Refusal) as refused:
        push_steps.receive(node, ["--tree", "project", "--push", older["push"]], Overtaken(data), io.BytesIO())
    assert refused.value.kind == "superseded"
    assert list(staging(node, newer["push"]).iterdir()) == []
    receive(node, newer["push"], stream_of(here, listed(here), newer["need"]))
    with pytest.raises(Refusal):
        commit(node, older["push"])
    commit(node, newer["push"])
    assert contents(Path(node.tree("project"))) == {"a": "A" * 600, "b": "B" * 600}


def test_a_disk_with_coarse_times_keeps_what_arrived(node: Node, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    utime = os.utime
    monkeypatch.setattr(os, "utime", lambda path, ns: utime(path, ns=tuple(one // 10**9 * 10**9 for one in ns)))
    make(here, {}, 0)
    (here / "a").write_text("a" * 600)
    utime(here / "a", ns=(10**18 + 5, 10**18 + 5))
    answer = plan(node, here)
    receive(node, answer["push"], stream_of(here, listed(here), answer["need"]))
    assert os.stat(staging(node, answer["push"]) / "a").st_mtime_ns == 10**18
    again = plan(node, here)
    assert again["need"] == []
    commit(node, again["push"])
    assert contents(Path(node.tree("project"))) == contents(here)


def test_what_streams_that_were_cut_left_is_removed(node: Node, here: Path) -> None:
    make(here, {"a": "a" * 600}, 10**18)
    answer = plan(node, here)
    with pytest.raises(Refusal):
        receive(node, answer["push"], stream_of(here, listed(here), [0])[:300])
    incoming = Path(node.path("incoming", "project"))
    assert sorted(os.listdir(incoming)) == [f"files-{answer['push']}", "links", "plan.json"]
    (incoming / "part-4711").write_text("of a killed one")
    (incoming / "part.4711").write_text("of an earlier version's")
    (incoming / "files").mkdir()
    answer = plan(node, here)
    assert sorted(os.listdir(incoming)) == [f"files-{answer['push']}", "links", "plan.json"]


@pytest.mark.parametrize("left", ["", "a" * 400, "b" * 600])
def test_a_small_file_takes_the_place_of_what_lies_there(node: Node, here: Path, left: str) -> None:
    """What another stream of the same push was about to write, or rsync has begun."""
    make(here, {"a": "a" * 600}, 10**18)
    push = plan(node, here)["push"]
    place = staging(node, push) / "a"
    place.write_text(left)
    place.chmod(0o444)
    with place.open("rb") as before:
        incoming, files = push_steps.open_push(node, ["--tree", "project", "--push", push])
        incoming.write(*files[0], [b"a" * 600])
        assert before.read() == left.encode(), "whoever else writes it writes another file"
    commit(node, push)
    assert contents(Path(node.tree("project"))) == contents(here)


def test_a_small_file_that_was_cut_is_no_whole_one(node: Node, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before the file has its time, and before anything was written."""
    make(here, {"a": "a" * 600, "b": "b" * 600}, 10**18)
    push = plan(node, here)["push"]
    incoming, files = push_steps.open_push(node, ["--tree", "project", "--push", push])
    with monkeypatch.context() as patch:
        patch.setattr(os, "utime", lambda *_, **__: os._exit(9))
        if (child := os.fork()) == 0:
            incoming.write(*files[0], [b"a" * 600])
        os.waitpid(child, 0)
        patch.setattr(os, "write", lambda *_, **__: os._exit(9))
        if (child := os.fork()) == 0:
            incoming.write(*files[1], [b"b" * 600])
        os.waitpid(child, 0)
    assert [(path.name, path.stat().st_size) for path in sorted(staging(node, push).iterdir())] == [
        ("a", 600),
        ("b", 0),
    ]
    answer = plan(node, here)
    assert answer["need"] == [0, 1]
    assert list(staging(node, answer["push"]).iterdir()) == []


def drained(stream: Any) -> bool:
    """Whether the other end has read everything from this pipe."""
    waiting = fcntl.ioctl(stream.fileno(), termios.FIONREAD, b"\0" * 4)
    return bool(struct.unpack("i", waiting)[0] == 0)


def test_a_transfer_killed_anywhere_heals(tmp_path: Path) -> None:
    chance = random.Random(1)
    here = tmp_path / "here"
    make(here, {f"f{index}": "x" * chance.randrange(40_000) for index in range(30)}, 10**18)
    client = InProcessClient(tmp_path / "n0")
    files = listed(here)
    for _ in range(20):
        answer = plan(client.node, here)
        data = stream_of(here, files, answer["need"])
        cut = chance.randrange(min(len(data), 60_000))
        channel = client.bulk("receive", "--tree", "project", "--push", answer["push"])
        channel.stdin.write(data[:cut])
        until = time.monotonic() + 600
        while not drained(channel.stdin) and time.monotonic() < until:
            time.sleep(0.002)
        channel.close()  # SIGKILL
        if not answer["need"]:
            break
    push(client.node, here)
    assert contents(Path(client.node.tree("project"))) == contents(here)


@pytest.mark.parametrize("size", [600, BIG_BYTES])
def test_what_another_node_passed_on_counts_for_nothing_until_the_client_vouches_for_it(
    node: Node, here: Path, size: int
) -> None:
    """Not for the next push, either, whatever a file is called there."""
    make(here, {"0": "a" * size}, 10**18)
    incoming, files = push_steps.open_push(node, ["--tree", "project", "--push", plan(node, here)["push"]])
    shelf = Shelf(incoming)
    shelf.put(size, 0, shelf.keep(*files[0], [b"x" * size]), *files[0])
    shelf.settle(size - 1)
    assert os.listdir(incoming.files) == []
    assert os.listdir(shelf.folder) == ["0"] * (size == BIG_BYTES)
    assert plan(node, here)["need"] == [0]
    assert not os.path.exists(shelf.folder)
    shelf.settle(size)
    assert shelf.last is None
    assert shelf.refusal
    assert shelf.refusal.kind == "superseded"


@pytest.mark.parametrize("size", [600, BIG_BYTES])
def test_a_file_that_another_node_sends_twice_does_not_take_the_proof_of_the_first(
    node: Node, here: Path, size: int
) -> None:
    make(here, {"a": "a" * size}, 10**18)
    incoming, files = push_steps.open_push(node, ["--tree", "project", "--push", (push := plan(node, here)["push"])])
    shelf = Shelf(incoming)
    shelf.put(size, 0, shelf.keep(*files[0], [b"a" * size]), *files[0])
    shelf.put(2 * size, 0, shelf.keep(*files[0], [b"x" * size]), *files[0])
    shelf.settle(size)
    commit(node, push)
    assert contents(Path(node.tree("project"))) == contents(here)


def test_files_that_wait_for_the_client_are_held_in_memory_up_to_a_limit(node: Node, here: Path) -> None:
    count = MAX_WAITING_BYTES // MAX_AT_ONCE_BYTES
    make(here, {f"{number:03}": "a" * MAX_AT_ONCE_BYTES for number in range(count + 2)}, 10**18)
    incoming, files = push_steps.open_push(node, ["--tree", "project", "--push", (push := plan(node, here)["push"])])
    shelf = Shelf(incoming)
    for number, file in enumerate(files):
        shelf.put(number + 1, number, shelf.keep(*file, [b"a" * MAX_AT_ONCE_BYTES]), *file)
        if number == count:
            assert os.listdir(shelf.folder) == [str(0)]
            shelf.settle(number)
    assert len(os.listdir(shelf.folder)) == 1, "what was settled made room"
    shelf.settle(len(files))
    commit(node, push)
    assert contents(Path(node.tree("project"))) == contents(here)


@pytest.mark.parametrize(("size", "stays"), [(400, True), (800, True), (600, False)])
def test_a_part_of_an_older_push_whose_size_does_not_tell_that_it_is_one_is_left(
    node: Node, here: Path, size: int, stays: bool
) -> None:
    make(here, {"a": "a" * 600}, 10**18)
    with_part(node, plan(node, here)["push"], size)
    answer = plan(node, here)
    assert answer["need"] == [0]
    assert (staging(node, answer["push"]) / "a").exists() is stays


def test_a_stream_removes_the_part_that_rsync_left_before_it_takes_room(node: Node, here: Path) -> None:
    make(here, {"a": "a" * BIG_BYTES}, 10**18)
    part = with_part(node, (push := plan(node, here)["push"]), 400)
    incoming, files = push_steps.open_push(node, ["--tree", "project", "--push", push])
    found: list[bool] = []
    incoming.write(*files[0], (found.append(part.exists()) or b"a" * (BIG_BYTES // 2) for _ in range(2)))
    assert found == [False, False]
    assert part.read_text() == "a" * BIG_BYTES


def test_a_file_with_the_name_of_the_folder_where_older_clients_leave_parts(node: Node, here: Path) -> None:
    make(here, {"a": "a" * 600}, 10**18)
    older = staging(node, plan(node, here)["push"]) / ".gpuops-partial"
    older.mkdir()
    (older / "a").write_text("a" * 400)
    make(here, {"a": "a" * 600, ".gpuops-partial": "mine"}, 10**18)
    receive(node, (answer := plan(node, here))["push"], stream_of(here, listed(here), answer["need"]))
    commit(node, answer["push"])
    assert contents(Path(node.tree("project"))) == contents(here)


def by_rsync(node: Node, here: Path, push: str) -> None:  # noqa: ARG001
    asked = ["--server", "-tIRe.LsfxCIvu", ".", "files"]
    channel = InProcessClient(Path(node.dir)).bulk("rsync-receive", "--tree", "project", "--push", push, *asked)
    channel.stdin.close()
    channel.wait(60)
    channel.close()


def commit_unfinished(node: Node, here: Path, push: str) -> None:  # noqa: ARG001
    with pytest.raises(Refusal, match="has not arrived"):
        commit(node, push)


ENDING: dict[str, Callable[[Node, Path, str], object]] = {
    "plan": lambda node, here, _: plan(node, here),
    "receive": lambda node, here, push: receive(node, push, stream_of(here, listed(here), [0])),
    "rsync-receive": by_rsync,
    "commit": commit_unfinished,
}


@pytest.mark.parametrize("who", [*ENDING, "one that is not polite"])
def test_an_rsync_that_still_writes_is_ended(node: Node, here: Path, monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    polite = who in ENDING
    monkeypatch.setattr(rsync_receiver, "END_S", 60.0 if polite else 0.2)
    make(here, {"a": "a" * 600}, 10**18)
    answer = plan(node, here)
    script = f"trap {'exit 0' if polite else ''!r} TERM; echo up; while :; do sleep 0.05; done"
    with open(node.path("trees", "project.rsync"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        writer = subprocess.Popen(
            ["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True, pass_fds=[lock.fileno()]
        )
        lock.write(str(writer.pid))
    assert writer.stdout
    writer.stdout.readline()
    ENDING.get(who, ENDING["receive"])(node, here, answer["push"])
    assert writer.wait(60) == (0 if polite else -signal.SIGKILL)
    writer.stdout.close()
