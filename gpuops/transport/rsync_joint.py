"""Joins the ends of an rsync's conversation, which `rsync_relay` hands over, to a program on a node, and watches
whether anything moves."""

from __future__ import annotations

import array
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from gpuops.agent.wire_format import Whole
from gpuops.core.errors import ConnectionLost
from gpuops.transport.connection import Channel

BLOCK_BYTES = 1 << 15
"""Bytes of one piece: a small one shows a slow line's progress, and is soon through a limit."""
MIN_MOVED_BYTES = 4096
"""Fewer bytes to the node within the limit are signs of life: of those each takes four, every half minute. What the
node says does not count, since it may say anything for ever."""
END_S = 10.0
MAX_COMMAND_BYTES = 1 << 16
LOST_CODE = 255


class Watch:
    """Ends a transfer in which too little has moved for `limit_s` seconds."""

    def __init__(self, limit_s: float, end: Callable[[], object]) -> None:
        self.silent = False
        """Whether it was ended so."""
        self._limit_s = limit_s
        self._ends = [end]
        self._lock = threading.Lock()
        self._moved_bytes = 0
        self._since = time.monotonic()
        self._is_held = False
        self._closed = threading.Event()
        threading.Thread(target=self._run, daemon=True, name="rsync watch").start()

    def moved(self, count: int) -> None:
        with self._lock:
            self._moved_bytes += count
            if self._moved_bytes >= MIN_MOVED_BYTES:
                self._moved_bytes, self._since = 0, time.monotonic()

    @contextmanager
    def holding(self) -> Iterator[None]:
        """While the transfer is held back from here, it is not silent."""
        began = time.monotonic()
        with self._lock:
            self._is_held = True
        try:
            yield
        finally:
            with self._lock:
                self._is_held = False
                self._since += time.monotonic() - began

    def also_close(self, channel: Channel) -> None:
        """End this as well. Whoever waits for it, in a write or read, then sees its end."""
        with self._lock:
            self._ends.append(channel.close)
            is_late = self.silent
        if is_late:
            channel.close()

    def _run(self) -> None:
        while not self._closed.wait(self._limit_s / 20):
            with self._lock:
                if self._is_held or time.monotonic() - self._since <= self._limit_s:
                    continue
                self.silent = True
                ends = list(self._ends)
            for end in ends:
                end()
            return

    def close(self) -> None:
        self._closed.set()


@contextmanager
def watching(limit_s: float, end: Callable[[], object]) -> Iterator[Watch]:
    """A watch for the length of the block."""
    watch = Watch(limit_s, end)
    try:
        yield watch
    finally:
        watch.close()


@dataclass(frozen=True)
class Asked:
    """The program that rsync wants on the node, and both ends of its conversation."""

    arguments: Sequence[str]
    """Behind the program's name."""
    to_node: int
    from_node: int

    def close(self) -> None:
        os.close(self.to_node)
        os.close(self.from_node)


def take_ends(owner: socket.socket) -> Asked | None:
    """What the relay hands over; None where rsync ended without asking, or not both ends came."""
    ends = array.array("i")
    close_in_children: int = getattr(socket, "MSG_CMSG_CLOEXEC", 0)  # not on macOS
    message, ancillary, flags, _ = owner.recvmsg(
        MAX_COMMAND_BYTES, socket.CMSG_SPACE(2 * ends.itemsize), close_in_children
    )
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            ends.frombytes(data[: len(data) - len(data) % ends.itemsize])
    for end in ends:
        os.set_inheritable(end, False)
    if len(ends) != 2 or flags & socket.MSG_CTRUNC:
        for end in ends:
            os.close(end)
        return None
    return Asked([os.fsdecode(word) for word in message.split(b"\0")][1:], ends[0], ends[1])


def join(asked: Asked, channel: Channel, owner: socket.socket, on_wire: Callable[[int], None], watch: Watch) -> None:
    """Start to pump both ways, in threads that end with the channel and with rsync, and close rsync's ends.

    `on_wire` is called with each piece before it is sent. The relay is told the program's exit code.
    """
    for work, *arguments in (
        (_pump_to_node, asked.to_node, channel, on_wire, watch),
        (_pump_from_node, channel, asked.from_node, owner),
    ):
        threading.Thread(target=work, args=arguments, daemon=True, name="rsync pump").start()


def _pump_to_node(source: int, channel: Channel, on_wire: Callable[[int], None], watch: Watch) -> None:
    stream = Whole(channel.stdin)
    with suppress(OSError, ValueError):  # the node's end has closed: rsync sees it at the other pump
        while data := os.read(source, BLOCK_BYTES):
            with watch.holding():
                on_wire(len(data))
            stream.write(data)
            channel.stdin.flush()
            watch.moved(len(data))
    os.close(source)  # rsync's next write fails
    with suppress(OSError, ValueError):
        channel.stdin.close()


def _pump_from_node(channel: Channel, target: int, owner: socket.socket) -> None:
    with suppress(OSError, ValueError):
        while data := channel.stdout.read(BLOCK_BYTES):
            view = memoryview(data)
            while view:
                view = view[os.write(target, view) :]
    os.close(target)
    code = LOST_CODE
    with suppress(OSError, TimeoutError, ConnectionLost):
        code = channel.wait(END_S)
    with suppress(OSError):
        owner.send(bytes([code & 255]))
