"""On a host: a person who is logged in keeps a rented node, and only for as long as they are there."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import HANG_S, until
from tests.files import change
from tests.system.lab.hosts import Host, Lab
from tests.system.lab.laptop import Laptop, root

IDLE_S = 12.0
SERVER = """
import socket, sys
server = socket.create_server(("127.0.0.1", 47111))
while True:
    held = server.accept()[0]  # as long as its other end
    while held.recv(1): pass
"""
"""What an editor leaves on a machine: it listens, and stays when the editor has gone."""

Enter = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def host(lab: Lab, laptop: Laptop) -> Host:
    one = lab.host("a")
    laptop.up(one)
    # As on a rented machine, which the end of a node is the end of.
    change(folder(one) / "node.json", end=["touch", "/srv/ended"])
    return one


@pytest.fixture
def enter(lab: Lab, laptop: Laptop) -> Iterator[Enter]:
    """`enter(*words)`: plain ssh to the node, as its user types it; its input stays open."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*words: str) -> subprocess.Popen[bytes]:
        argv = [*lab.enter, "ssh", "-F", str(laptop.home / "ssh/lab.conf"), *words]
        started.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()
        # Its output is not read to the end: ssh's own master may hold it for long.
        for stream in (process.stdin, process.stdout):
            assert stream
            stream.close()


def folder(host: Host) -> Path:
    (found,) = root(host).glob("root/.gpuops-*/lab/n0")
    return found


def may_stand_idle(host: Host) -> None:
    """So long, and no longer; before, whoever comes to it may take their time."""
    change(folder(host) / "lease.json", idle_s=IDLE_S)


def is_over(host: Host) -> bool:
    return (root(host) / "srv/ended").exists()


def expect_kept(host: Host) -> None:
    time.sleep(2 * IDLE_S)
    assert not is_over(host)


def test_a_shell_keeps_a_node_while_it_is_open(host: Host, enter: Enter) -> None:
    shell = enter("-tt", "gpuops-lab-0")
    until(lambda: "-bash" in host.processes(), "a shell")
    may_stand_idle(host)
    expect_kept(host)
    assert shell.poll() is None
    shell.communicate(b"exit\n", timeout=HANG_S)
    until(lambda: is_over(host), "the node stands idle, and ends")


def test_an_editor_keeps_a_node_while_it_is_connected(host: Host, enter: Enter) -> None:
    place = root(host) / "root/.vscode-server/bin/1"
    place.mkdir(parents=True)
    (place / "server.py").write_text(SERVER)
    listens = "until ss -ltn | grep -q :47111; do sleep 0.1; done"
    serve = f"nohup python3 ~/.vscode-server/bin/1/server.py >/dev/null 2>&1 & {listens}"
    assert enter("gpuops-lab-0", serve).wait(HANG_S) == 0
    window = enter("-W", "127.0.0.1:47111", "gpuops-lab-0")
    until(lambda: ":47111" in host.run(["ss", "-Htn"]).stdout, "a connection")
    may_stand_idle(host)
    expect_kept(host)
    window.kill()
    until(lambda: is_over(host), "its server is still there, and nobody is connected to it")


def test_a_login_without_a_terminal_keeps_nothing(host: Host, enter: Enter) -> None:
    enter("gpuops-lab-0", "sleep 600")
    until(lambda: "sleep 600" in host.processes(), "a login")
    may_stand_idle(host)
    until(lambda: is_over(host), "the node stands idle, and ends")
