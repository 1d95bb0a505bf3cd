"""One file copied to another disk: whole or not at all, and what was written is read back."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from typing import BinaryIO, Callable

from gpuops.agent.wire import Whole

BLOCK = 1 << 20
NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ELOOP, errno.EACCES)
PART = b".gpuops-part"
"""What a file is called until it is whole; a folder's one copy at a time needs no other name."""


def copied(source: bytes, target: bytes, tell: Callable[[int], None]) -> tuple[int, str] | None:
    """Copy a file; its size and SHA-256. None for what vanished, is no file any more or not ours to read; links are
    followed.

    `tell` hears of every block, read or read back. Raises OSError, also where other bytes are read than were written.
    """
    try:
        fd = os.open(source, os.O_RDONLY | os.O_NONBLOCK)  # a pipe must not make us wait for its writer
    except OSError as error:
        if error.errno in NO_FILE:
            return None
        raise
    try:
        seen = os.fstat(fd)
        if not stat.S_ISREG(seen.st_mode):
            return None
        with open(fd, "rb", closefd=False) as file:
            return _whole(file, seen, target, tell)
    finally:
        os.close(fd)


def _whole(file: BinaryIO, seen: os.stat_result, target: bytes, tell: Callable[[int], None]) -> tuple[int, str]:
    part = os.path.join(os.path.dirname(target), PART)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        size, digest = _write(file, part, tell)
        os.utime(part, ns=(seen.st_atime_ns, seen.st_mtime_ns))
        if read_back(part, tell) != digest:
            raise OSError(errno.EIO, "what was written reads back differently")
        os.replace(part, target)
    except OSError:
        if os.path.lexists(part):
            os.unlink(part)
        raise
    return size, digest


def _write(file: BinaryIO, part: bytes, tell: Callable[[int], None]) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    with open(part, "wb", buffering=0) as out:
        for block in iter(lambda: file.read(BLOCK), b""):
            Whole(out).write(block)
            digest.update(block)
            size += len(block)
            tell(len(block))
        os.fsync(out.fileno())
    return size, digest.hexdigest()


def read_back(path: bytes, tell: Callable[[int], None]) -> str:
    """The SHA-256 of a file as its disk has it, where the system lets its own memory of it be dropped."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for block in iter(lambda: file.read(BLOCK), b""):
            digest.update(block)
            tell(0)
    return digest.hexdigest()
