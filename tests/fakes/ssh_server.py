"""A small SSH server in this process, for faults that a real one does not have on demand. Needs nothing installed.

It runs what it is told with `sh -c`, as this user; keys and place are its own.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import paramiko

from gpuops.transport.ssh import Target
from gpuops.transport.ssh.paramiko_transport import silence_logger


@dataclass
class Faults:
    """What goes wrong. Counts are of connections, from the first."""

    turn_away: int = 0
    """So many are closed before the banner."""
    no_banner: bool = False
    """Connections are taken, and nothing is said."""
    banner: bytes = b""
    """Said instead of SSH's own, then hung up."""
    hang_after_banner: bool = False
    refuse_key: bool = False
    """No key is good enough."""
    hang_ups_on_login: int = 0
    """So often it ends the connection when a key is shown."""
    sessions: int = 100
    """Channels that one connection may have."""
    refuse_exec: bool = False
    never_start: bool = False
    """A program is accepted, and never begins."""
    babble: bytes = b""
    """Said without end instead of a program's output."""
    cut_after: int = 0
    """Bytes of output after which the connection is cut."""


class FakeServer:
    """Listens until `stop`. `faults` may be changed at any time."""

    def __init__(self, folder: Path, faults: Faults | None = None) -> None:
        silence_logger()
        self.faults = faults or Faults()
        self.identity = folder / "fake_id"
        key = paramiko.ECDSAKey.generate()
        key.write_private_key_file(str(self.identity))
        self.accepted = key.get_base64()
        self._host_key = paramiko.ECDSAKey.generate()
        self.host_key = f"{self._host_key.get_name()} {self._host_key.get_base64()}"
        self.connections = 0
        self.logins = 0
        self.shown: list[str] = []
        """Users that showed a key, in order."""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def target(self, **changes: object) -> Target:
        fields: dict[str, object] = {
            "host": "127.0.0.1",
            "port": self.port,
            "user": "tester",
            "identities": (str(self.identity),),
            "identities_only": True,
            "host_keys": (self.host_key,),
        }
        return Target(**{**fields, **changes})  # type: ignore[arg-type]

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(client)
            threading.Thread(target=self._serve, args=(client, self.connections), daemon=True).start()

    def _serve(self, client: socket.socket, number: int) -> None:
        faults = self.faults
        if number <= faults.turn_away:
            client.close()
        elif faults.banner:
            client.sendall(faults.banner)
            client.close()
        elif faults.hang_after_banner:
            client.sendall(b"SSH-2.0-Fake\r\n")
        elif not faults.no_banner:
            self._speak(client)

    def _speak(self, client: socket.socket) -> None:
        transport = paramiko.Transport(client)
        transport.add_server_key(self._host_key)
        with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
            transport.start_server(server=_Session(self, client))

    def cut(self) -> None:
        """End every connection without a word."""
        for client in self._open:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # closing alone does not wake who accepts
        self._socket.close()
        self.cut()


class _Session(paramiko.ServerInterface):
    """One connection."""

    def __init__(self, server: FakeServer, client: socket.socket) -> None:
        self._server = server
        self._client = client
        self._sessions = 0

    def get_allowed_auths(self, username: str) -> str:  # noqa: ARG002
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        self._server.shown.append(username)
        if self._server.faults.hang_ups_on_login:
            self._server.faults.hang_ups_on_login -= 1
            self._client.shutdown(socket.SHUT_RDWR)
        if self._server.faults.refuse_key or key.get_base64() != self._server.accepted:
            return paramiko.AUTH_FAILED  # type: ignore[attr-defined,no-any-return]
        self._server.logins += 1
        return paramiko.AUTH_SUCCESSFUL  # type: ignore[attr-defined,no-any-return]

    def check_channel_request(self, kind: str, chanid: int) -> int:  # noqa: ARG002
        self._sessions += 1
        if self._sessions > self._server.faults.sessions:
            return paramiko.OPEN_FAILED_CONNECT_FAILED  # type: ignore[attr-defined,no-any-return]
        return paramiko.OPEN_SUCCEEDED  # type: ignore[attr-defined,no-any-return]

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        if self._server.faults.refuse_exec:
            return False
        threading.Thread(target=self._run, args=(channel, command), daemon=True).start()
        return True

    def _run(self, channel: paramiko.Channel, command: bytes) -> None:
        faults = self._server.faults
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            if faults.never_start:
                return
            while faults.babble:
                channel.sendall(faults.babble)
            self._run_program(channel, command)

    def _run_program(self, channel: paramiko.Channel, command: bytes) -> None:
        process = subprocess.Popen(
            ["sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )
        assert process.stdin
        assert process.stdout
        assert process.stderr
        stdin, stdout, stderr = process.stdin, process.stdout, process.stderr

        def feed() -> None:
            with contextlib.suppress(OSError), stdin:
                while data := channel.recv(65536):
                    stdin.write(data)

        def complain() -> None:
            with stderr:
                while data := os.read(stderr.fileno(), 65536):
                    channel.sendall_stderr(data)

        threads = [threading.Thread(target=work, daemon=True) for work in (feed, complain)]
        for thread in threads:
            thread.start()
        sent = 0
        with stdout:
            while data := os.read(stdout.fileno(), 65536):
                channel.sendall(data)
                sent += len(data)
                if self._server.faults.cut_after and sent > self._server.faults.cut_after:
                    self._server.cut()
        threads[1].join()
        channel.send_exit_status(process.wait())
        channel.close()
        self._sessions -= 1


@contextlib.contextmanager
def faking(folder: Path, faults: Faults | None = None) -> Iterator[FakeServer]:
    server = FakeServer(folder, faults)
    try:
        yield server
    finally:
        server.stop()
