"""gpuops' own folder (`Context.home`), and the mark in it of all that its user rents."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from gpuops.core.errors import LocalDisk, UsageError
from gpuops.core.files import create_once
from gpuops.core.platform import HERE


def home(environ: Mapping[str, str], *, make: bool = True) -> Path:
    """gpuops' own folder, `$GPUOPS_HOME` or `~/.gpuops`, made (0700) when absent. Raises UsageError.

    `make=False`: for what only looks, or ends something: the folder may be absent or closed to writing
    (`can_write`).

    Keys and programs lie in it: one that another user could change (`System.open_to_others`) is refused.
    """
    given = environ.get("GPUOPS_HOME")
    path = Path(given) if given else _users_home(environ) / ".gpuops"
    if not path.is_absolute():
        name, value = ("GPUOPS_HOME", given) if given else ("HOME", environ.get("HOME"))
        raise UsageError(f"{name} is '{value}', which is not an absolute path", "give the whole path, from / on")
    if not make and _is_absent(path):
        return path
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        opened = HERE.open_to_others(path)
    except OSError as error:
        raise UsageError(
            f"gpuops cannot make its folder {path}: {error.strerror or error}",
            "set GPUOPS_HOME to a folder that you may write to",
        ) from error
    if not _may(path, os.R_OK | os.X_OK) or (make and not can_write(path)):
        raise UsageError(
            f"gpuops may not {'write to' if make else 'read'} its folder {path}",
            "make it yours (chown, chmod 700); what is up is noted there, and in no other folder"
            + "; gpuops status, logs, down and reap need not write to it" * make,
        )
    if opened == path:
        raise UsageError(
            f"another user may change what lies in gpuops' folder {path}",
            f"see that it is yours and nothing in it is another's, then: chmod 700 {path}",
        )
    if opened is not None:
        raise UsageError(
            f"another user may replace gpuops' folder {path}: others may write to {opened}",
            f"chmod go-w {opened}, or set GPUOPS_HOME to a folder elsewhere",
        )
    return path


def _is_absent(path: Path) -> bool:
    """Raises UsageError where that cannot be seen, as without a ticket for a home behind a network: what is up may be
    noted there."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError as error:
        raise UsageError(
            f"gpuops cannot look into its folder {path}: {error.strerror or error}",
            "what is up is noted there, and in no other folder: make it readable first",
        ) from error
    return False


def can_write(home: Path) -> bool:
    """Whether gpuops' own folder is there and can be written."""
    return _may(home, os.W_OK)


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _users_home(environ: Mapping[str, str]) -> Path:
    try:
        return Path(environ.get("HOME") or Path.home())
    except RuntimeError:
        raise UsageError("no home folder is known for this user", "set HOME, or GPUOPS_HOME to a folder") from None


def owner(home: Path, new: Callable[[], str] = lambda: os.urandom(4).hex(), *, make: bool = True) -> str:
    """8 hex digits that mark everything this user rents, chosen once by the first command that may create something.
    Empty without any, with `make=False`.

    Raises UsageError for a damaged file (another mark would hide what carries the old one), LocalDisk.
    """
    path = home / "owner"
    try:
        if not make and not path.exists():
            return ""
        if not path.exists():
            create_once(path, new() + "\n")
        text = path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        raise LocalDisk(
            f"gpuops cannot keep its mark in {path}: {error.strerror or error}",
            "it is a file: see that it can be written and the disk has space",
        ) from error
    if not re.fullmatch(r"[0-9a-f]{8}", text):
        raise UsageError(
            f"{path} is damaged: it should hold 8 hex digits",
            "restore it: what you rent carries these digits in its name, gpuops-<digits>-…",
        )
    return text
