"""Who was seen at the rendezvous store: with real sockets of this process."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from gpuops.agent import joined, proctable

pytestmark = pytest.mark.skipif(not proctable.PROC, reason="needs /proc")

HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def row(local: int, remote: int, state: str, inode: int) -> str:
    ends = f"0100007F:{local:04X} 0100007F:{remote:04X}"
    return f"   0: {ends} {state} 00000000:00000000 00:00000000 00000000 0 0 {inode} 1\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (row(40000, 23456, "01", 7), {"7"}),
        (row(23456, 40000, "01", 7), {"7"}),
        (row(23456, 0, "0A", 7), {"7"}),
        (row(40000, 23456, "06", 7), set()),
        (row(40000, 23457, "01", 7), set()),
        ("torn", set()),
    ],
)
def test_a_socket_table_is_read(text: str, expected: set[str]) -> None:
    assert joined.parse_table([HEADER, text], 23456) == expected


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_connection_is_seen_once_it_stands(family: socket.AddressFamily) -> None:
    me = os.getpid()
    with socket.socket(family) as listener:
        listener.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
        listener.listen()
        sampler = joined.Sampler(listener.getsockname()[1])
        child = os.fork()
        if child == 0:  # a rank that holds only its own end
            connection = socket.create_connection(listener.getsockname()[:2])
            listener.close()
            connection.recv(1)
            os._exit(0)
        connection, _ = listener.accept()
        while 0 not in sampler.sample({0: child, 1: me + 4_000_000}):
            pass
        assert sampler.joined(0) is True
        assert sampler.joined(1) is None
        connection.close()
        os.waitpid(child, 0)
        assert sampler.sample({0: child}) == set()
        assert sampler.joined(0) is True


def test_enough_looks_without_a_connection_are_a_no() -> None:
    sampler = joined.Sampler(1)
    for looks in range(joined.ENOUGH):
        assert sampler.joined(0) is None, looks
        sampler.sample({0: os.getpid()})
    assert sampler.joined(0) is False


@pytest.mark.skipif(not Path(f"/proc/self/task/{os.getpid()}/children").exists(), reason="kernel tells no children")
def test_a_script_behind_another_program_is_looked_at() -> None:
    child = os.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-c", "import sys; sys.stdin.read()"])
    try:
        assert child in joined.with_children(os.getpid())
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
