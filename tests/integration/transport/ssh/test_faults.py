"""What a server may do wrong, played by a small one of our own: each ends within a limit, in one sentence."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest

from gpuops.core.errors import ConnectionLost, NodeError
from gpuops.transport.ssh import Denied, HostKeyChanged, Target, scan_host_key
from gpuops.transport.ssh.connection import SshConnection
from gpuops.transport.ssh.errors import Refused
from gpuops.transport.ssh.limits import Gate, Limits
from gpuops.transport.ssh.pool import Pool
from tests.conftest import until
from tests.fakes.ssh_server import FakeServer, faking
from tests.integration.transport.ssh.programs import read_all, run, write_on

USUAL = Limits(connect_s=60, idle_s=1, retry_s=1e9)
"""No machine is so busy that one of these ends what goes well."""
parametrize = pytest.mark.parametrize
SILENT = parametrize("limits", [replace(USUAL, connect_s=0.5, retry_s=2)], ids=["short"])
NEVER_STARTS = parametrize("limits", [replace(USUAL, noise_s=1)], ids=["short"])
ASKS = parametrize("limits", [replace(USUAL, ping_s=1, silence_s=3)], ids=["short"])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FakeServer]:
    with faking(tmp_path) as one:
        yield one


@pytest.fixture
def limits() -> Limits:
    return USUAL


@pytest.fixture
def pool(limits: Limits) -> Iterator[Pool]:
    one = Pool(limits, Gate(limits, sleep=lambda _: None))
    yield one
    one.close()


@pytest.fixture
def node(server: FakeServer, pool: Pool, tmp_path: Path) -> Iterator[SshConnection]:
    connection = SshConnection(server.target(), "node0", tmp_path / "ssh", pool)
    yield connection
    connection.close()


def other(target: Target, pool: Pool) -> SshConnection:
    return SshConnection(target, "node1", Path("/nowhere"), pool)


def test_a_program_runs(node: SshConnection) -> None:
    assert run(node, ["sh", "-c", "cat; echo why >&2; exit 5"], b"in") == (5, b"in", "why\n")


def test_those_turned_away_come_again(server: FakeServer, node: SshConnection) -> None:
    server.faults.turn_away = 3
    assert run(node, ["echo", "in"])[1] == b"in\n"
    assert server.connections == 4


def test_but_not_for_ever(server: FakeServer, node: SshConnection) -> None:
    server.faults.turn_away = 99
    with pytest.raises(Refused, match="closed the connection before the login"):
        node.open(["true"])
    assert server.connections == USUAL.tries


@SILENT
def test_silence_instead_of_a_banner(server: FakeServer, node: SshConnection) -> None:
    server.faults.no_banner = True
    with pytest.raises(ConnectionLost, match="no SSH banner"):
        node.open(["true"])


@SILENT
def test_a_server_that_hangs_after_its_banner(server: FakeServer, node: SshConnection) -> None:
    server.faults.hang_after_banner = True
    with pytest.raises(ConnectionLost, match="stopped answering"):
        node.open(["true"])


@pytest.mark.parametrize("words", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff\xfe\x00\x01\r\n", b"220 mail ready\r\n"])
def test_what_is_no_ssh_server(server: FakeServer, node: SshConnection, words: bytes) -> None:
    server.faults.banner = words
    with pytest.raises(ConnectionLost):
        node.open(["true"])


def test_nobody_listens(server: FakeServer, node: SshConnection, pool: Pool) -> None:
    server.stop()
    with pytest.raises(ConnectionLost, match="refuses connections"):
        node.open(["true"])
    with pytest.raises(ConnectionLost, match="not known to any name server"):
        other(replace(server.target(), host="no-such-host.invalid"), pool).open(["true"])


def test_a_key_that_is_not_taken_is_shown_once(server: FakeServer, node: SshConnection) -> None:
    server.faults.refuse_key = True
    with pytest.raises(Denied, match=r"permission denied for tester@127.0.0.1.*fake_id") as caught:
        node.open(["true"])
    assert "--identity" in caught.value.hint
    assert (server.connections, server.shown) == (1, ["tester"])


def test_a_server_that_hangs_up_when_a_key_is_shown(server: FakeServer, node: SshConnection) -> None:
    server.faults.hang_ups_on_login = 9
    with pytest.raises(NodeError):
        node.open(["true"])
    assert len(server.shown) == 1


def test_a_connection_kept_since_the_scan_that_ends_when_a_key_is_shown(
    server: FakeServer, node: SshConnection
) -> None:
    """The server's patience was over just then: it is asked anew."""
    scan_host_key(server.target(), 60)
    server.faults.hang_ups_on_login = 1
    assert run(node, ["echo", "in"])[1] == b"in\n"
    assert (server.connections, server.shown) == (2, ["tester"] * 2)


def test_many_that_wait_for_a_login_share_its_failure(server: FakeServer, node: SshConnection) -> None:
    """A server counts failed logins, and bans."""
    server.faults.refuse_key = True
    begin = threading.Barrier(8)

    def fail(_: int) -> str:
        begin.wait()
        try:
            node.open(["true"])
        except Denied as error:
            return error.message
        return ""

    with ThreadPoolExecutor(8) as threads:
        assert all("permission denied" in said for said in threads.map(fail, range(8)))
    assert len(server.shown) < 8


