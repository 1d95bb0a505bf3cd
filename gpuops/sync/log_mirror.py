"""Copies a node's logs to this computer while they grow, each from the byte where it ends here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpuops.core.errors import ConnectionLost, MalformedAnswer
from gpuops.core.safe_folder import local_errors
from gpuops.sync.run_folder import RunHome
from gpuops.transport.rpc import AgentClient

if TYPE_CHECKING:
    from gpuops.transport.schemas import LogEnd, LogPiece, ResultDocument

STREAM_SILENCE_S = 30.0
"""`tail` and `sums` send something every 5 s: a longer silence is a lost connection."""
MAX_STREAMS = 10_000
"""No node has more logs than this; each is a file here."""
OnBytes = Callable[[int, str, int, bytes], None]
"""Called with node, stream, offset and data."""


def mirror(
    client: AgentClient, run: str, node: int, home: RunHome, follow: bool, on_bytes: OnBytes
) -> ResultDocument | None:
    """Copy a node's logs, each from the offset where it ends here. Returns the node's result, None while it runs.

    Bytes are written at their own offset, so that two mirrors at once write the same bytes to the same place.
    `on_bytes` is called after each write. Raises ConnectionLost, after which the caller
    reconnects; NodeRefused, MalformedAnswer; and LocalDisk, which a reconnection does not cure.
    """
    offsets = home.offsets(node)
    stream = client.stream("tail", timeout=STREAM_SILENCE_S, run=run, offsets=dict(offsets), follow=follow)
    piece: LogPiece
    for piece in stream:
        name, offset, data = piece.stream, piece.offset, piece.data
        if name not in offsets and len(offsets) >= MAX_STREAMS:
            raise MalformedAnswer(client.label, "to 'tail': more logs than ranks can have")
        if offset != offsets.get(name, 0):
            raise MalformedAnswer(client.label, f"{name} from {offset} on, where {offsets.get(name, 0)} was asked for")
        _write_at(home, home.log_name(node, name), offset, data, client.label)
        on_bytes(node, name, offset, data)
        offsets[name] = offset + len(data)
    last: LogEnd = stream.answer
    return last.result


def _write_at(home: RunHome, log: str, offset: int, data: bytes, label: str) -> None:
    with local_errors(home.path / log):
        if not home.folder.write_at(log, offset, data):
            raise ConnectionLost(f"{log} of {label} became shorter on this computer", "following it again")
