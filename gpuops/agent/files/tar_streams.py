"""The tar streams that a node sends, and `restore`, which puts an earlier run's files back into a tree.

A tar member always has the announced size, even if its file grows or shrinks meanwhile.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
import secrets
import shutil
import stat
import tarfile
from typing import Any, BinaryIO, Sequence, cast

from gpuops.agent import wire_format
from gpuops.agent.files.earlier_outputs import note_restored, read_restored
from gpuops.agent.files.folder import TreeFolder, blocked, checked_path, stat_entry
from gpuops.agent.files.push_decision import BLOCKED, LINK
from gpuops.agent.node import Node, parse_options
from gpuops.agent.wire_format import BLOCK_BYTES, Whole


def send_files(folder: TreeFolder, paths: list[str], stdout: BinaryIO, follow: bool) -> None:
    """Write the files as a tar stream. Raises Refusal(`bad-path`) before the first byte."""
    for path in paths:
        checked_path(path)
    with tarfile.open(
        mode="w|",
        fileobj=cast(BinaryIO, Whole(stdout)),
        bufsize=BLOCK_BYTES,
        format=tarfile.PAX_FORMAT,
        encoding="utf-8",
        errors="surrogateescape",
    ) as tar:
        for path in paths:
            if not follow and stat_entry(folder.at(path)).kind == LINK:
                _send_link(tar, path, folder)
            else:
                _send_file(tar, path, folder)
    stdout.flush()


def _send_link(tar: tarfile.TarFile, path: str, folder: TreeFolder) -> None:
    found = stat_entry(folder.at(path))
    if found.entry.link is None:
        return  # replaced meanwhile
    member = tarfile.TarInfo(path)
    member.type, member.linkname = tarfile.SYMTYPE, found.entry.link
    tar.addfile(member)


def _send_file(tar: tarfile.TarFile, path: str, folder: TreeFolder) -> None:
    try:
        fd = os.open(folder.at(path), os.O_RDONLY | os.O_NONBLOCK)  # without waiting for the writer of a pipe
    except OSError:
        return  # removed meanwhile, or not readable: left out
    try:
        seen = os.fstat(fd)
        if stat.S_ISREG(seen.st_mode):
            member = tarfile.TarInfo(path)
            member.size, member.mode, member.mtime = seen.st_size, stat.S_IMODE(seen.st_mode), int(seen.st_mtime)
            with open(fd, "rb", closefd=False) as file:
                tar.addfile(member, cast(BinaryIO, Padded(file, seen.st_size)))
    finally:
        os.close(fd)


class Padded:
    """Reads exactly `size` bytes of a file that may grow or shrink; zeros replace missing bytes."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file = file
        self.left = size

    def read(self, count: int) -> bytes:
        count = min(count, self.left)
        data = self.file.read(count)
        self.left -= count
        return data + bytes(count - len(data))


def restore(node: Node, arguments: list[str], stdin: BinaryIO, stdout: BinaryIO) -> int:  # noqa: ARG001
    """Mode, `--tree T --of RUN`: a stream of a run's files on stdin, named by their path, put into the tree over
    existing files; below a linked folder (`outputs` on a larger disk) over those alone that were put back before.

    Raises Refusal(`bad-path`, `torn`, `outside`, `in-the-way`).
    """
    options = parse_options(arguments)
    tree = options["tree"]
    folder = TreeFolder(node.tree(tree))
    incoming = node.path("incoming")
    os.makedirs(incoming, exist_ok=True)
    staged = os.path.join(incoming, f"restore.{os.getpid()}").encode()
    placed, put_back = [], read_restored(node, tree)
    try:
        for name, _size, blocks in wire_format.members(stdin):
            path = checked_path(name)
            with open(staged, "wb") as file:
                for block in blocks:
                    file.write(block)
            found = folder.look(path)
            if found.kind == BLOCKED and os.path.isdir(folder.at(found.blocker)):
                if not _may_replace(folder.at(path), staged, put_back.get(path)):
                    raise blocked(path, found)
                _copy_into_place(staged, folder.at(path))
            else:
                folder.place(path, staged)
            placed.append(path)
    finally:  # what lies there of a stream that was cut is no later run's work either
        note_restored(node, tree, options.get("of", ""), placed)
        with contextlib.suppress(OSError):
            os.unlink(staged)
    return 0


def _may_replace(target: bytes, staged: bytes, put_back: Sequence[Any] | None) -> bool:
    """Whether nothing else is lost with a file below a linked folder: the link may lead to files of no run of ours."""
    if not os.path.lexists(target):
        return True
    entry = stat_entry(target).entry
    return [entry.size, entry.mtime_ns] == list(put_back or [])[:2] or filecmp.cmp(target, staged, shallow=False)


def _copy_into_place(staged: bytes, target: bytes) -> None:
    """As a move, to another disk."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    draft = target + f".gpuops-{secrets.token_hex(8)}".encode()
    try:
        shutil.copyfile(staged, draft)
        os.replace(draft, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise
