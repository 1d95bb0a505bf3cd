"""rsync over each kind of connection, to a login whose shell talks before every program."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuops.core.errors import ConnectionLost, NodeRefused
from gpuops.transport import rsync
from gpuops.transport.connection import Channel, Connection
from gpuops.transport.rsync import Rsync, Upload


@pytest.fixture
def program() -> Rsync:
    found = rsync.local_rsync()
    assert found is not None, "rsync is a package of the tests"
    return found


def upload(tmp_path: Path) -> Upload:
    here = tmp_path / "here"
    (here / "a folder").mkdir(parents=True)
    (here / "a folder" / "it's $HOME").write_bytes(os.urandom(3_000_000))
    (here / "-rf").write_text("small")
    there = tmp_path / "there $(touch pwned)"
    there.mkdir()
    return Upload(str(here), ["a folder/it's $HOME", "-rf"], str(there), str(tmp_path / "no tree yet"))


def test_files_travel_through_any_connection(any_kind: Connection, program: Rsync, tmp_path: Path) -> None:
    wanted = upload(tmp_path)
    counted: list[int] = []
    wire: list[int] = []
    rsync.send(any_kind, program, program, wanted, counted.append, wire.append)
    for path in wanted.paths:
        assert Path(wanted.staging, path).read_bytes() == Path(wanted.folder, path).read_bytes()
    assert sum(counted) == 3_000_005
    assert sum(wire) > 3_000_000
    assert not list(tmp_path.rglob("pwned"))


def test_a_node_without_that_program_is_told_from_a_lost_connection(
    any_kind: Connection, program: Rsync, tmp_path: Path
) -> None:
    gone, wanted = Rsync("/nowhere/rsync", "3.2.7", has_zstd=False), upload(tmp_path)
    with pytest.raises(rsync.RsyncFailed, match="does not work on the node"):
        rsync.send(any_kind, program, gone, wanted, lambda _: None, lambda _: None)


def test_a_connection_that_cannot_be_opened_ends_rsync_here(program: Rsync, tmp_path: Path) -> None:
    class Gone:
        label = "node0"

        def open(self, argv: Sequence[str]) -> Channel:
            raise ConnectionLost(f"node0 is gone: {argv[0]}")

        def close(self) -> None:
            pass

    wanted = upload(tmp_path)
    with pytest.raises(ConnectionLost, match="node0 is gone"):
        rsync.send(Gone(), program, program, wanted, lambda _: None, lambda _: None)


def test_a_full_disk_is_said_in_our_words(any_kind: Connection, program: Rsync, tmp_path: Path) -> None:
    wanted = upload(tmp_path)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", wanted.staging], check=False).returncode:
        pytest.skip("needs root to make a small disk")
    try:
        with pytest.raises(NodeRefused) as refused:
            rsync.send(any_kind, program, program, wanted, lambda _: None, lambda _: None)
        assert (refused.value.message, refused.value.kind) == ("node0: the disk is full", "disk")
    finally:
        subprocess.run(["umount", "-l", wanted.staging], check=True)
