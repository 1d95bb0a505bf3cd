"""Connections of every kind, and servers to connect to."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpuops.transport.connection import Connection, ProcessConnection
from gpuops.transport.ssh.connection import connect
from gpuops.transport.ssh.limits import Gate, Limits
from gpuops.transport.ssh.openssh import end_master
from gpuops.transport.ssh.pool import Pool
from gpuops.transport.ssh.target import Target
from tests.sshd import Sshd, can_serve, serving

KINDS = ("paramiko", "openssh")

Connect = Callable[..., Connection]
MakeSshd = Callable[..., Sshd]


def of_kind(target: Target, kind: str) -> Target:
    return replace(target, system=kind == "openssh")


@pytest.fixture(autouse=True)
def _no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's own keys."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@pytest.fixture
def room() -> Iterator[Path]:
    """The folder of the SSH layer; its name is short, and every master in it is ended."""
    with tempfile.TemporaryDirectory(prefix="room") as folder:
        yield Path(folder)
        for path in (Path(folder) / "cm").glob("*"):
            end_master(path)


@pytest.fixture
def pool() -> Iterator[Pool]:
    one = Pool(Limits(), Gate())
    yield one
    one.close()


@pytest.fixture
def connected(room: Path, pool: Pool) -> Iterator[Connect]:
    """Connections that end with the test."""
    made: list[Connection] = []

    def make(target: Target, kind: str = "paramiko", pool: Pool = pool) -> Connection:
        made.append(connect(of_kind(target, kind), "node0", room, pool))
        return made[-1]

    yield make
    for connection in made:
        connection.close()


@pytest.fixture(scope="session")
def shared_sshd() -> Iterator[Sshd]:
    """One server for all tests that do it no harm. Its shell talks before every program."""
    if why := can_serve():
        pytest.skip(why)
    with serving(bashrc="echo a greeting; printf 'and no end of line'; echo a complaint >&2\n") as server:
        yield server


@pytest.fixture
def sshd() -> Iterator[Callable[..., Sshd]]:
    """Servers of a test's own."""
    if why := can_serve():
        pytest.skip(why)
    open_servers = []

    def make(options: dict[str, object] | None = None, bashrc: str = "") -> Sshd:
        manager = serving(options, bashrc)
        server = manager.__enter__()
        open_servers.append(manager)
        return server

    yield make
    for manager in open_servers:
        manager.__exit__(None, None, None)


@pytest.fixture(params=("process", *KINDS))
def any_kind(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A connection of each kind there is, to a machine whose shell talks too much."""
    if request.param == "process":
        process = ProcessConnection("node0")
        yield process
        process.close()
        return
    connected = request.getfixturevalue("connected")
    yield connected(request.getfixturevalue("shared_sshd").target(), request.param)
