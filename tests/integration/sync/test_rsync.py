"""Pushes by rsync: what only it can do, and what happens where it cannot."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from gpuops.cli.terminal.progress import PlainProgress
from gpuops.core.errors import ConnectionLost, UsageError
from gpuops.core.reporting import Silent
from gpuops.sync import push_transports
from gpuops.sync.project_files import FileEntry
from gpuops.sync.push_transports import choose_transport
from gpuops.sync.uplink import Uplink, parse_rate
from gpuops.sync.upload import PushReport, push_many
from gpuops.transport import rsync
from gpuops.transport.connection import ProcessChannel
from tests.fakes import inprocess
from tests.fakes.inprocess import InProcessClient
from tests.integration.sync.push_world import World, contents


@pytest.fixture
def world(project: Path, node: InProcessClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Everything goes by rsync, however small."""
    monkeypatch.setattr(push_transports, "MIN_RSYNC_BYTES", 0)
    monkeypatch.setattr(push_transports, "MAX_SMALL_FILE_BYTES", -1)
    return World(project, node, tmp_path / "cache")


def sent_bytes(world: World) -> tuple[PushReport, int]:
    """A push, and the bytes that it sent."""
    line = Uplink(measured_bytes_per_s=1e9)  # a fast line: nothing is compressed
    return world.push(uplink=line), line.sent_bytes


def test_of_a_large_file_only_what_changed_is_sent(world: World) -> None:
    data = os.urandom(4_000_000)
    (world.here / "big.bin").write_bytes(data)
    world.push()
    (world.here / "big.bin").write_bytes(data[:1_000_000] + b"a few more bytes" + data[1_000_000:])
    report, sent = sent_bytes(world)
    assert (report.files_sent, report.way.split()[:2]) == (1, ["by", "rsync"])
    assert sent < 100_000
    assert contents(world.there) == contents(world.here)


class CutChannel:
    """A channel whose line is cut after so many bytes."""

    def __init__(self, channel: ProcessChannel, left: float) -> None:
        self.channel, self.left = channel, left
        self.stdin: Any = SimpleNamespace(write=self.write, flush=lambda: None, close=channel.stdin.close)
        self.stdout, self.errors, self.close = channel.stdout, channel.errors, channel.close

    def write(self, data: bytes) -> int:
        self.left -= len(data)
        if self.left < 0:
            self.channel.stdin.close()
            self.channel.wait(60)
            raise BrokenPipeError("the line is cut")
        return self.channel.stdin.write(data) or 0

    def wait(self, timeout: float | None = None) -> int:
        if self.left < 0:
            raise ConnectionLost("the line is cut")
        return self.channel.wait(timeout)


