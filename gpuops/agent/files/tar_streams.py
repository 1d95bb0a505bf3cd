"""Mode `send`: files of a tree as a tar stream. A member always has the announced size, even if its file grows or
shrinks meanwhile."""

from __future__ import annotations

import json
import os
import stat
import tarfile
from typing import BinaryIO, cast

from gpuops.agent import run_files
from gpuops.agent.files.folder import TreeFolder, checked_path, stat_entry
from gpuops.agent.files.push_decision import LINK
from gpuops.agent.node import Node, parse_options
from gpuops.agent.wire_format import BLOCK_BYTES, Whole


def send(node: Node, arguments: list[str], stdin: BinaryIO, stdout: BinaryIO) -> int:
    """Mode, `--tree T` or `--run R`: a JSON list of paths on stdin, a tar stream on stdout, paths as given.

    Absent files are left out. Links of a tree are sent as links, those of a run as the files they lead to. Raises
    Refusal(`bad-path`, `no-run`).
    """
    flags = parse_options(arguments)
    name = flags.get("tree") or run_files.known_spec(node, flags["run"]).tree
    paths = json.loads(stdin.read().decode("utf-8"))
    _send_files(TreeFolder(node.tree(name)), paths, stdout, follow="run" in flags)
    return 0


def _send_files(folder: TreeFolder, paths: list[str], stdout: BinaryIO, follow: bool) -> None:
    """`follow`: send files that links lead to. Raises Refusal(`bad-path`) before the first byte."""
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
