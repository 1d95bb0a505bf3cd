"""A port of a host on this computer: what is said while nothing listens there, and when something does."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpuops.commands.ssh import PortState, probe_port, report_port
from gpuops.core.polling import Clock
from gpuops.transport.ssh import command_line, write_config
from tests.conftest import HANG_S, until
from tests.integration.transport.ssh.conftest import MakeSshd
from tests.ports import free_port


def test_what_is_said_of_a_port(sshd: MakeSshd, room: Path) -> None:
    write_config(room, "lab", [sshd().target()])
    here, there = free_port(), free_port()
    program, *rest = command_line(room, "lab", 0, forwards=[f"{here}:127.0.0.1:{there}"])
    assert probe_port(here) is PortState.NOT_FORWARDED
    tunnel = subprocess.Popen([program, "-o", "LogLevel=ERROR", *rest], stderr=subprocess.PIPE)
    said: list[str] = []
    looking = threading.Thread(
        target=lambda: report_port(
            here, said.append, Clock(), open_="open", closed="closed", alive=lambda: tunnel.poll() is None
        )
    )
    looking.start()
    try:
        until(lambda: said == ["closed"], "a word that nothing listens")
        with socket.create_server(("127.0.0.1", there)):
            until(lambda: said == ["closed", "open"], "a word that something does")
        looking.join(HANG_S)
    finally:
        tunnel.terminate()
        _, words = tunnel.communicate(timeout=HANG_S)
    assert words == b"", "ssh itself says nothing of ports where nothing listens"
    assert not looking.is_alive()


def test_who_speaks_first_answers_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        greeter = threading.Thread(target=lambda: server.accept()[0].sendall(b"SSH-2.0"), daemon=True)
        greeter.start()
        assert probe_port(server.getsockname()[1]) is PortState.SERVED


def test_who_hangs_up_does_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            one = server.accept()[0]
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.close()

        threading.Thread(target=hang_up, daemon=True).start()
        assert probe_port(server.getsockname()[1]) is PortState.CLOSED


def test_the_end_of_the_tunnel_ends_the_looking() -> None:
    said: list[str] = []
    lives = iter([True, True, False])
    report_port(free_port(), said.append, Clock(), open_="open", closed="closed", alive=lambda: next(lives))
    assert said == []


FOREGROUND = """
import os, signal, sys, threading, time
from gpuops.commands.ssh import run_foreground

TUNNEL = 'trap "exit 255" INT; echo up; while :; do sleep 0.1; done'

def press_ctrl_c():
    sys.stdin.readline()
    main = threading.main_thread().ident
    while not sys._current_frames()[main].f_code.co_filename.endswith("subprocess.py"):  # it waits for the program
        time.sleep(0.01)
    os.killpg(0, signal.SIGINT)

threading.Thread(target=press_ctrl_c, daemon=True).start()
sys.exit(run_foreground(["sh", "-c", TUNNEL], (lambda process: None) if sys.argv[1] == "forward" else None))
"""


@pytest.mark.parametrize(("command", "code"), [("forward", 0), ("ssh", 255)])
def test_ctrl_c_is_the_good_end_of_a_forward_alone(command: str, code: int) -> None:
    """`ssh` ends with 255 when Ctrl-C ends it."""
    process = subprocess.Popen(
        [sys.executable, "-c", FOREGROUND, command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"up\n"
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.wait(HANG_S) == code
    finally:
        process.kill()
        process.communicate()
