"""A program on a paramiko channel: its streams, its exit code and how it is closed.

`Program` keeps the end of its stderr, reports a lost connection as such, and starts and closes in limited time even
where the network hangs. `Chunks` replaces paramiko's buffer of received bytes, which is slow with large windows, and
`Tail` that of stderr, which a thread would have to read.
"""

from __future__ import annotations

import io
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from gpuops.agent.workers import WORKERS
from gpuops.transport.connection import STDERR_LIMIT_S, send_early
from gpuops.transport.ssh import errors as faults

if TYPE_CHECKING:
    import paramiko

MAX_STDERR_BYTES = 65536
"""How much of the end of stderr is kept."""
ACKNOWLEDGE_BYTES = 1 << 20
"""After so many bytes of stderr the other side hears of them: less than the window that it has."""


class Program:
    """One program. Its stderr is taken as it comes, so that it can never block."""

    def __init__(self, channel: paramiko.Channel, where: str) -> None:
        self.closed = False
        self._channel = channel
        self._where = where
        self.stdin = cast(BinaryIO, _Stdin(channel))
        self.stdout = cast(BinaryIO, _Stdout(channel))
        channel.in_buffer = Chunks()  # type: ignore[assignment]
        self._tail = Tail(lambda: WORKERS.start(self._acknowledge, "ssh stderr"))
        channel.in_stderr_buffer = self._tail  # type: ignore[assignment]

    def start(self, line: bytes, limit_s: float, early: bytes = b"") -> None:
        """`early` goes behind the request, before its answer. Raises SSHException where the server refuses or does not
        answer, or the connection ends."""
        self._channel.event = _LimitedEvent(limit_s, lambda: send_early(self, early, limit_s))
        self._channel.exec_command(line)

    def _acknowledge(self) -> None:
        """Let the program write more to stderr. In a thread, since paramiko's own must not wait for a write."""
        import paramiko
        from paramiko.common import cMSG_CHANNEL_WINDOW_ADJUST

        if (count := self._channel._check_add_window(self._tail.take())) > 0:  # type: ignore[attr-defined]
            message = paramiko.Message()
            message.add_byte(cMSG_CHANNEL_WINDOW_ADJUST)
            message.add_int(self._channel.remote_chanid)
            message.add_int(count)
            try:
                self._channel.get_transport()._send_user_message(message)  # type: ignore[attr-defined]
            except (OSError, EOFError, paramiko.SSHException):
                pass  # the connection ended: `errors` reports it

    def wait(self, timeout: float | None = None) -> int:
        if not self._channel.status_event.wait(timeout):
            raise TimeoutError(f"a program on {self._where} still runs")
        self._tail.wait_for_end(STDERR_LIMIT_S)
        return self._channel.exit_status if self._channel.exit_status >= 0 else faults.CONNECTION_LOST_CODE

    @property
    def connected(self) -> bool:
        """Whether the connection is up. paramiko ends the programs of a lost one first: its saved error counts, too."""
        import paramiko

        transport = self._channel.get_transport()
        saved_error = transport.saved_exception
        return transport.is_active() and (saved_error is None or isinstance(saved_error, paramiko.ChannelException))

    def errors(self) -> str:
        messages = self._tail.text().decode(errors="replace")
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
        # on a hung connection it blocks until the login's `tick` closes that
        WORKERS.start(self._close_channel, "ssh close").join(limit_s)

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


class _LimitedEvent(threading.Event):
    """paramiko waits for the answer to a request without end: that wait ends as if the channel had been closed. `first`
    is done as it begins, with the request on its way."""

    def __init__(self, limit_s: float, first: Callable[[], object]) -> None:
        super().__init__()
        self._limit_s = limit_s
        self._first = first

    def wait(self, timeout: float | None = None) -> bool:
        first, self._first = self._first, bool
        first()
        if timeout is None and not super().wait(self._limit_s):
            self.set()
        return super().wait(timeout)


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


class Tail:
    """The end of what a program wrote to stderr. paramiko's thread feeds it, and nobody needs to read it.

    `acknowledge` is called when the other side should hear that a good deal was taken.
    """

    def __init__(self, acknowledge: Callable[[], object]) -> None:
        self._acknowledge = acknowledge
        self._kept = bytearray()
        self._taken = 0
        """Bytes of which the other side has not heard yet."""
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def feed(self, data: bytes) -> None:
        with self._lock:
            self._kept += data
            del self._kept[:-MAX_STDERR_BYTES]
            before, self._taken = self._taken, self._taken + len(data)
        if before < ACKNOWLEDGE_BYTES <= self._taken:
            self._acknowledge()

    def take(self) -> int:
        """How many bytes the other side is to hear of now."""
        with self._lock:
            taken, self._taken = self._taken, 0
            return taken

    def text(self) -> bytes:
        with self._lock:
            return bytes(self._kept)

    def wait_for_end(self, limit_s: float) -> None:
        """Until the stream's end has come, or the time is up."""
        self._ended.wait(limit_s)

    def close(self) -> None:
        self._ended.set()


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
