"""Small files of gpuops' own on this computer: written whole, read within a limit, kept from other users.

A file is written under another name beside its place, flushed to the disk, and then takes its place in one step: a
reader, and a command after a crash, find the old bytes or the new ones. Its mode is 0600. Several processes may write
the same file: the last `write_atomic` stays, the first `create_once` stays. Files that a node has named are
`safe_folder`'s, which follows no link.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from gpuops.core.errors import LocalDisk
from gpuops.core.platform import HERE, System, replace

BINARY = getattr(os, "O_BINARY", 0)
"""Windows: bytes are written and read as they are."""

MAX_SMALL_BYTES = 1_000_000
"""Settings, ignore files and requirements are shorter; a longer file is a mistake or an attack on our memory."""


@contextmanager
def _draft(path: Path, data: bytes) -> Iterator[Path]:
    """These bytes on the disk under a new name beside `path`, which is removed where the block has not moved it."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def write_atomic(path: Path, data: bytes) -> None:
    """Put `data` in the place of what lies at `path`. Its folder must exist. Raises OSError."""
    with _draft(path, data) as draft:
        replace(draft, path)


def write_private(path: Path, text: str) -> None:
    """As `write_atomic`, in UTF-8. Raises LocalDisk."""
    try:
        write_atomic(path, text.encode())
    except OSError as error:
        raise LocalDisk(f"{path} cannot be written: {error.strerror}", "check this disk and its permissions") from error


def create_once(path: Path, text: str) -> None:
    """Make the file where there is none; where another process was first, its file stays. Raises OSError."""
    with _draft(path, text.encode()) as draft, suppress(FileExistsError):
        os.link(draft, path)


def read_small(path: Path, max_bytes: int = MAX_SMALL_BYTES) -> bytes:
    """The bytes of a plain file. Raises OSError, also for a larger file and for a pipe, which would block us."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | BINARY)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no file", str(path))
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes // 1000} kB", str(path))
    return data


Run = Callable[[Sequence[str]], bool]
"""Runs a program and returns whether it succeeded."""


def _succeeds(argv: Sequence[str]) -> bool:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return done.returncode == 0


def private_folder(folder: Path, system: System = HERE, run: Run = _succeeds) -> Path:
    """The folder, made where it is missing, closed to other users. Raises LocalDisk."""
    try:
        if protection := system.protection(folder, os.environ):
            if not folder.exists():
                folder.mkdir(parents=True, exist_ok=True)
                _protect(folder, protection, run)
            return folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        raise LocalDisk(f"{folder} cannot be made: {error.strerror}", "check this disk and its permissions") from error
    return folder


def _protect(folder: Path, argv: Sequence[str], run: Run) -> None:
    if not run(argv):
        folder.rmdir()
        raise LocalDisk(
            f"{folder} cannot be kept from other users: {argv[0]} failed",
            "set GPUOPS_HOME to a folder in your own profile, on an NTFS disk",
        )
