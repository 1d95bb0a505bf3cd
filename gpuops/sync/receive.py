"""One node's files on their way in: the agent's `send`, a tar stream, into a folder of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpuops.core.safe_folder import SafeFolder, local_errors
from gpuops.sync.memory import Arrival, Stamp
from gpuops.transport.bulk import transfer
from gpuops.transport.rpc import AgentClient
from gpuops.transport.tarstream import finish, read_files

Received = dict[tuple[int, str], Arrival]
"""What has come, by node and path."""


def receive(
    client: AgentClient,
    run: str,
    node: int,
    files: Mapping[str, Stamp],
    folder: SafeFolder,
    told: Callable[[int], None],
    received: Received,
) -> None:
    """Bring files of a run into `folder`, each into `received` when it has come; what is not, or no longer, as in
    `files` is left out.

    `told` hears of bytes as they come. Raises ConnectionLost when the stream is cut, NodeRefused, NodeError for a
    stream that is none of ours, and LocalDisk when this computer cannot write.
    """
    with transfer(client.bulk("send", "--run", run), client.label) as channel:
        for number, (member, content) in enumerate(read_files(channel, list(files))):
            stamp = files[member.name]
            if member.link is None and stamp[0] == member.size:
                temp = f"{node}-{number}"
                with local_errors(folder.path / temp):
                    sha256 = folder.create(temp, content, member.size, mtime_ns=stamp[1], told=told)
                received[node, member.name] = Arrival(node, member.name, stamp, sha256, temp)
        finish(channel, client.label)
