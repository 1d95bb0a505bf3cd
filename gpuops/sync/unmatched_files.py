"""Files on a node that no `--out` pattern names: they are downloaded before the node ends.

A result is easily written under an unexpected name, and a file that was edited on a node is a person's work.
`--out '!GLOB'` says that such files may be lost.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuops.core.format import amount, first_few
from gpuops.core.parallel import on_each
from gpuops.core.platform import HERE, System
from gpuops.core.safe_folder import Readable, SafeFolder, local_errors, may_come
from gpuops.sync.project import printable_path
from gpuops.transport.bulk import exchange, finish, read_files, transfer
from gpuops.transport.rpc import Programs

if TYPE_CHECKING:
    from gpuops.transport import schemas


MAX_UNASKED_BYTES = 100_000_000
"""Larger files of a node that stays are only named: most results that are no snapshots are far smaller."""
MAX_UNASKED_FILES = 1000
"""More files are a data set or a cache: of these only edited ones come home unasked."""
LIST_TIMEOUT_S = 600.0
"""How long a node may take to list a large tree."""
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class UnmatchedFile:
    """One file on a node. `edited`: it was pushed and has changed since."""

    node: int
    path: str
    size: int
    mtime_ns: int
    edited: bool


def list_unmatched_files(nodes: Mapping[int, Programs], patterns: Sequence[str], **which: str) -> list[UnmatchedFile]:
    """List the leftovers of several nodes; `which` is `run` or `tree`.

    Raises NodeRefused, ConnectionLost, MalformedAnswer.
    """

    def one(node: int) -> list[UnmatchedFile]:
        listed = _request_listing(nodes[node], {"patterns": list(patterns), **which})["files"]
        return [UnmatchedFile(node, *row) for row in listed if may_come(row[0])]  # our agent lists nothing else

    return [one for found in on_each(one, list(nodes)) for one in found]


def _request_listing(programs: Programs, question: Mapping[str, Any]) -> schemas.Left:
    from gpuops.transport import schemas

    said = exchange(programs.bulk("left"), programs.label, json.dumps(question).encode(), LIST_TIMEOUT_S)
    listed: schemas.Left = schemas.document(programs.label, "what is on it", said, schemas.Left)
    return listed


def choose_unasked(found: Sequence[UnmatchedFile]) -> tuple[list[UnmatchedFile], list[UnmatchedFile]]:
    """Split the leftovers of nodes that stay: those that come home unasked, and those that are only named."""
    small = [leftover for leftover in found if leftover.size <= MAX_UNASKED_BYTES]
    if len(small) > MAX_UNASKED_FILES:
        small = [leftover for leftover in small if leftover.edited][:MAX_UNASKED_FILES]
    chosen = set(small)
    return small, [leftover for leftover in found if leftover not in chosen]


def exact_patterns(found: Sequence[UnmatchedFile]) -> list[str]:
    """Patterns that match exactly these files."""
    return sorted({"./" + glob.escape(leftover.path) for leftover in found})


def describe_unmatched_files(found: Sequence[UnmatchedFile]) -> str:
    """`data/cache.bin (1.2 GB, node0) and 3 more`; empty without files."""
    named = [f"{printable_path(leftover.path)} ({amount(leftover.size)}, node{leftover.node})" for leftover in found]
    return first_few(named, 3)


def find_already_home(
    client: Programs, tree: str, found: Sequence[UnmatchedFile], folder: SafeFolder
) -> list[UnmatchedFile]:
    """Those that lie in `folder` under the same path with the same bytes. Raises NodeRefused, ConnectionLost."""
    alike = [
        leftover
        for leftover in found
        if _can_lie(folder, leftover.path) and folder.size(leftover.path) == leftover.size
    ]
    same: set[str] = set()
    if alike:
        with transfer(client.bulk("send", "--tree", tree), client.label) as channel:
            for member, content in read_files(channel, [leftover.path for leftover in alike]):
                if member.link is None and _has_content(folder, member.name, content):
                    same.add(member.name)
            finish(channel, client.label)
    return [leftover for leftover in alike if leftover.path in same]


def _can_lie(folder: SafeFolder, path: str) -> bool:
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
    """The result of `save_leftovers`. `renamed`: node's path to the name that this disk can have; `missing`: files that
    the node did not send, since they are gone or unreadable."""

    renamed: Mapping[str, str]
    missing: Sequence[UnmatchedFile]


def save_unmatched_files(
    client: Programs, tree: str, found: Sequence[UnmatchedFile], target: SafeFolder, system: System = HERE
) -> SavedFiles:
    """Copy files of one node's tree into `target`, under their paths. Raises NodeRefused, ConnectionLost, LocalDisk."""
    names = system.names(leftover.path for leftover in found)
    came: set[str] = set()
    with transfer(client.bulk("send", "--tree", tree), client.label) as channel:
        for member, content in read_files(channel, [leftover.path for leftover in found]):
            came.add(member.name)
            if member.link is not None:
                continue  # its target is saved under its own name, or lies outside
            place = names[member.name]
            with local_errors(target.path / place):
                target.write(place, content, member.size, mtime_ns=member.mtime * 1_000_000_000)
        finish(channel, client.label)
    renamed = {path: name for path, name in names.items() if path != name}
    return SavedFiles(renamed, [leftover for leftover in found if leftover.path not in came])
