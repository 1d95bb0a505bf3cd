"""Talking to a channel, as tests do."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from gpuops.agent.wire_format import Whole
from gpuops.transport.connection import Channel, Connection


def read_all(channel: Channel) -> bytes:
    out = bytearray()
    while chunk := channel.stdout.read(65536):
        out += chunk
    return bytes(out)


def feed(channel: Channel, data: bytes) -> threading.Thread:
    """Write all of it and close, in a thread; a program that is gone takes no more."""

    def write() -> None:
        try:
            Whole(channel.stdin).write(data)
            channel.stdin.close()
        except (OSError, ValueError):
            pass

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    return thread


def run(connection: Connection, argv: Sequence[str], data: bytes = b"") -> tuple[int, bytes, str]:
    """Exit code, output, and what it complained of."""
    channel = connection.open(argv)
    try:
        feed(channel, data)
        out = read_all(channel)
        return channel.wait(60), out, channel.errors()
    finally:
        channel.close()


def write_on(channel: Channel) -> None:
    """Write until it is refused; 100 MB fit into no pipe."""
    for _ in range(3200):
        channel.stdin.write(bytes(32768))
