"""A program on a paramiko channel: its streams, its exit code and how it is closed.

`Program` drains stderr in a thread, reports a lost connection as such, and closes in limited time even where the
network hangs. `Chunks` replaces paramiko's buffer of received bytes, which is slow with large windows.
"""

from __future__ import annotations

import io
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from gpuops.transport.connection import STDERR_LIMIT_S
from gpuops.transport.ssh import errors as faults

if TYPE_CHECKING:
    import paramiko

MAX_STDERR_BYTES = 65536
"""How much of the end of stderr is kept."""


class Program:
    """One program. Its stderr is drained by a thread, so it can never block."""

    def __init__(self, channel: paramiko.Channel, where: str) -> None:
        self.closed = False
        self._channel = channel
        self._where = where
        self._errors = bytearray()
        self.stdin = cast(BinaryIO, _Stdin(channel))
        self.stdout = cast(BinaryIO, _Stdout(channel))
        channel.in_buffer = Chunks()  # type: ignore[assignment]
        self._drain_thread = threading.Thread(target=self._drain_stderr, daemon=True, name="ssh stderr")

    def start(self, line: bytes) -> None:
        """Raises SSHException where the server refuses, or the connection ends."""
        self._channel.exec_command(line)
        self._drain_thread.start()

    def _drain_stderr(self) -> None:
        try:
            while chunk := self._channel.recv_stderr(65536):
                self._errors += chunk
                del self._errors[:-MAX_STDERR_BYTES]
        except (OSError, EOFError):
            pass  # the connection ended: `errors` reports it

    def wait(self, timeout: float | None = None) -> int:
        if not self._channel.status_event.wait(timeout):
            raise TimeoutError(f"a program on {self._where} still runs")
        if self._drain_thread.ident is not None:
            self._drain_thread.join(STDERR_LIMIT_S)
        return self._channel.exit_status if self._channel.exit_status >= 0 else faults.CONNECTION_LOST_CODE

    @property
    def connected(self) -> bool:
        """Whether the connection is up. paramiko ends the programs of a lost one first: its saved error counts, too."""
        import paramiko

        transport = self._channel.get_transport()
        saved_error = transport.saved_exception
        return transport.is_active() and (saved_error is None or isinstance(saved_error, paramiko.ChannelException))

    def errors(self) -> str:
        messages = bytes(self._errors).decode(errors="replace")
        if self._channel.exit_status < 0 and not self.closed and not self.connected:
            messages += (
                f"{'' if not messages or messages.endswith(chr(10)) else chr(10)}{faults.ended(self._where).message}\n"
            )
        return messages

    def close(self, limit_s: float = 2.0) -> None:
        if self.closed:
            return
        self.closed = True
        for buffer in (self._channel.in_buffer, self._channel.in_stderr_buffer):
            buffer.close()  # readers here see the end, whatever the network does
        close_thread = threading.Thread(target=self._close_channel, daemon=True, name="ssh close")
        close_thread.start()
        close_thread.join(limit_s)  # on a hung connection it blocks until the login's `tick` closes that

    def _close_channel(self) -> None:
        import paramiko

        try:
            if self._channel.exit_status < 0 and not self._channel.closed:
                self._request_kill()
            self._channel.close()
        except (OSError, EOFError, paramiko.SSHException):
            pass  # the connection ended first

    def _request_kill(self) -> None:
        """Request SIGKILL. sshd sends it for users other than root; a program of root only sees its streams end."""
        import paramiko
        from paramiko.common import cMSG_CHANNEL_REQUEST

        message = paramiko.Message()
        message.add_byte(cMSG_CHANNEL_REQUEST)
        message.add_int(self._channel.remote_chanid)
        message.add_string("signal")
        message.add_boolean(False)
        message.add_string("KILL")
        self._channel.get_transport()._send_user_message(message)  # type: ignore[attr-defined]


class _Stdin(io.RawIOBase):
    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Write as much as the other side accepts now; returns how much. Raises OSError where it accepts no more."""
        import paramiko

        view = memoryview(data).cast("B")
        if not view:
            return 0
        try:
            sent = self._channel.send(bytes(view[: 1 << 15]))
        except (EOFError, paramiko.SSHException) as error:
            raise BrokenPipeError("the connection ended") from error
        if not sent:
            raise BrokenPipeError("the program takes no more")
        return sent

    def close(self) -> None:
        import paramiko

        if self.closed:
            return
        super().close()
        try:
            self._channel.shutdown_write()
        except (OSError, EOFError, paramiko.SSHException):
            pass  # it ended first


class _Stdout(io.RawIOBase):
    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel

    def readable(self) -> bool:
        return True

    def read(self, count: int = -1) -> bytes:
        """At most `count` of the bytes received; waits for the first one. Empty at the end of the stream."""
        import paramiko

        if self.closed:
            raise ValueError("read of a closed stream")
        if count < 0:
            return self.readall()
        try:
            return self._channel.recv(count) if count else b""
        except (EOFError, paramiko.SSHException):
            return b""  # the exit code reports it

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class Chunks:
    """Received bytes that are not read yet. paramiko's own array moves all of them at every read."""

    def __init__(self) -> None:
        self._ready = threading.Condition()
        self._chunks: deque[memoryview] = deque()
        self._size = 0
        self._closed = False

    def feed(self, data: bytes) -> None:
        with self._ready:
            self._chunks.append(memoryview(data))
            self._size += len(data)
            self._ready.notify_all()

    def read(self, count: int, timeout: float | None = None) -> bytes:
        """At most `count` bytes; waits for the first one. The channel has no timeout, so `timeout` is None."""
        with self._ready:
            self._ready.wait_for(lambda: self._chunks or self._closed, timeout)
            pieces = []
            while self._chunks and count:
                piece = self._chunks[0][:count]
                pieces.append(piece)
                count -= len(piece)
                self._size -= len(piece)
                if len(piece) == len(self._chunks[0]):
                    self._chunks.popleft()
                else:
                    self._chunks[0] = self._chunks[0][len(piece) :]
            return b"".join(pieces)

    def empty(self) -> bytes:
        with self._ready:
            unread = b"".join(self._chunks)
            self._chunks.clear()
            self._size = 0
            return unread

    def close(self) -> None:
        with self._ready:
            self._closed = True
            self._ready.notify_all()

    def read_ready(self) -> bool:
        return self._size > 0

    def __len__(self) -> int:
        return self._size
