"""Files of the SSH layer on this computer: private, and written whole or not at all."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from gpuops.core.errors import LocalDisk
from gpuops.core.platform import HERE, System, replace

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
