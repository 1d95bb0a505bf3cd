"""Who was seen at the rendezvous store: with real sockets of this process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuops.agent import process_table, sockets
from gpuops.agent.run import joined_ranks
from tests.conftest import until

pytestmark = pytest.mark.skipif(not process_table.PROC, reason="needs /proc")

HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def row(local: int, remote: int, state: str, inode: int) -> str:
    ends = f"0100007F:{local:04X} 0100007F:{remote:04X}"
    return f"   0: {ends} {state} 00000000:00000000 00:00000000 00000000 0 0 {inode} 1\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (row(40000, 23456, "01", 7), [("0100007F:9C40", 40000, 23456, "01", "7")]),
        (row(23456, 40000, "01", 7), [("0100007F:5BA0", 23456, 40000, "01", "7")]),
        (row(23456, 0, "0A", 7), [("0100007F:5BA0", 23456, 0, "0A", "7")]),
        (row(40000, 23456, "06", 0), [("0100007F:9C40", 40000, 23456, "06", "0")]),
        (row(40000, 23456, "02", 7), []),
        (row(40000, 23457, "01", 7), []),
        ("torn", []),
    ],
)
def test_a_socket_table_is_read(text: str, expected: list[tuple[str, int, int, str, str]]) -> None:
    assert joined_ranks.of_store(sockets.parse_connections([HEADER, text]), 23456) == expected


def unknown_server() -> socket.socket:
    """At a port that nobody was connected to lately: for a minute the kernel still tells of such."""
    while True:
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        if not any(row.remote_port == port for row in sockets.list_connections() or []):
            return listener
        listener.close()


@pytest.mark.parametrize(("connections", "expected"), [(1, False), (2, None), (3, True)])
def test_connections_that_nobody_saw_are_counted_afterwards(connections: int, expected: bool | None) -> None:
    """One node of two ranks: torchrun's own connection, then those of ranks that were gone too soon."""
    with unknown_server() as listener:
        port = listener.getsockname()[1]
        now = [0.0]
        sampler = joined_ranks.Sampler(port, 1, 2, clock=lambda: now[0])
        other = subprocess.Popen(["sleep", "600"])
        try:
            for _ in range(connections):
                socket.create_connection(("127.0.0.1", port)).close()
                listener.accept()[0].close()
            for now[0] in (0.0, joined_ranks.MIN_SAMPLED_S):
                sampler.sample({0: other.pid})
            assert sampler.joined(0) is expected
        finally:
            other.kill()
            other.wait()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_connection_is_seen_once_it_stands(family: socket.AddressFamily) -> None:
    me = os.getpid()
    with socket.socket(family) as listener:
        listener.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
        listener.listen()
        # So many ranks that what the kernel still lists of an earlier listener at this port does not count for them.
        sampler = joined_ranks.Sampler(listener.getsockname()[1], 1, 10_000)
        child = os.fork()
        if child == 0:  # a rank that holds only its own end
            connection = socket.create_connection(listener.getsockname()[:2])
            listener.close()
            connection.recv(1)
            os._exit(0)
        connection, _ = listener.accept()
        while not sampler.joined(0):
            sampler.sample({0: child, 1: me + 4_000_000})
        assert sampler.joined(1) is None
        connection.close()
        os.waitpid(child, 0)
        sampler.sample({0: child})
        assert sampler.joined(0) is True


def test_a_long_enough_look_without_a_connection_is_a_no() -> None:
    now = [100.0]
    sampler = joined_ranks.Sampler(1, 1, 4, clock=lambda: now[0])
    assert sampler.joined(0) is None
    for seconds, expected in ((0.0, None), (joined_ranks.MIN_SAMPLED_S / 2, None), (joined_ranks.MIN_SAMPLED_S, False)):
        now[0] = 100.0 + seconds
        sampler.sample({0: os.getpid()})
        assert sampler.joined(0) is expected


def test_where_no_table_can_be_read_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined_ranks, "list_connections", lambda _pid: None)
    monkeypatch.setattr(joined_ranks, "socket_inodes", lambda _pid: set())
    now = [0.0]
    sampler = joined_ranks.Sampler(1, 1, 4, clock=lambda: now[0])
    for now[0] in (0.0, 0.5, 0.5 + joined_ranks.MIN_SAMPLED_S):
        sampler.sample({0: os.getpid()})
    assert sampler.joined(0) is None


def test_the_table_is_read_seldom_while_a_rank_holds_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be long, and torch is imported for seconds."""
    now, reads = [0.0], [0]
    real = sockets.list_connections

    def read(pid: int | None = None) -> list[sockets.Connection] | None:
        reads[0] += 1
        return real(pid)

    monkeypatch.setattr(joined_ranks, "list_connections", read)
    sampler = joined_ranks.Sampler(1, 1, 4, clock=lambda: now[0])
    with subprocess.Popen(["sleep", "600"]) as other:
        for now[0] in (0.0, 0.5, 1.0, joined_ranks.LATE_SAMPLE_INTERVAL_S):
            sampler.sample({0: other.pid})
        other.kill()
    assert reads == [2]
    with socket.socket():
        sampler.sample({1: os.getpid()})
    assert reads == [3]


def test_who_lives_is_looked_at_until_the_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sampler = joined_ranks.Sampler(listener.getsockname()[1], 1, 4)
        sampler.start()
        assert sampler.watch({}) == set()
        until(lambda: sampler.watch({3: os.getpid()}) == {3}, "it was seen")
        sampler.stop()


def test_a_look_that_is_only_slow_is_soon_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a look costs is no more on a machine that is busy with others; how long it takes is."""
    pauses: list[float] = []

    def wait(seconds: float) -> bool:
        pauses.append(seconds)
        return len(pauses) == 3

    sampler = joined_ranks.Sampler(1, 1, 4)
    monkeypatch.setattr(sampler, "sample", lambda _: time.sleep(0.5))
    monkeypatch.setattr(sampler, "_stop_requested", SimpleNamespace(wait=wait))
    sampler._run()
    assert max(pauses) < joined_ranks.PAUSE_PER_COST * 0.5


@pytest.mark.skipif(not Path(f"/proc/self/task/{os.getpid()}/children").exists(), reason="kernel tells no children")
def test_a_script_behind_another_program_is_looked_at() -> None:
    child = os.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-c", "import sys; sys.stdin.read()"])
    try:
        assert child in process_table.with_children(os.getpid())
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
