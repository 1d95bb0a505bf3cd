"""Pushes by rsync: what only it can do, and what happens where it cannot."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuops.cli.terminal.progress import PlainProgress
from gpuops.core.errors import ConnectionLost, UsageError
from gpuops.core.reporting import Silent
from gpuops.sync import push_transports
from gpuops.sync.push_transports import choose_transport
from gpuops.sync.uplink import Uplink, parse_rate
from gpuops.sync.upload import PushReport, push_many
from gpuops.transport import rsync, schemas
from gpuops.transport.connection import ProcessChannel
from tests.fakes.inprocess import InProcessClient
from tests.integration.sync.push_world import World, contents


@pytest.fixture
def world(project: Path, node: InProcessClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Everything goes by rsync, however small."""
    monkeypatch.setattr(push_transports, "MIN_RSYNC_BYTES", 0)
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


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_a_push_that_was_cut_goes_on_within_a_file(world: World, part: float) -> None:
    size = 20_000_000
    (world.here / "big.bin").write_bytes(os.urandom(size))

    class Cut(Uplink):
        def passed(self, count: int) -> None:
            super().passed(count)
            if self.sent_bytes > part * size:
                raise OSError("the line is cut")

    line = Cut(measured_bytes_per_s=1e9)
    with pytest.raises(ConnectionLost, match=r"the transfer with node0 was cut"):
        world.push(uplink=line)
    assert not (world.there / "big.bin").exists()
    _, again = sent_bytes(world)
    assert again < (1 - part) * size + 0.02 * size + 500_000, "a part that had arrived was sent again"
    assert contents(world.there) == contents(world.here)
    assert not list(Path(world.node.node.dir).rglob(rsync.PARTIAL))


def test_what_compresses_is_compressed_on_a_slow_line(world: World) -> None:
    if not rsync.local_rsync().has_zstd:  # type: ignore[union-attr]
        pytest.skip("this rsync has no zstd")
    (world.here / "big.csv").write_text("1,2,3,4\n" * 500_000)
    line = Uplink()
    assert world.push(uplink=line).way.endswith(", compressed")
    assert line.sent_bytes < 400_000


@pytest.mark.parametrize("fault", ["1", "2", "5", "11", "23", "24", "126", "127", "signal"])
def test_where_rsync_fails_the_stream_takes_over(world: World, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it was that failed, the files come, and the reason is said."""
    said: list[str] = []
    start = world.node.start
    program = "kill -9 $$" if fault == "signal" else f"echo 'rsync: something is wrong' >&2; exit {fault}"

    def fails(argv: Sequence[str]) -> ProcessChannel:
        return ProcessChannel(["sh", "-c", program]) if "--server" in argv else start(argv)

    if fault in ("11", "23", "24", "1", "5", "2"):  # the codes of the rsync of this computer
        failing = world.here.parent / "rsync"
        failing.write_text(f"#!/bin/sh\necho 'rsync: something is wrong' >&2\nexit {fault}\n")
        failing.chmod(0o755)
        monkeypatch.setattr(rsync, "local_rsync", lambda: rsync.Rsync(str(failing), "3.9.9", has_zstd=False))
    else:
        monkeypatch.setattr(world.node, "start", fails)
    progress = PlainProgress(said.append, ticking=False)
    push_many([world.node], "project", world.scan(), progress=progress)  # type: ignore[list-item]
    assert contents(world.there) == contents(world.here)
    assert any("node0: rsync" in line and "sending without rsync" in line for line in said), said


def test_a_node_without_rsync_or_with_an_old_one_gets_a_stream(world: World) -> None:
    (world.here / "big.bin").write_bytes(os.urandom(2_000_000))
    here = rsync.local_rsync()
    assert here is not None

    class Wish:
        size, files = 2_000_000, ()

    def chosen(node: schemas.NodeRsync | None) -> str:
        return choose_transport(Wish(), node, Uplink()).describe()  # type: ignore[arg-type]

    new = schemas.NodeRsync("/usr/bin/rsync", "rsync  version 3.2.7  protocol version 31\n", "/s", "/t")
    assert chosen(new) == f"by rsync {here.version}"
    assert chosen(None) == "as a stream"
    for text in ("rsync  version 3.0.9  protocol version 30", "openrsync: protocol version 29", "", "x" * 5000):
        assert chosen(schemas.NodeRsync("/usr/bin/rsync", text, "/s", "/t")) == "as a stream"


def test_a_small_push_goes_as_a_stream(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert world.push().way == "as a stream"


def test_a_name_that_rsync_would_leave_out_goes_as_a_stream(world: World) -> None:
    (world.here / rsync.PARTIAL).mkdir()
    (world.here / rsync.PARTIAL / "x").write_text("mine")
    assert world.push().way == "as a stream"
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
