"""One node's files on their way in: the agent's `send`, a tar stream, into a folder of ours."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from gpuops.agentclient import AgentClient
from gpuops.bulk import transfer
from gpuops.results.home import local_errors
from gpuops.results.memory import Arrival, Stamp
from gpuops.tarstream import BLOCK, finish, read_files

Received = dict[tuple[int, str], Arrival]
"""What has come, by node and path."""


def receive(
    client: AgentClient, run: str, node: int, files: Mapping[str, Stamp], folder: Path, told: Callable[[int], None]
) -> Received:
    """Bring files of a run into `folder`; what is not, or no longer, as in `files` is left out.

    `told` hears of bytes as they come. Raises ConnectionLost when the stream is cut, NodeRefused, and
    LocalDisk when this computer cannot write.
    """
    received: Received = {}
    with transfer(client.bulk("send", "--run", run), client.label) as channel:
        for member, content in read_files(channel, list(files)):
            stamp = files[member.name]
            if content is not None and stamp[0] == member.size:
                temp = folder / f"{node}-{len(received)}"
                sha256 = _store(temp, content, stamp, told)
                received[node, member.name] = Arrival(node, member.name, stamp, sha256, temp)
        finish(channel, client.label)
    return received


def _store(temp: Path, content: BinaryIO, stamp: Stamp, told: Callable[[int], None]) -> str:
    """Write to disk (all the way: the node may be gone next) with the node's time; the SHA-256."""
    digest = hashlib.sha256()
    with local_errors(temp):
        file = temp.open("wb")
    with file:
        while block := content.read(BLOCK):
            digest.update(block)
            with local_errors(temp):
                file.write(block)
            told(len(block))
        with local_errors(temp):
            file.flush()
            os.fsync(file.fileno())
    with local_errors(temp), suppress(OverflowError):  # a time that no file can have
        os.utime(temp, ns=(stamp[1], stamp[1]))
    return digest.hexdigest()
