"""The socket that a login by paramiko uses: connected to the host, or to a proxy command that reaches it."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import threading
from typing import IO, Any

from gpuops.core.errors import ConnectionLost, NodeError
from gpuops.core.format import one_line
from gpuops.core.platform import HERE
from gpuops.transport.ssh import errors
from gpuops.transport.ssh.target import Target

READ_BYTES = 1 << 17


class Wire:
    """A connected socket as paramiko uses it. It reads ahead, and counts what comes."""

    def __init__(self, sock: socket.socket) -> None:
        self.received_count = 0
        """Reads that brought something."""
        self._sock = sock
        self._ahead = memoryview(b"")

    def recv(self, count: int) -> bytes:
        if not self._ahead:
            data = self._sock.recv(max(count, READ_BYTES))
            if not data:
                return b""
            self.received_count += 1
            self._ahead = memoryview(data)
        piece, self._ahead = self._ahead[:count], self._ahead[count:]
        return bytes(piece)

    def send(self, data: bytes) -> int:
        return self._sock.send(data)

    @property
    def _closed(self) -> bool:
        """paramiko looks for this name."""
        return self._sock.fileno() < 0

    def settimeout(self, timeout: float | None) -> None:
        self._sock.settimeout(timeout)

    def fileno(self) -> int:
        return self._sock.fileno()

    def getpeername(self) -> Any:
        return self._sock.getpeername()

    def cut(self) -> None:
        """End the connection now, in both directions and for all threads; never raises."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it was not connected any more

    def failure(self) -> ConnectionLost | None:
        """Why the connection failed, where a proxy command has said it; known once this is closed."""
        return None

    def close(self) -> None:
        self._sock.close()


class ProxyWire(Wire):
    """A connection through a proxy command, whose stderr says why it failed."""

    def __init__(self, sock: socket.socket, proxy: subprocess.Popen[bytes], errors_file: IO[bytes], where: str) -> None:
        super().__init__(sock)
        self._proxy = proxy
        self._errors_file = errors_file
        self._where = where
        self._messages = ""
        self._lock = threading.Lock()

    def failure(self) -> ConnectionLost | None:
        if not self._messages:
            return None
        last = one_line(self._messages.splitlines()[-1], errors.MAX_SHOWN_CHARS)
        return ConnectionLost(f"the way to {self._where} is closed: {last}", "check the jump host or proxy")

    def close(self) -> None:
        super().close()
        with self._lock:  # paramiko's thread closes it as well
            if self._errors_file.closed:
                return
            try:
                self._proxy.wait(1)  # it sees the end of its input
            except subprocess.TimeoutExpired:
                self._proxy.kill()
                self._proxy.wait()
            self._errors_file.seek(0)
            self._messages = self._errors_file.read().decode(errors="replace").strip()
            self._errors_file.close()


def dial(target: Target, timeout_s: float) -> Wire:
    """Connect to a host. Raises ConnectionLost."""
    if target.proxy:
        return _through_proxy(target)
    try:
        sock = socket.create_connection((target.host, target.port), timeout=timeout_s)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that no DNS could hold
        raise errors.unreachable(target.where, error if isinstance(error, OSError) else socket.gaierror()) from error
    tune(sock)
    return Wire(sock)


def tune(sock: socket.socket) -> None:
    """Send small writes at once, and let the kernel notice a vanished peer within about half a minute."""
    wanted = (
        (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 15),
        (socket.IPPROTO_TCP, "TCP_KEEPALIVE", 15),  # its name on macOS
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", 4),
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 35_000),
    )
    for level, name, value in wanted:
        option = getattr(socket, name, None)  # systems differ in what they know
        if option is not None:
            try:
                sock.setsockopt(level, option, value)
            except OSError:
                pass  # the login's own keepalive notices a vanished peer as well, later


def proxy_line(target: Target) -> str:
    """The proxy command with its tokens filled in."""
    values = {"%%": "%", "%h": target.host, "%p": str(target.port), "%r": target.user, "%n": target.host}
    line, rest = "", target.proxy
    while rest:
        token = rest[:2] if rest[0] == "%" else rest[0]
        line += values.get(token, token)
        rest = rest[len(token) :]
    return line


def _through_proxy(target: Target) -> Wire:
    if HERE.windows:  # a program there takes no socket as its input and output
        raise NodeError(
            f"on Windows the key of {target.where} cannot be asked for through a proxy",
            f"log in once with `ssh {target.where}`: the key is taken from your known_hosts then",
        )
    ours, theirs = socket.socketpair()
    errors_file = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the wire)
    with theirs:
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {proxy_line(target)}"],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=errors_file,
            start_new_session=True,
        )
    return ProxyWire(ours, process, errors_file, target.where)
