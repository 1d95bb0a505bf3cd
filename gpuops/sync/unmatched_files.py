"""Files on a node that no `--out` pattern matches: listed, selected and saved before the node ends.

A result is easily written under an unexpected name, and a file that was edited on a node is a person's work.
`--out '!GLOB'` allows such files to be lost.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuops.core.errors import NodeRefused
from gpuops.core.format import amount, first_few
from gpuops.core.parallel import on_each
from gpuops.core.platform import HERE, System
from gpuops.core.safe_folder import Readable, SafeFolder, local_errors
from gpuops.core.safe_paths import may_come
from gpuops.sync.download import LIST_TIMEOUT_S
from gpuops.sync.project_files import printable_path
from gpuops.transport.bulk_transfer import exchange, read_files, transfer
from gpuops.transport.rpc import AgentClient, Programs

if TYPE_CHECKING:
    from gpuops.transport.program_schemas import UnmatchedListing


MAX_UNASKED_BYTES = 100_000_000
"""Larger files of a node that stays are only named: most results that are no snapshots are far smaller."""
MAX_UNASKED_FILES = 1000
"""More files are a data set or a cache: of these only edited ones are downloaded unasked."""
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class UnmatchedFile:
    """One file on a node. `edited`: it was pushed and has changed since."""

    node: int
    path: str
    size: int
    """In bytes."""
    mtime_ns: int
    edited: bool


def list_unmatched_files(nodes: Mapping[int, Programs], patterns: Sequence[str], **root: str) -> list[UnmatchedFile]:
    """List the unmatched files of several nodes; `root` is `run=NAME` or `tree=NAME`.

    Raises NodeRefused, ConnectionLost, MalformedAnswer.
    """

    def list_node(node: int) -> list[UnmatchedFile]:
        rows = _request_listing(nodes[node], patterns, root).files
        return [UnmatchedFile(node, *row) for row in rows if may_come(row[0])]  # our agent lists nothing else

    return [file for files in on_each(list_node, list(nodes)) for file in files]


def _request_listing(client: Programs, patterns: Sequence[str], root: Mapping[str, str]) -> UnmatchedListing:
    """Asked of the agent; where it refuses (it is older, or these are too many) or none is there, by a program."""
    from gpuops.transport import validation
    from gpuops.transport.program_schemas import UnmatchedListing

    if isinstance(client, AgentClient):
        with suppress(NodeRefused):
            told: UnmatchedListing = client.call("left", timeout=LIST_TIMEOUT_S, patterns=list(patterns), **root)
            return told
    question = json.dumps({"patterns": list(patterns), **root}).encode()
    answer = exchange(client.bulk("left"), client.label, question, LIST_TIMEOUT_S)
    listing: UnmatchedListing = validation.parse_document(client.label, "what is on it", answer, UnmatchedListing)
    return listing


def choose_unasked(files: Sequence[UnmatchedFile]) -> tuple[list[UnmatchedFile], list[UnmatchedFile]]:
    """Split the unmatched files of nodes that stay: those to download unasked, and those that are only named."""
    small = [file for file in files if file.size <= MAX_UNASKED_BYTES]
    if len(small) > MAX_UNASKED_FILES:
        small = [file for file in small if file.edited][:MAX_UNASKED_FILES]
    chosen = set(small)
    return small, [file for file in files if file not in chosen]


def exact_patterns(files: Sequence[UnmatchedFile]) -> list[str]:
    """Patterns that match exactly these files."""
    return sorted({"./" + glob.escape(file.path) for file in files})


def describe_unmatched_files(files: Sequence[UnmatchedFile]) -> str:
    """`data/cache.bin (1.2 GB, node0) and 3 more`; empty without files."""
    return first_few([f"{printable_path(file.path)} ({amount(file.size)}, node{file.node})" for file in files], 3)


def find_already_home(
    client: Programs, tree: str, files: Sequence[UnmatchedFile], folder: SafeFolder
) -> list[UnmatchedFile]:
    """The files that `folder` has under the same path with the same bytes. Raises NodeRefused, ConnectionLost."""
    candidates = [file for file in files if _can_store_name(folder, file.path) and folder.size(file.path) == file.size]
    same: set[str] = set()
    if candidates:
        with transfer(client.bulk("send", "--tree", tree), client.label) as channel:
            for member, content in read_files(channel, [file.path for file in candidates]):
                if member.link is None and _has_content(folder, member.name, content):
                    same.add(member.name)
    return [file for file in candidates if file.path in same]


def _can_store_name(folder: SafeFolder, path: str) -> bool:
    """Whether this computer's disk can have a file of exactly that name."""
    return folder.system.stored(path) == path


def _has_content(folder: SafeFolder, path: str, content: Readable) -> bool:
    """Whether a file has exactly these bytes; False where it cannot be read."""
    try:
        with folder.reading(path) as file:
            while block := content.read(BLOCK_BYTES):
                if file.read(len(block)) != block:
                    return False
            return not file.read(1)
    except OSError:
        return False


@dataclass(frozen=True)
class SavedFiles:
    """The result of `save_unmatched_files`."""

    renamed: Mapping[str, str]
    """Path on the node -> name here, where this disk cannot have the path itself."""
    missing: Sequence[UnmatchedFile]
    """Files that the node did not send, since they are gone or unreadable."""


def save_unmatched_files(
    client: Programs, tree: str, files: Sequence[UnmatchedFile], target: SafeFolder, system: System = HERE
) -> SavedFiles:
    """Copy files of one node's tree into `target`, under their paths. Raises NodeRefused, ConnectionLost, LocalDisk."""
    names = system.names(file.path for file in files)
    received: set[str] = set()
    with transfer(client.bulk("send", "--tree", tree), client.label) as channel:
        for member, content in read_files(channel, [file.path for file in files]):
            received.add(member.name)
            if member.link is not None:
                continue  # its target is saved under its own name, or lies outside
            name = names[member.name]
            with local_errors(target.path / name):
                target.write(name, content, member.size, mtime_ns=member.mtime * 1_000_000_000)
    renamed = {path: name for path, name in names.items() if path != name}
    return SavedFiles(renamed, [file for file in files if file.path not in received])
