"""The two ways by which a push brings files to one node: rsync, and a stream to the agent's own program.

Both stage every file on the node under its path, with its time once it is whole; the commit puts them in their places.
rsync is taken wherever both ends have it: it sends only what changed of a large file, and goes on within one that was
cut. A small push goes as a stream, which needs one trip where rsync needs several; many small files go through a chain
(`push_chain`), if only of one node.
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Protocol

from gpuops.sync.project_files import FileEntry
from gpuops.sync.uplink import Uplink
from gpuops.transport import rsync
from gpuops.transport.bulk_transfer import transfer, write_files
from gpuops.transport.rpc import AgentClient

MIN_RSYNC_BYTES = 1_000_000
"""A smaller push goes as a stream."""
MAX_SMALL_FILE_BYTES = 16_000
"""Files that are smaller on average cost rsync more for each than their bytes are worth."""
MAX_MESSAGE_BYTES, MAX_MESSAGE_FILES = 200_000, 1000
"""What a message to the agent may carry: it delays those behind it, and is held in memory."""
MESSAGE_TIMEOUT_S = 600.0
"""So much on a line of 5 kbit/s."""
MAX_COMPRESSED_BYTES_PER_S = 40e6
"""A line that is known to carry more is faster than the processors at its ends."""


@dataclass(frozen=True)
class Delivery:
    """The files of one push that one node needs."""

    client: AgentClient
    tree_name: str
    push: str
    folder: Path
    files: Sequence[tuple[int, FileEntry]]
    """With their numbers in the list that the node was given."""
    rsync: str = ""
    """What the node's rsync says of its version; empty without one."""
    inplace: bool = False
    """Whether that may write in place."""
    may_chain: bool = False
    """Whether the node may get them from another node, and pass them on."""
    takes_messages: bool = False
    """Whether the agent takes a stream in a message."""

    @property
    def size(self) -> int:
        return sum(file.size for _, file in self.files)

    @property
    def is_of_small_files(self) -> bool:
        """Whether it is large, and of many small files."""
        return MIN_RSYNC_BYTES <= self.size <= MAX_SMALL_FILE_BYTES * len(self.files)


class Transport(Protocol):
    """One way."""

    def describe(self) -> str:
        """`by rsync 3.2.7`, for the line that announces it."""

    def send(self, delivery: Delivery, on_bytes: Callable[[int], None]) -> None:
        """Stage the files on the node; `on_bytes` is called with the size of each piece. Files that change or go
        meanwhile are the caller's to find (`find_changed`).

        Raises UsageError for a file that cannot be read, NodeRefused where the node's disk is full, ConnectionLost;
        RsyncFailed where another transport may do better.
        """


@dataclass(frozen=True)
class Stream:
    """Everything to the agent, one file behind the other: a little in a message, more to a program of its own."""

    uplink: Uplink

    def describe(self) -> str:
        return "as a stream"

    def send(self, delivery: Delivery, on_bytes: Callable[[int], None]) -> None:
        def passed(count: int) -> None:
            self.uplink.passed(count)
            on_bytes(count)

        client = delivery.client
        if delivery.takes_messages and delivery.size <= MAX_MESSAGE_BYTES and len(delivery.files) <= MAX_MESSAGE_FILES:
            content = io.BytesIO()
            write_files(SimpleNamespace(stdin=content), delivery.folder, delivery.files, passed)
            stream = base64.b64encode(content.getvalue()).decode()
            client.call(
                "receive", timeout=MESSAGE_TIMEOUT_S, tree=delivery.tree_name, push=delivery.push, stream=stream
            )
            return
        program = client.bulk("receive", "--tree", delivery.tree_name, "--push", delivery.push)
        with transfer(program, client.label) as channel:
            write_files(channel, delivery.folder, delivery.files, passed)


@dataclass(frozen=True)
class ByRsync:
    """This computer's rsync, and the node's behind the agent's mode `rsync-receive`."""

    here: rsync.Rsync
    compresses: bool
    uplink: Uplink

    def describe(self) -> str:
        return f"by rsync {self.here.version}{', compressed' if self.compresses else ''}"

    def send(self, delivery: Delivery, on_bytes: Callable[[int], None]) -> None:
        client, paths = delivery.client, [file.path for _, file in delivery.files]
        largest = max(file.size for _, file in delivery.files)
        upload = rsync.Upload(str(delivery.folder), paths, largest, self.compresses, delivery.inplace)
        receiver = partial(client.bulk, "rsync-receive", "--tree", delivery.tree_name, "--push", delivery.push)
        rsync.send(client.label, receiver, self.here, upload, on_bytes, self.uplink.passed)


def may_use_rsync(size: int) -> bool:
    """Whether a push of at most so many bytes may go by rsync, as far as this computer knows."""
    return size >= MIN_RSYNC_BYTES and rsync.local_rsync() is not None


def choose_transport(delivery: Delivery, uplink: Uplink) -> Transport:
    """How a push goes from here to one node."""
    # rsync leaves such a path out
    hidden = not delivery.inplace and any(rsync.PARTIAL in file.path for _, file in delivery.files)
    here = rsync.local_rsync() if not hidden and may_use_rsync(delivery.size) else None
    there = rsync.parse_version("rsync", delivery.rsync)
    if not (here and there):
        return Stream(uplink)
    is_fast = uplink.expected_bytes_per_s > MAX_COMPRESSED_BYTES_PER_S
    return ByRsync(here, here.has_zstd and there.has_zstd and not is_fast, uplink)


def find_changed(folder: Path, files: Iterable[FileEntry]) -> list[str]:
    """The files that are not any more what was scanned: changed or gone while they were sent."""
    return [file.path for file in files if not _is_same(f"{folder}/{file.path}", file)]


def _is_same(path: str, file: FileEntry) -> bool:
    try:
        status = os.stat(path)
    except OSError:
        return False
    return (status.st_size, status.st_mtime_ns) == (file.size, file.mtime_ns)
