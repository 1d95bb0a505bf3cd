"""Bulk transfers with programs that stop reading, stop writing, die or are refused; and what a channel leaves."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuops.agent.wire_format import Whole
from gpuops.core.errors import ConnectionLost, NodeRefused, UsageError
from gpuops.core.safe_folder import SafeFolder
from gpuops.sync import restore_snapshots
from gpuops.sync.merged_outputs_record import Held, Memory
from gpuops.sync.project_files import read_entry
from gpuops.transport import bulk_transfer
from gpuops.transport.bulk_transfer import read_files, transfer, write_files
from gpuops.transport.connection import ProcessChannel, ProcessConnection
from gpuops.transport.rpc import AgentClient
from tests.conftest import until

SHORT_S = 1.0
HANGS = "import time; time.sleep(600)"
HALF = """
import sys, tarfile
sys.stdin.read()
member = tarfile.TarInfo('big')
member.size = 1 << 30
sys.stdout.buffer.write(member.tobuf() + bytes(50_000))
sys.stdout.flush()
"""
BIG = 4_000_000
"""Bytes; more than pipes hold."""


def python(program: str) -> ProcessChannel:
    return ProcessChannel([sys.executable, "-c", program])


def pushes(channel: bulk_transfer.TimedChannel, folder: Path) -> None:
    file = read_entry(folder, "big")
    assert file
    write_files(channel, folder, [(0, file)], lambda _: None)


def pulls(channel: bulk_transfer.TimedChannel, _folder: Path) -> None:
    for _, content in read_files(channel, ["big"]):
        while content and content.read(1 << 16):
            pass


@pytest.mark.parametrize(
    ("program", "work"),
    [
        (HANGS, pushes),
        (f"import sys; sys.stdin.buffer.read(100_000); {HANGS}", pushes),
        (HANGS, pulls),
        (HALF + HANGS, pulls),
    ],
    ids=["reads nothing", "stops reading", "writes nothing", "stops writing"],
)
def test_silence_ends_a_transfer(
    tmp_path: Path, program: str, work: Callable[[bulk_transfer.TimedChannel, Path], None]
) -> None:
    (tmp_path / "big").write_bytes(bytes(BIG))
    with (
        pytest.raises(ConnectionLost, match="the transfer with node0 has not moved for 1 s"),
        transfer(python(program), "node0", SHORT_S) as channel,
    ):
        work(channel, tmp_path)


class Watch:
    """The clock that a transfer's watcher looks at: a busy machine takes no time by it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(bulk_transfer, "time", SimpleNamespace(monotonic=lambda: self.now))

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
        time.sleep(SHORT_S / 8)  # the watcher looks meanwhile


def test_a_slow_transfer_is_not_a_silent_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes several times the limit, and moves all the while."""
    (tmp_path / "big").write_bytes(bytes(300_000))
    watch, program = Watch(monkeypatch), python("import sys; sys.stdin.buffer.read()")
    write = program.stdin.write

    def slowly(data: bytes) -> int:
        watch.pass_by(0.9 * SHORT_S)
        return write(data)

    program.stdin.write = slowly  # type: ignore[method-assign, assignment]
    with transfer(program, "node0", SHORT_S) as channel:
        pushes(channel, tmp_path)
        assert not channel.silent
    assert watch.now > 5 * SHORT_S


def test_the_limit_is_for_the_other_side_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes long here, between two reads, is not the node's silence."""
    watch = Watch(monkeypatch)
    with transfer(python("import sys; sys.stdout.write(sys.stdin.read())"), "node0", SHORT_S) as channel:
        Whole(channel.stdin).write(b"we")
        watch.pass_by(5 * SHORT_S)
        Whole(channel.stdin).write(b"ll")
        channel.stdin.close()
        assert channel.stdout.read(100) == b"well"


def test_opening_many_leaves_no_file_open() -> None:
    connection = ProcessConnection("node0")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        connection.open(["true"]).close()
    # What else there is in this process, of other tests, closes its own meanwhile.
    until(lambda: len(os.listdir("/proc/self/fd")) <= before, "no more open than before")
    assert len(connection._channels) <= 1
    connection.close()


def snapshot(tmp_path: Path) -> Memory:
    (tmp_path / "a.pt").write_bytes(bytes(BIG))
    return Memory({"a.pt": {0: Held((BIG, 1), "", "a.pt")}})


def put_back(tmp_path: Path, memory: Memory, *argv: str) -> None:
    client = SimpleNamespace(label="node0", bulk=lambda *_: ProcessChannel(argv))
    places = restore_snapshots.select_places(memory, 0)
    restore_snapshots._send_files("project", "r-1", SafeFolder(tmp_path), (cast(AgentClient, client), places))


@pytest.mark.parametrize(
    ("script", "error", "say"),
    [
        ("echo out of luck >&2; exit 9", ConnectionLost, "the transfer with node0 was cut (out of luck)"),
        ("exec <&-; sleep 0.2; exit 9", ConnectionLost, "the transfer with node0 was cut"),
        ('echo \'{"error": {"kind": "disk", "say": "the disk is full"}}\' >&2; exit 1', NodeRefused,
         "node0: the disk is full"),
        ("cat >/dev/null; exit 1", ConnectionLost, "was cut (no reason given)"),
    ],
)  # fmt: skip
def test_what_goes_wrong_when_snapshots_go_back(tmp_path: Path, script: str, error: Any, say: str) -> None:
    with pytest.raises(error) as caught:
        put_back(tmp_path, snapshot(tmp_path), "sh", "-c", script)
    assert say in caught.value.message


def test_a_snapshot_that_vanished_is_named(tmp_path: Path) -> None:
    memory = snapshot(tmp_path)
    (tmp_path / "a.pt").unlink()
    with pytest.raises(UsageError, match=r"a\.pt cannot be read: No such file"):
        put_back(tmp_path, memory, "cat")


def test_a_transfer_that_does_not_end_is_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuops.transport.bulk_transfer.END_S", 0.3)
    with pytest.raises(ConnectionLost, match="does not end"), transfer(python(HANGS), "node0"):
        pass
