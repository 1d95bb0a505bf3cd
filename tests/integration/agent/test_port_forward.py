"""A machine's port, held open on a login node by a step for each connection; processes of this machine stand in."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import HANG_S, until
from tests.ports import free_port

AGENT = [sys.executable, "-m", "gpuops.agent"]
STEP = ["sh", "-c", 'exec "$@"', "step", *AGENT, "port"]


class Forward:
    def __init__(self, folder: Path, step: list[str]) -> None:
        self.port = free_port()
        self.path = folder / "way/port"
        argv = [*AGENT, "forward", *step, str(self.path), str(self.port)]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def connect(self) -> socket.socket:
        until(self.path.exists, "the way is open")
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(HANG_S)
        client.connect(str(self.path))
        return client

    def steps(self) -> list[str]:
        listed = subprocess.run(["ps", "-eo", "args", "--ppid", str(self.process.pid)], capture_output=True, text=True)
        return [line for line in listed.stdout.splitlines() if f" port {self.port}" in line]


@pytest.fixture
def forward(tmp_path: Path) -> Iterator[Forward]:
    one = Forward(tmp_path, STEP)
    yield one
    assert one.process.stdin
    one.process.stdin.close()
    assert one.process.wait(HANG_S) == 0
    until(lambda: not one.steps(), f"no step, but {one.steps()}")
    assert not one.path.parent.exists()


def test_a_connection_ends_on_one_side_at_a_time(forward: Forward) -> None:
    """Who has said all still hears the answer; and the way opens only once something listens."""
    assert not forward.path.exists()
    with socket.create_server(("127.0.0.1", forward.port)) as server:
        client = forward.connect()
        waited, _ = server.accept()
        waited.close()
        with client, server.accept()[0] as served:
            client.sendall(b"question")
            client.shutdown(socket.SHUT_WR)
            assert served.makefile("rb").read() == b"question"
            served.sendall(b"\0\r\n" * (1 << 18))
            served.shutdown(socket.SHUT_WR)
            assert client.makefile("rb").read() == b"\0\r\n" * (1 << 18)


def test_a_step_does_not_outlive_who_connected(forward: Forward) -> None:
    """Also where the server does not end its side."""
    with socket.create_server(("127.0.0.1", forward.port)) as server:
        client = forward.connect()
        server.accept()[0].close()
        with server.accept()[0]:
            assert forward.steps()
            client.close()
            until(lambda: not forward.steps(), "the step ends")


def test_what_ends_before_something_listens_leaves_nothing(forward: Forward) -> None:
    until(forward.steps, "a step waits")


def test_a_job_that_is_gone(tmp_path: Path) -> None:
    refused = Forward(tmp_path, ["false"]).process
    assert refused.wait(HANG_S) == 1
    assert refused.stderr
    assert refused.stderr.readline() == "error: no step of the job can be started on its machine\n"