def cut_after(world: World, count: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A push whose line is cut."""
    start = world.node.start
    with monkeypatch.context() as cut:
        cut.setattr(world.node, "start", lambda argv: CutChannel(start(argv), count))
        with pytest.raises(ConnectionLost, match=r"the transfer with node0 was cut"):
            world.push(uplink=Uplink(measured_bytes_per_s=1e9))


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_a_push_that_was_cut_goes_on_within_a_file(world: World, part: float, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 20_000_000
    (world.here / "big.bin").write_bytes(os.urandom(size))
    (world.here / "big.bin").chmod(0o444)  # rsync gives the part the file's mode
    cut_after(world, part * size, monkeypatch)
    assert not (world.there / "big.bin").exists()
    _, again = sent_bytes(world)
    assert again < (1 - part) * size + 0.02 * size + 500_000, "a part that had arrived was sent again"
    assert contents(world.there) == contents(world.here)
    assert not list(Path(world.node.node.dir).rglob(rsync.PARTIAL))


def test_a_part_that_is_there_needs_no_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (world.here / "big.bin").write_bytes(os.urandom(20_000_000))
    cut_after(world, 15_000_000, monkeypatch)
    monkeypatch.setattr("gpuops.agent.files.folder.free_bytes", lambda _: 10_000_000)
    world.push()
    assert contents(world.there) == contents(world.here)


def test_a_push_that_lasts_is_a_sign_of_use(world: World) -> None:
    activity = Path(world.node.node.dir) / "activity"
    assert not activity.exists()
    world.push()
    assert activity.exists()


class Waiting(Uplink):
    """Stops after so many bytes until it may go on."""

    def __init__(self, count: int) -> None:
        super().__init__(measured_bytes_per_s=1e9)
        self.count = count
        self.reached, self.may_go_on = threading.Event(), threading.Event()

    def passed(self, count: int) -> None:
        super().passed(count)
        if self.sent_bytes >= self.count:
            self.reached.set()
            self.may_go_on.wait(60)


def test_a_newer_push_ends_the_older_ones_rsync_and_goes_on_from_its_part(world: World) -> None:
    (world.here / "big.bin").write_bytes(os.urandom(20_000_000))
    older = Waiting(12_000_000)
    failures: list[BaseException] = []

    def push() -> None:
        try:
            world.push(uplink=older)
        except BaseException as error:
            failures.append(error)

    first = threading.Thread(target=push)
    first.start()
    assert older.reached.wait(60)
    _, sent = sent_bytes(world)
    assert contents(world.there) == contents(world.here)
    assert sent < 15_000_000
    with open(world.node.node.path("trees", "project.rsync")) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody writes any more
    older.may_go_on.set()
    first.join(60)
    assert [str(failure) for failure in failures] == ["node0: another push has begun since"]
    assert contents(world.there) == contents(world.here)


def test_what_rsync_leaves_out_is_sent_as_a_stream(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(rsync, "send", lambda *_: None)
    progress = PlainProgress(said.append, ticking=False)
    (report,) = push_many([world.node], "project", world.scan(), progress=progress)  # type: ignore[list-item]
    assert contents(world.there) == contents(world.here)
    assert report.way.endswith(" and as a stream")
    assert "node0: the transfer has left something out; sending it as a stream" in said


def test_what_compresses_is_compressed_on_a_slow_line(world: World) -> None:
    if not rsync.local_rsync().has_zstd:  # type: ignore[union-attr]
        pytest.skip("this rsync has no zstd")
    (world.here / "big.csv").write_text("1,2,3,4\n" * 500_000)
    line = Uplink()
    assert world.push(uplink=line).way.endswith(", compressed")
    assert line.sent_bytes < 400_000


@pytest.mark.parametrize("fault", ["1", "2", "5", "11", "12", "23", "24", "30"])
@pytest.mark.parametrize("end", ["here", "there"])
def test_where_rsync_fails_the_stream_takes_over(
    world: World, fault: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it was that failed, the files come, and the reason is said."""
    script = f"echo 'rsync: something is wrong' >&2; exit {fault}"
    if end == "here":
        failing = world.here.parent / "rsync"
        failing.write_text(f"#!/bin/sh\n{script}\n")
        failing.chmod(0o755)
        monkeypatch.setattr(rsync, "local_rsync", lambda: rsync.Rsync(str(failing), "3.9.9", has_zstd=False))
        taken_over(world)
    else:
        with_failing_node(world, ["sh", "-c", script], monkeypatch)


@pytest.mark.parametrize("script", ["exit 126", "exit 127", "kill -9 $$"])
def test_a_node_whose_rsync_cannot_work_gets_a_stream(
    world: World, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_failing_node(world, ["sh", "-c", script], monkeypatch)


def test_a_node_that_does_not_know_what_rsync_asks_for_gets_a_stream(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = rsync.Upload.argv
    monkeypatch.setattr(rsync.Upload, "argv", lambda *given: [argv(*given)[0], "--delete", *argv(*given)[1:]])
    assert "rsync asks for something unknown" in taken_over(world)


def with_failing_node(world: World, argv: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    start = world.node.start
    monkeypatch.setattr(
        world.node, "start", lambda wanted: ProcessChannel(argv) if "--server" in wanted else start(wanted)
    )
    taken_over(world)


def taken_over(world: World) -> str:
    """What is said where the stream takes over."""
    said: list[str] = []
    progress = PlainProgress(said.append, ticking=False)
    (report,) = push_many([world.node], "project", world.scan(), progress=progress)  # type: ignore[list-item]
    assert contents(world.there) == contents(world.here)
    assert report.way == "as a stream"
    (line,) = [line for line in said if "sending as a stream" in line]
    assert line.startswith("node0: rsync")
    return line


def test_a_node_without_rsync_or_with_an_old_one_gets_a_stream(world: World) -> None:
    (world.here / "big.bin").write_bytes(os.urandom(2_000_000))
    here = rsync.local_rsync()
    assert here is not None

    class Wish(NamedTuple):
        rsync: str
        files: tuple[tuple[int, FileEntry], ...] = ()
        inplace: bool = False
        size: int = 2_000_000

    def chosen(version: str, *more: Any) -> str:
        return choose_transport(Wish(version, *more), Uplink()).describe()  # type: ignore[arg-type]

    good = "rsync  version 3.2.7  protocol version 31\n"
    assert chosen(good) == f"by rsync {here.version}"
    hidden = ((0, FileEntry(f"lib/{rsync.PARTIAL}/x", 4, 0, 0o644)),)
    assert chosen(good, hidden) == "as a stream", "of an agent that looks for parts there"
    assert chosen(good, hidden, True) == f"by rsync {here.version}"
    for text in ("", "rsync  version 3.1.2  protocol version 31", "openrsync: protocol version 29", "x" * 4096):
        assert chosen(text) == "as a stream"


def test_a_small_push_goes_as_a_stream(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert world.push().way == "as a stream"


def test_an_older_agent_is_not_asked_to_write_in_place(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    words: list[str] = []
    start, plan = world.node.start, inprocess.VERBS["plan"]
    monkeypatch.setattr(world.node, "start", lambda argv: (words.extend(argv), start(argv))[1])
    world.push()
    assert {"--inplace", "--partial-dir"} & set(words) == {"--inplace"}
    words.clear()

    def older(*request: Any) -> dict[str, Any]:
        return {name: value for name, value in plan(*request).items() if name != "inplace"}

    monkeypatch.setitem(inprocess.VERBS, "plan", older)
    (world.here / "train.py").write_text("print('another')\n")
    world.push()
    assert {"--inplace", "--partial-dir"} & set(words) == {"--partial-dir"}
    assert contents(world.there) == contents(world.here)


def test_a_name_that_an_older_rsync_option_would_leave_out_arrives(world: World) -> None:
    (world.here / rsync.PARTIAL).mkdir()
    (world.here / rsync.PARTIAL / "x").write_text("mine")
    assert "rsync" in world.push().way
    assert contents(world.there) == contents(world.here)


def test_a_file_that_rsync_has_not_come_to_the_end_of_is_not_taken_for_whole(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it has its size: it was another version's, which rsync was changing in its place."""
    (world.here / "big.bin").write_bytes(os.urandom(8_000_000))
    cut_after(world, 4_000_000, monkeypatch)
    (part,) = Path(world.node.node.dir).rglob("big.bin")
    assert part.stat().st_mtime_ns != (world.here / "big.bin").stat().st_mtime_ns
    os.truncate(part, 8_000_000)
    world.push()
    assert contents(world.there) == contents(world.here)


def test_what_a_project_links_to_meanwhile_is_not_taken_for_its_file(world: World) -> None:
    (world.here.parent / "secret").write_text("s" * 15)
    tree = world.scan()
    (world.here / "train.py").unlink()
    (world.here / "train.py").symlink_to(world.here.parent / "secret")
    push_many([world.node], "project", tree, progress=Silent())  # type: ignore[list-item]
    assert os.readlink(world.there / "train.py") == str(world.here.parent / "secret")


def test_a_link_that_a_killed_commit_left_is_not_written_through(world: World, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    staging = Path(world.node.node.dir) / "incoming/project/files"
    staging.mkdir(parents=True)
    (staging / "lib").symlink_to(outside)
    (staging / "train.py").symlink_to(outside / "train.py")
    world.push()
    assert contents(world.there) == contents(world.here)
    assert not list(outside.iterdir())


@pytest.mark.parametrize(
    ("text", "rate"), [("500k", 500_000), ("2M", 2_000_000), ("1.5MB/s", 1_500_000), ("1g", 10**9), ("4000", 4000)]
)
def test_a_rate(text: str, rate: int) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "2X", "-1M", "0", "1"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no rate"):
        parse_rate(text)