def test_another_host_key_is_refused_before_anything_is_sent(server: FakeServer, pool: Pool, tmp_path: Path) -> None:
    with faking(tmp_path) as impostor:
        target = replace(impostor.target(), host_keys=(server.host_key,))
        with pytest.raises(HostKeyChanged, match=r"expected SHA256:\S+, got SHA256:"):
            other(target, pool).open(["true"])
        assert impostor.shown == []


def test_without_a_pinned_key_nothing_is_reached(server: FakeServer, pool: Pool) -> None:
    with pytest.raises(NodeError, match="no host key of"):
        other(replace(server.target(), host_keys=()), pool).open(["true"])
    assert server.connections == 0


def test_more_programs_than_a_login_carries(server: FakeServer, node: SshConnection) -> None:
    server.faults.sessions = 2
    channels = [node.open(["cat"]) for _ in range(6)]
    assert server.logins == 3
    with pytest.raises(ConnectionLost, match="takes no more programs"):
        node.open(["cat"])
    for number, channel in enumerate(channels):
        channel.stdin.write(b"%d" % number)  # those that run were not disturbed
        assert channel.stdout.read(10) == b"%d" % number


def test_programs_are_refused(server: FakeServer, node: SshConnection) -> None:
    server.faults.refuse_exec = True
    with pytest.raises(ConnectionLost, match="refused to start a program"):
        node.open(["true"], b"early " * 40_000)


@NEVER_STARTS
def test_a_program_that_never_begins(server: FakeServer, node: SshConnection) -> None:
    server.faults.never_start = True
    with pytest.raises(ConnectionLost, match="has not started a program within 1 s"):
        node.open(["true"], b"early " * 40_000)


def test_noise_without_end(server: FakeServer, node: SshConnection) -> None:
    server.faults.babble = b"talk " * 10000
    with pytest.raises(ConnectionLost, match="does not stop talking"):
        node.open(["true"])


def test_a_cut_ends_the_program_and_is_told(server: FakeServer, node: SshConnection) -> None:
    server.faults.cut_after = 200_000
    channel = node.open(["head", "-c", "100000000", "/dev/zero"])
    assert 0 < len(read_all(channel)) < 100_000_000
    assert channel.wait(60) != 0
    assert "ended" in channel.errors()
    with pytest.raises((OSError, ValueError)):
        write_on(channel)
    server.faults.cut_after = 0
    assert run(node, ["echo", "again"])[1] == b"again\n"
    assert server.logins == 2


def test_a_cut_is_told_however_slowly_the_connection_ends(
    server: FakeServer, node: SshConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """paramiko ends a lost connection's programs first, and only then says that it is lost."""
    unlink = paramiko.Channel._unlink  # type: ignore[attr-defined]

    def slowly(channel: paramiko.Channel) -> None:
        unlink(channel)
        time.sleep(0.5)

    channel = node.open(["cat"])
    monkeypatch.setattr(paramiko.Channel, "_unlink", slowly)
    server.cut()
    assert channel.wait(60) == 255
    assert "ended" in channel.errors()


def test_connections_share_one_login(server: FakeServer, node: SshConnection, pool: Pool) -> None:
    second = other(server.target(), pool)
    for connection in (node, second, node):
        assert run(connection, ["echo", "hi"])[1] == b"hi\n"
    assert server.logins == 1


def test_an_unused_login_ends_and_a_used_one_does_not(server: FakeServer, node: SshConnection, pool: Pool) -> None:
    assert run(node, ["true"])[0] == 0
    second = other(server.target(), pool)
    channel = second.open(["cat"])
    node.close()
    assert run(second, ["true"])[0] == 0
    channel.stdin.write(b"alive")
    assert channel.stdout.read(5) == b"alive"
    second.close()
    until(lambda: not pool.logins(), "the login has ended")
    assert server.logins == 1


@ASKS
def test_a_silent_program_is_no_dead_connection(node: SshConnection) -> None:
    """The server answers when it is asked, however long its program says nothing."""
    channel = node.open(["sh", "-c", "sleep 4; echo late"])
    assert read_all(channel) == b"late\n"
    assert channel.wait(60) == 0


def test_looking_at_a_host_key_shows_no_key(server: FakeServer) -> None:
    assert scan_host_key(server.target(), 60, prefer=("ssh-ed25519",)) == (server.host_key,)
    assert server.shown == []


def test_looking_says_what_is_wrong(server: FakeServer) -> None:
    server.faults.no_banner = True
    with pytest.raises(ConnectionLost, match="no SSH banner"):
        scan_host_key(server.target(), 0.2, gate=Gate(sleep=lambda _: None))
    server.stop()
    with pytest.raises(ConnectionLost, match="refuses connections"):
        scan_host_key(server.target(), 60)


def test_looking_through_a_proxy(server: FakeServer) -> None:
    relay = (
        "import os, socket, threading\n"
        f"far = socket.create_connection(('127.0.0.1', {server.port}))\n"
        "def back():\n    while data := far.recv(9999): os.write(1, data)\n"
        "threading.Thread(target=back, daemon=True).start()\n"
        "while data := os.read(0, 9999): far.sendall(data)\n"
    )
    script = server.identity.with_name("relay.py")
    script.write_text(relay)
    through = replace(server.target(), host="far.invalid", proxy=f"{sys.executable} {script} %h %p")
    assert scan_host_key(through, 60) == (server.host_key,)


def test_a_proxy_that_fails_says_why(server: FakeServer) -> None:
    broken = replace(server.target(), proxy="echo no way to %h >&2; exit 1; :")
    with pytest.raises(ConnectionLost, match=r"no way to 127\.0\.0\.1"):
        scan_host_key(broken, 60)
    assert server.connections == 0
