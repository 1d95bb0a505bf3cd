"""A connection to a node: starts programs there, as byte streams.

`open(argv)` starts a program on the node and returns its streams; nothing else is needed, since the conversation with
an agent, a push and a download are all programs. `ProcessConnection` makes this computer a node (the embedded default);
`gpuops.transport.ssh` has the connections to other machines.
"""

from __future__ import annotations

import io
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, Protocol, cast

from gpuops.agent.wire_format import Whole
from gpuops.agent.workers import WORKERS
from gpuops.core.errors import NodeError
from gpuops.core.processes import end_apart, start_apart
from gpuops.transport.deadlines import DEADLINES

END_S = 10.0
"""Time that a killed program may take to end."""
MAX_EARLY_BYTES = 1 << 18
"""What may be sent before a program is known to have started; sshd takes 2 MiB at once."""
EARLY_LIMIT_S = 60.0
MAX_NOISE_BYTES = 1 << 20
"""What may come before the mark of a program's own output."""
STDERR_LIMIT_S = 5.0
"""Time for the rest of an ended program's stderr: a process that it left behind may hold the pipe open."""


class Channel(Protocol):
    """One program running on a node."""

    stdin: BinaryIO
    stdout: BinaryIO

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code; raises TimeoutError. Close `stdin` first where it reads to the end."""

    def errors(self) -> str:
        """What it wrote to stderr so far (the last 64 KiB)."""

    def close(self) -> None:
        """End it and free the streams; never raises, may be called twice."""


class Connection(Protocol):
    """A way to one node. Opening is lazy; a broken one is replaced by opening again."""

    label: str
    """For messages: `node0`."""

    def open(self, argv: Sequence[str], early: bytes = b"") -> Channel:
        """Start `argv` on the node. `early`: the first bytes of its input, at most MAX_EARLY_BYTES, which are on their
        way before it is known to have started: a round trip less. Raises ConnectionLost when the node cannot be
        reached."""

    def close(self) -> None:
        """End every channel; never raises."""


def send_early(channel: Channel, data: bytes, limit_s: float = EARLY_LIMIT_S) -> None:
    """The first bytes of a program's input. One that takes them for longer than the limit is ended, and whoever reads
    from one that has ended learns why."""
    if not data:
        return
    limit = DEADLINES.after(limit_s, channel.close)
    try:
        Whole(channel.stdin).write(data)
    except (OSError, ValueError):
        pass
    finally:
        limit.cancel()


class Pipe(io.RawIOBase):
    """One end of a pipe, whose file descriptor is closed only once no thread is in a call with it.

    A thread that was about to read when another one closed it would otherwise read from the pipe of another program,
    which has got the same number: the first bytes of an agent were lost so, on a busy machine.
    """

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._guard = threading.Lock()
        self._calls = 0

    def readable(self) -> bool:
        return bool(self._raw.readable())

    def writable(self) -> bool:
        return bool(self._raw.writable())

    def fileno(self) -> int:
        return int(self._raw.fileno())

    def readinto(self, buffer: Any) -> int | None:
        with self._call() as raw:
            count: int | None = raw.readinto(buffer)
        return count

    def write(self, data: Any) -> int | None:
        with self._call() as raw:
            count: int | None = raw.write(data)
        return count

    def close(self) -> None:
        super().close()
        with self._guard:
            if not self._calls:
                self._raw.close()

    @contextmanager
    def _call(self) -> Iterator[Any]:
        """Raises ValueError on a pipe that was closed, as every file does."""
        with self._guard:
            if self.closed:
                raise ValueError("I/O operation on a closed pipe")
            self._calls += 1
        try:
            yield self._raw
        finally:
            with self._guard:
                self._calls -= 1
                if self.closed and not self._calls:
                    self._raw.close()


class NoMark(Exception):
    """The mark did not come; `seen`: what came instead."""

    def __init__(self, seen: bytes) -> None:
        super().__init__("no mark")
        self.seen = seen


def read_to_mark(read: Callable[[int], bytes], mark: bytes) -> bytes:
    """Read up to the mark: a shell's start-up files may write before a program does. Returns what came after it.

    Raises NoMark at the stream's end and after MAX_NOISE_BYTES.
    """
    seen = bytearray()
    while chunk := read(65536):
        searched = max(0, len(seen) - len(mark))
        seen += chunk
        at = seen.find(mark, searched)
        if at >= 0:
            return bytes(seen[at + len(mark) :])
        if len(seen) > MAX_NOISE_BYTES:
            break
    raise NoMark(bytes(seen))


class ProcessChannel:
    """A program on this computer. A thread drains its stderr, so that it never blocks."""

    def __init__(self, argv: Sequence[str]) -> None:
        # A session of its own: Ctrl-C in the terminal is ours to handle, not the child's.
        self._process = start_apart(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )
        assert self._process.stdin
        assert self._process.stdout
        self.stdin = cast(BinaryIO, Pipe(self._process.stdin))
        self.stdout = cast(BinaryIO, Pipe(self._process.stdout))
        self.closed = False
        self._stderr = bytearray()
        self._drain = WORKERS.start(self._drain_stderr, "stderr")

    def _drain_stderr(self) -> None:
        stream = self._process.stderr
        assert stream
        with stream:
            while chunk := stream.read(65536):
                self._stderr += chunk
                del self._stderr[:-65536]

    def wait(self, timeout: float | None = None) -> int:
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"{self._process.args!r} still runs") from error
        self._drain.join(STDERR_LIMIT_S)
        return code

    def errors(self) -> str:
        return bytes(self._stderr).decode(errors="replace")

    def close(self) -> None:
        # The process first: a thread that waits for a pipe then sees its end.
        if self._process.poll() is None:
            end_apart(self._process)  # with all that it has started
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            pass  # it hangs in the kernel (a dead disk)
        for stream in (self.stdin, self.stdout):
            try:
                stream.close()
            except OSError:
                pass  # the other end is closed, and what was not written is lost anyway
        self._drain.join(1)  # it closes stderr, unless a process that was left behind holds the pipe open
        self.closed = True


class ProcessConnection:
    """This computer as a node."""

    def __init__(self, label: str) -> None:
        self.label = label
        self._channels: list[ProcessChannel] = []
        self._lock = threading.Lock()

    def open(self, argv: Sequence[str], early: bytes = b"") -> ProcessChannel:
        try:
            channel = ProcessChannel(argv)
        except OSError as error:
            raise NodeError(
                f"{self.label} cannot start {argv[0]}: {error.strerror}",
                "check that this program exists and can be executed",
            ) from error
        with self._lock:
            self._channels = [*(known for known in self._channels if not known.closed), channel]
        send_early(channel, early)
        return channel

    def close(self) -> None:
        with self._lock:
            channels, self._channels = self._channels, []
        for channel in channels:
            channel.close()
