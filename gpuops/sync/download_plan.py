"""Which files of which nodes to bring, in which order, and which need not travel. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpuops.sync.outputs_record import Arrival, Memory, Stamp

Listing = Mapping[int, Mapping[str, Stamp]]
"""What each node has: node -> path -> (size, mtime_ns)."""
Todo = dict[str, dict[int, Stamp]]
"""What to bring: path -> node -> (size, mtime_ns)."""
Sums = dict[tuple[int, str], str]
"""SHA-256 by (node, path)."""

MAX_BATCH_BYTES = 256 << 20
MAX_BATCH_FILES = 500
"""A cut loses at most one batch of work."""


def split_by_room(todo: Todo, room: int) -> list[Todo]:
    """All at once where it finds room on this disk (bytes); else node by node, whoever has least to bring first: who
    offers too much keeps no other's files away."""
    totals: dict[int, int] = {}
    for stamps in todo.values():
        for node, (size, _) in stamps.items():
            totals[node] = totals.get(node, 0) + size
    if sum(totals.values()) <= room:
        return [todo]
    return [
        {path: {node: stamps[node]} for path, stamps in todo.items() if node in stamps}
        for node in sorted(totals, key=lambda node: (totals[node], node))
    ]


def batches(todo: Todo) -> Iterator[Todo]:
    """`todo` in pieces of bounded size; all nodes' versions of a path stay together."""
    batch: Todo = {}
    size = files = 0
    for path in sorted(todo):
        stamps = todo[path]
        more = sum(stamp[0] for stamp in stamps.values())
        if batch and (size + more > MAX_BATCH_BYTES or files + len(stamps) > MAX_BATCH_FILES):
            yield batch
            batch, size, files = {}, 0, 0
        batch[path] = stamps
        size += more
        files += len(stamps)
    if batch:
        yield batch


def possible_duplicates(batch: Todo, memory: Memory) -> dict[int, list[str]]:
    """Paths by node whose checksum is worth asking: another node has a file of the same size there."""
    asked: dict[int, list[str]] = {}
    for path, stamps in batch.items():
        home = [held.stamp[0] for node, held in memory.held.get(path, {}).items() if node not in stamps]
        sizes = home + [stamp[0] for stamp in stamps.values()]
        for node, stamp in stamps.items():
            if sizes.count(stamp[0]) > 1:
                asked.setdefault(node, []).append(path)
    return asked


def choose_transfers(batch: Todo, sums: Sums, memory: Memory) -> dict[int, list[str]]:
    """Paths by node that have to travel: of equal files the lowest node's, and none that is home."""
    chosen: dict[int, list[str]] = {}
    for path, stamps in batch.items():
        have = {held.sha256 for node, held in memory.held.get(path, {}).items() if node not in stamps}
        for node in sorted(stamps):
            sha256 = sums.get((node, path))
            if sha256 is None or sha256 not in have:
                chosen.setdefault(node, []).append(path)
            if sha256 is not None:
                have.add(sha256)
    return chosen


def complete_arrivals(batch: Todo, sums: Sums, received: Mapping[tuple[int, str], Arrival]) -> list[Arrival]:
    """Every version of a batch that is at hand: received, or known to equal one that is.

    A file that changed between its checksum and its transfer stands for itself only.
    """
    complete = list(received.values())
    for path, stamps in batch.items():
        for node, stamp in stamps.items():
            sha256 = sums.get((node, path))
            if sha256 is not None and (node, path) not in received:
                complete.append(Arrival(node, path, stamp, sha256))
    return complete
