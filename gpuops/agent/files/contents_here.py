"""Contents of a push that lie on this node already, in another tree or under another name: they need not be sent.

The records of earlier pushes tell which files of the same size there are, of every node of this root. The client is
asked for the SHA-256 of what it would send (`ask`), and a file that has it is copied.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
from typing import Iterable, Iterator, Mapping

from gpuops.agent.files.folder import HASH_BLOCK_BYTES, TreeFolder, sha256
from gpuops.agent.files.push_comparison import load_record
from gpuops.agent.files.push_decision import FILE, Entry
from gpuops.agent.node import Node, Refusal

MIN_BYTES = 1_000_000
"""A smaller file is sent sooner than its likes are found."""
MAX_READ_BYTES = 10_000_000_000
"""So much is read to find contents, in one push: a client waits meanwhile."""
RECORD = ".json"


class ContentsHere:
    """Files of this root that may have a content that is wanted, by size."""

    def __init__(self, node: Node, wanted: Iterable[Entry]) -> None:
        self._places: dict[int, list[bytes]] = {}
        left = MAX_READ_BYTES
        sizes = {entry.size for entry in wanted if entry.size >= MIN_BYTES}
        for owner, name in _trees(node) if sizes else ():
            try:
                folder = TreeFolder(owner.tree(name))
                files = load_record(owner, name).files
            except (Refusal, OSError, ValueError, TypeError):
                continue  # not a tree, or no record of ours
            for path, written in files.items():
                size = written.here.size
                if size not in sizes or size > left:
                    continue
                found = folder.look(path)
                if found.kind == FILE and found.entry.size == size:
                    self._places.setdefault(size, []).append(folder.at(path))
                    left -= size

    def may_have(self, entry: Entry, own: bytes) -> bool:
        """Whether a file that is not its own older version, at `own`, may have a content."""
        return any(place != own for place in self._places.get(entry.size, ()))

    def find(self, sums: Mapping[str, Entry]) -> Iterator[tuple[str, bytes]]:
        """Where a file with each of these sums lies, for those that there are."""
        sizes = {entry.size for entry in sums.values()}
        missing = set(sums)
        for size in sizes & self._places.keys():
            for place in self._places[size]:
                with contextlib.suppress(OSError):
                    digest = sha256(place) if missing else ""
                    if digest in missing:
                        missing.discard(digest)
                        yield digest, place


class Changed(Exception):
    """A file was written to while it was copied."""


def copied(place: bytes, digest: str) -> Iterator[bytes]:
    """The blocks of a file. Raises Changed at the end of one that has not this SHA-256, and OSError."""
    actual = hashlib.sha256()
    with open(place, "rb") as file:
        for block in iter(lambda: file.read(HASH_BLOCK_BYTES), b""):
            actual.update(block)
            yield block
    if actual.hexdigest() != digest:
        raise Changed


def _trees(node: Node) -> Iterator[tuple[Node, str]]:
    """Every tree that was pushed to a node of this root."""
    for record in sorted(glob.glob(os.path.join(glob.escape(node.root), "*", "n*", "trees", f"*{RECORD}"))):
        folder, name = os.path.split(record)
        tree = name[: -len(RECORD)]
        if "." not in tree:
            yield Node(os.path.dirname(folder)), tree
