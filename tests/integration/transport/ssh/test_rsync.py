"""rsync over each kind of connection, to a login whose shell talks before every program."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gpuops.core.errors import ConnectionLost, NodeRefused
from gpuops.sync.project_files import read_entry
from gpuops.transport import rsync
from gpuops.transport.connection import Channel, Connection
from gpuops.transport.rsync import Rsync, Upload
from tests.fakes.inprocess import InProcessClient

PATHS = ["a folder/it's $HOME", "-rf"]


@pytest.fixture
def program() -> Rsync:
    found = rsync.local_rsync()
    assert found is not None, "rsync is a package of the tests"
    return found


class Push:
    """Two files, and a node that waits for them."""

    def __init__(self, folder: Path) -> None:
        here = folder / "here"
        (here / "a folder").mkdir(parents=True)
        (here / "a folder" / "it's $HOME").write_bytes(os.urandom(3_000_000))
        (here / "-rf").write_text("small")
        self.upload = Upload(str(here), PATHS)
        self.node = InProcessClient(folder / "there $(touch pwned)")
        files = [entry.wire for path in PATHS if (entry := read_entry(here, path))]
        self.push = self.node.call("plan", tree="project", files=files, rsync=True).push
        self.staging = Path(self.node.node.dir, "incoming", "project", f"files-{self.push}")

    def argv(self, *words: str) -> list[str]:
        return self.node.argv("rsync-receive", "--tree", "project", "--push", self.push, *words)

    def send(
        self,
        program: Rsync,
        start: Callable[[Sequence[str]], Channel],
        on_bytes: Callable[[int], None] = lambda _: None,
    ) -> int:
        """Returns the bytes on the wire."""
        wire: list[int] = []
        rsync.send("node0", lambda *words: start(self.argv(*words)), program, self.upload, on_bytes, wire.append)
        return sum(wire)


@pytest.fixture
def push(tmp_path: Path) -> Push:
    return Push(tmp_path)


def test_files_travel_through_any_connection(any_kind: Connection, program: Rsync, push: Push, tmp_path: Path) -> None:
    counted: list[int] = []
    assert push.send(program, any_kind.open, counted.append) > 3_000_000
    for path in PATHS:
        assert Path(push.staging, path).read_bytes() == Path(push.upload.folder, path).read_bytes()
    assert sum(counted) == 3_000_005
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize("code", [1, 12, 127, 137])
def test_a_node_whose_program_fails_is_told_from_a_lost_connection(
    any_kind: Connection, program: Rsync, push: Push, code: int
) -> None:
    with pytest.raises(rsync.RsyncFailed, match="rsync"):
        push.send(program, lambda _: any_kind.open(["sh", "-c", f"exit {code}"]))


def test_what_the_node_refuses_is_said_in_its_words(any_kind: Connection, program: Rsync, push: Push) -> None:
    push.node.call("plan", tree="project", files=[["other", 1, 1, 0o644, None]], rsync=True)
    with pytest.raises(NodeRefused, match="another push has begun since"):
        push.send(program, any_kind.open)


def test_a_connection_that_cannot_be_opened_ends_rsync_here(program: Rsync, push: Push) -> None:
    def gone(argv: Sequence[str]) -> Channel:
        raise ConnectionLost(f"node0 is gone: {len(argv)}")

    with pytest.raises(ConnectionLost, match="node0 is gone"):
        push.send(program, gone)


def test_a_full_disk_is_said_in_our_words(any_kind: Connection, program: Rsync, push: Push) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", push.staging], check=False).returncode:
        pytest.skip("needs root to make a small disk")
    try:
        with pytest.raises(NodeRefused) as refused:
            push.send(program, any_kind.open)
        assert (refused.value.message, refused.value.kind) == ("node0: the disk is full", "disk")
    finally:
        subprocess.run(["umount", "-l", push.staging], check=True)
