"""A file that several processes may want to make, and one makes."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from gpuops.core.errors import LocalDisk
from gpuops.core.platform import HERE, System, replace


def create_once(path: Path, text: str) -> None:
    """The file whole, on disk and for us alone; when another process was first, its file stays. Raises OSError."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
    finally:
        draft.unlink(missing_ok=True)


LARGEST = 1_000_000
"""No such file is longer. Bytes."""


def read_small(path: Path, largest: int = LARGEST) -> bytes:
    """What stands in it. Raises OSError, also for what is no file (a pipe would be waited for) or is too large."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no file", str(path))
        data = file.read(largest + 1)
    if len(data) > largest:
        raise OSError(errno.EFBIG, f"it is larger than {largest // 1000} kB", str(path))
    return data


Run = Callable[[Sequence[str]], bool]
"""Runs a program; whether it succeeded."""


def _succeeds(argv: Sequence[str]) -> bool:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return done.returncode == 0


def private_folder(folder: Path, system: System = HERE, run: Run = _succeeds) -> Path:
    """The folder, made if need be; nobody else may look into it. Raises LocalDisk."""
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


def write_private(path: Path, text: str) -> None:
    """Put `text` into `path` for the user alone (0600); readers see the old text or the new. Raises LocalDisk."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(descriptor, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            replace(beside, path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise LocalDisk(f"{path} cannot be written: {error.strerror}", "check this disk and its permissions") from error
