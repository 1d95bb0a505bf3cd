"""Modes `forward` and `port`: a port of a job's machine, open on the login node.

Where a batch system is the only way to a machine, a step of the job carries each connection: `port` is its program
there, `forward` starts one for each that it accepts. A first step waits until something listens on the machine.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Sequence

LOOPBACK = "127.0.0.1"
PORT_POLL_INTERVAL_S = 1.0
CHUNK_BYTES = 1 << 16
READY = b"ready\n"
NO_STEP = "error: no step of the job can be started on its machine\nhint: is the job still there? gpuops status\n"
END_LIMIT_S = 5.0
"""Time for steps to end, once their starter is told to."""


def main(mode: str, arguments: Sequence[str]) -> int:
    """`forward STEP… HERE PORT`: until stdin ends, hold a machine's port open at HERE (`127.0.0.1:6006`, or the path of
    a socket in a folder that is made for it); STEP is a command line for a step whose program is `port`. `port PORT`:
    connect stdin and stdout with a port of this machine. `port PORT --wait`: print a line as soon as something listens
    there."""
    if mode == "forward":
        *step, here, port = arguments
        return _Forward(step, port).hold(here)
    if arguments[1:]:
        return _wait_for_port(int(arguments[0]))
    return _carry(int(arguments[0]))


def _wait_for_port(port: int) -> int:
    while True:
        with suppress(OSError):
            socket.create_connection((LOOPBACK, port)).close()
            os.write(1, READY)
            return 0
        if select.select([0], [], [], PORT_POLL_INTERVAL_S)[0]:
            return 0


def _carry(port: int) -> int:
    try:
        connection = socket.create_connection((LOOPBACK, port))
    except OSError:
        return 0  # who connected is told by the end of this step
    threading.Thread(target=_send, args=(connection,), daemon=True).start()
    with suppress(OSError):
        while data := connection.recv(CHUNK_BYTES):
            _write_all(1, data)
    return 0


def _send(connection: socket.socket) -> None:
    with suppress(OSError):
        while data := os.read(0, CHUNK_BYTES):
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


class _Forward:
    def __init__(self, step: Sequence[str], port: str) -> None:
        self._step = [*step, port]
        self._steps: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()

    def hold(self, here: str) -> int:
        if not self._wait():
            return 0 if self._is_over else 1
        is_path = here.startswith("/")
        if is_path:
            os.mkdir(os.path.dirname(here), 0o700)  # others see its name, and could else listen there first
        try:
            self._accept(_listen(here))
        finally:
            if is_path:
                with suppress(OSError):
                    os.remove(here)
                os.rmdir(os.path.dirname(here))
            with self._lock:
                left = list(self._steps)
            for step in left:
                step.terminate()
            self._end(left)
        return 0

    def _wait(self) -> bool:
        """Whether something listens on the machine; False: stdin has ended before."""
        step = subprocess.Popen([*self._step, "--wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert step.stdin is not None
        assert step.stdout is not None
        answer = step.stdout.fileno()
        readable, _, _ = select.select([0, answer], [], [])
        is_served = answer in readable and step.stdout.readline() == READY
        step.stdin.close()
        self._end([step])
        if not (is_served or self._is_over):
            sys.stderr.write(NO_STEP)
        return is_served

    @property
    def _is_over(self) -> bool:
        """Whether stdin has ended."""
        return bool(select.select([0], [], [], 0)[0]) and not os.read(0, CHUNK_BYTES)

    def _accept(self, listener: socket.socket) -> None:
        with listener:
            while True:
                readable, _, _ = select.select([0, listener.fileno()], [], [])
                if self._is_over:
                    return
                if listener.fileno() in readable:
                    connection, _ = listener.accept()
                    threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            step = subprocess.Popen(self._step, stdin=connection.fileno(), stdout=connection.fileno())
            with self._lock:
                self._steps.add(step)
            hang_ups = select.poll()
            hang_ups.register(connection, 0)
            while step.poll() is None:
                if hang_ups.poll(PORT_POLL_INTERVAL_S * 1000):  # nobody would read what the step still brings
                    step.terminate()
                    step.wait()
            with self._lock:
                self._steps.discard(step)

    @staticmethod
    def _end(steps: Sequence[subprocess.Popen[bytes]]) -> None:
        """Wait for steps that end, and kill those that do not."""
        deadline = time.monotonic() + END_LIMIT_S
        for step in steps:
            try:
                step.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                step.kill()


def _listen(here: str) -> socket.socket:
    if here.startswith("/"):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(here)
    else:
        address, _, port = here.rpartition(":")
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, int(port)))
    listener.listen()
    return listener
