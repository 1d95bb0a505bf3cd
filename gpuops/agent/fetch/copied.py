"""Files of a source that another node has fetched, and that have come from it as a push does: they are taken in.

The nodes on the way were not believed: what stands staged is what the client's sums cover (`peers.push_relay`). The
node that fetched it is not, either, wherever the source itself tells what the content is: by the SHA-256 that the user
named, or by an ETag that is the content's MD5. A file that is another is left out, and fetched from its address.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import Any, Sequence

from gpuops.agent.fetch.store import Store, Wanted
from gpuops.agent.fetch.web import Version
from gpuops.agent.files.incoming import Incoming
from gpuops.agent.node import Node, Refusal

MD5_TAG = re.compile(r'"([0-9a-f]{32})"')
"""S3's ETag of an object that was uploaded at once; group 1: its MD5."""
BLOCK_BYTES = 1 << 20


def take_copies(
    node: Node, store: Store, push: str, files: Sequence[Wanted], version: Version | None, has_md5_tags: bool
) -> set[int]:
    """Put what a push of copies has staged in its place. Returns which of the files.

    `version`: what the source said of its only file; None where a listing tells each one's. Raises Refusal(`edited`),
    and OSError.
    """
    incoming = Incoming(node, store.copies, push)
    try:
        staged = incoming.load().files
    except Refusal:
        return set()  # another client's copies have come in between
    taken = set()
    for index, wanted in enumerate(files):
        entry = staged.get(wanted.path)
        if entry is None or not incoming.has(wanted.path, entry) or wanted.size not in (None, entry.size):
            continue
        path = incoming.at(wanted.path, entry)
        if _check(path, wanted, has_md5_tags):
            store.find(wanted.path)  # refuses what was changed here
            store.take(wanted.path, path, version or Version(wanted.etag, "", wanted.size), wanted.sha256)
            taken.add(index)
    return taken


def _check(path: bytes, wanted: Wanted, has_md5_tags: bool) -> bool:
    """Whether a staged file is what the source tells of it, as far as it does. It is on the disk then."""
    tag = MD5_TAG.fullmatch(wanted.etag) if has_md5_tags else None
    expected = wanted.sha256 or (tag[1] if tag else "")
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        if not expected:
            return True
        try:
            digest: Any = hashlib.sha256() if wanted.sha256 else hashlib.new("md5")
        except ValueError:
            return False  # a system that allows no MD5
        for block in iter(lambda: file.read(BLOCK_BYTES), b""):
            digest.update(block)
    return bool(digest.hexdigest() == expected)
