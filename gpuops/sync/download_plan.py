"""Which files of which nodes are fetched, in which order, and which equal one that is home already. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpuops.sync.merged_outputs_record import Arrival, Memory, Stamp

Listing = Mapping[int, Mapping[str, Stamp]]
"""What each node has: node -> path -> (size, mtime_ns)."""
Todo = dict[str, dict[int, Stamp]]
"""What to fetch: path -> node -> (size, mtime_ns)."""
Sums = dict[tuple[int, str], str]
"""SHA-256 by (node, path)."""

MAX_BATCH_BYTES = 256 << 20
MAX_BATCH_FILES = 500
"""A cut connection loses at most one batch."""
MAX_SMALL_BYTES = 1 << 20
"""Files up to this size come after all others: the name of the newest snapshot, an index of shards."""


def split_by_room(todo: Todo, room: int) -> list[Todo]:
    """All at once where the disk has room (bytes); else node by node, the smallest total first, so that a node with too
    much keeps no other node's files away."""
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


def batches(todo: Todo, *, small_first: bool = False) -> Iterator[Todo]:
    """`todo` in pieces of bounded size; all nodes' versions of a path stay together, and small files come last.

    `small_first`: where not all has room, so that most of the files have.
    """
    small = {path for path, stamps in todo.items() if max(size for size, _ in stamps.values()) <= MAX_SMALL_BYTES}
    large = todo.keys() - small
    for paths in (small, large) if small_first else (large, small):
        yield from _pieces({path: todo[path] for path in sorted(paths)})


def _pieces(todo: Todo) -> Iterator[Todo]:
    batch: Todo = {}
    size = files = 0
    for path, stamps in todo.items():
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
    """Paths by node whose checksum is worth asking for: another node has a file of the same path and size."""
    asked: dict[int, list[str]] = {}
    for path, stamps in batch.items():
        home = [held.stamp[0] for node, held in memory.held.get(path, {}).items() if node not in stamps]
        sizes = home + [stamp[0] for stamp in stamps.values()]
        for node, stamp in stamps.items():
            if sizes.count(stamp[0]) > 1:
                asked.setdefault(node, []).append(path)
    return asked


def choose_transfers(batch: Todo, sums: Sums, memory: Memory) -> dict[int, list[str]]:
    """Paths by node that must travel: of equal files only the lowest node's, and none that is home."""
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
    """Every version in a batch that was received, or whose checksum equals a received or earlier one.

    A file that changed between its checksum and its transfer counts with its received checksum only.
    """
    complete = list(received.values())
    for path, stamps in batch.items():
        for node, stamp in stamps.items():
            sha256 = sums.get((node, path))
            if sha256 is not None and (node, path) not in received:
                complete.append(Arrival(node, path, stamp, sha256))
    return complete
