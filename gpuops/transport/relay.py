"""The program `relay` on one node, which receives a push and passes it on to the next node: the client's end."""

from __future__ import annotations

import json
import queue
import threading
import time
from contextlib import suppress
from typing import Any

from gpuops.agent.wire_format import DATA, DEFLATED, MESSAGE, Whole, frame
from gpuops.agent.workers import WORKERS
from gpuops.transport import validation
from gpuops.transport.bulk_transfer import SILENCE_S, ChannelFailed, TimedChannel
from gpuops.transport.connection import Channel

MAX_LINE_BYTES = 1 << 16
MAX_UNREAD_LINES = 64
"""Reading stops while so many wait: the node waits, too."""
POLL_INTERVAL_S = 0.5


class Relay:
    """Messages and pieces of a stream to the program, messages from it. Only `send` raises."""

    def __init__(self, channel: Channel, label: str) -> None:
        self.label = label
        self.heard = time.monotonic()
        self.takes_no_more = False
        self._channel = channel
        self._timed = TimedChannel(channel, SILENCE_S)
        self._input = Whole(self._timed.stdin)
        self._write = threading.Lock()
        self._lines: queue.Queue[bytes] = queue.Queue(MAX_UNREAD_LINES)
        self._is_closed = False
        self._reader = WORKERS.start(self._read, f"{label} relay")

    def tell(self, **message: Any) -> None:
        """Send a message; one that does not arrive is found by whoever waits for the answer."""
        with suppress(ChannelFailed), self._write:
            self._put(MESSAGE, json.dumps(message).encode())

    def send(self, data: bytes, *, is_deflated: bool) -> None:
        """Send a piece of the stream. Raises ChannelFailed."""
        with self._write:
            self._put(DEFLATED if is_deflated else DATA, data)

    def keep_alive(self) -> None:
        """Show the program that we live, unless it is being sent something anyway."""
        if self._write.acquire(blocking=False):
            try:
                with suppress(ChannelFailed):
                    self._put(MESSAGE, b"{}")
            finally:
                self._write.release()

    def _put(self, kind: int, content: bytes) -> None:
        """Raises ChannelFailed."""
        if self.takes_no_more:
            raise ChannelFailed(f"{self.label} takes no more")
        try:
            self._input.write(frame(kind, content))
        except ChannelFailed:
            self.takes_no_more = True
            raise

    def next(self, shape: Any, limit_s: float) -> Any:
        """The next message; None where none came within the limit. Raises MalformedAnswer."""
        deadline = time.monotonic() + limit_s
        while True:
            left_s = deadline - time.monotonic()
            try:
                line = self._lines.get(timeout=min(POLL_INTERVAL_S, max(0.0, left_s)))
            except queue.Empty:
                if left_s <= 0 or self.is_over:
                    return None
                continue
            return validation.parse_document(self.label, "to a push that is passed on", line, shape)

    @property
    def is_over(self) -> bool:
        """Whether the program has ended, and everything that it said was taken."""
        return not self._reader.is_alive() and self._lines.empty()

    def end_input(self) -> None:
        """Say no more: the program tells what it has, and ends."""
        self.takes_no_more = True
        try:
            self._channel.stdin.close()
        except (OSError, ValueError):
            pass  # it has ended

    def close(self) -> None:
        """End the program; never raises."""
        self._is_closed = self.takes_no_more = True
        self._timed.close()

    def _read(self) -> None:
        rest = b""
        try:
            while chunk := self._channel.stdout.read(MAX_LINE_BYTES):
                *lines, rest = (rest + chunk).split(b"\n")
                self.heard = time.monotonic()
                for line in lines:
                    self._keep(line)
                if len(rest) > MAX_LINE_BYTES:
                    return
        except (OSError, ValueError):
            pass  # it has ended, or was closed

    def _keep(self, line: bytes) -> None:
        while not self._is_closed:
            try:
                self._lines.put(line, timeout=POLL_INTERVAL_S)
                return
            except queue.Full:
                continue
