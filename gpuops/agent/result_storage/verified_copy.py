"""Copies one file to another disk: whole or not at all, and verified by reading it back."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from typing import BinaryIO, Callable

from gpuops.agent.wire_format import Whole

BLOCK_BYTES = 1 << 20
MISSING_FILE_ERRORS = (errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ELOOP)
PART = b".gpuops-part"
"""A file's name until it is whole. One name is enough, since one file at a time is copied into a folder."""


def copy_verified(source: bytes, target: bytes, progress: Callable[[int], None]) -> tuple[int, str] | None:
    """Copy a file, following links. Returns its size and SHA-256; None where there is no such file.

    `progress` is called with the bytes of each block copied, and with 0 for each block read back. Raises OSError, also
    where the file may not be read, and where other bytes are read back than were written.
    """
    try:
        fd = os.open(source, os.O_RDONLY | os.O_NONBLOCK)  # without waiting for the writer of a pipe
    except OSError as error:
        if error.errno in MISSING_FILE_ERRORS:
            return None
        raise
    try:
        seen = os.fstat(fd)
        if not stat.S_ISREG(seen.st_mode):
            return None
        with open(fd, "rb", closefd=False) as file:
            return _copy_whole(file, seen, target, progress)
    finally:
        os.close(fd)


def _copy_whole(
    file: BinaryIO, seen: os.stat_result, target: bytes, progress: Callable[[int], None]
) -> tuple[int, str]:
    part = os.path.join(os.path.dirname(target), PART)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        size, digest = _write(file, part, progress)
        os.utime(part, ns=(seen.st_atime_ns, seen.st_mtime_ns))
        if read_back(part, progress) != digest:
            raise OSError(errno.EIO, "what was written reads back differently")
        os.replace(part, target)
    except OSError:
        if os.path.lexists(part):
            os.unlink(part)
        raise
    return size, digest


def _write(file: BinaryIO, part: bytes, progress: Callable[[int], None]) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    with open(part, "wb", buffering=0) as out:
        for block in iter(lambda: file.read(BLOCK_BYTES), b""):
            Whole(out).write(block)
            digest.update(block)
            size += len(block)
            progress(len(block))
        os.fsync(out.fileno())
    return size, digest.hexdigest()


def read_back(path: bytes, progress: Callable[[int], None]) -> str:
    """The SHA-256 of a file as its disk has it, where the system can drop its cached pages."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for block in iter(lambda: file.read(BLOCK_BYTES), b""):
            digest.update(block)
            progress(0)
    return digest.hexdigest()
