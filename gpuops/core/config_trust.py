"""Which `gpuops.toml` the user trusts: a file in gpuops' folder for each trusted path and content.

A project may come from anybody, and its settings may send keys elsewhere or run programs here. So trust holds for one
content at one path: a changed or moved file is asked about again. The path is the project's own, also where the file is
a link, since its relative settings depend on the project.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from gpuops.core.errors import LocalDisk
from gpuops.core.files import create_once
from gpuops.core.settings import Toml


def place(toml: Path) -> Path:
    """The file in its project's real folder."""
    return Path(os.path.realpath(toml.parent)) / toml.name


def is_trusted(home: Path, toml: Toml) -> bool:
    """`home`: gpuops' own folder."""
    return _trust_file(home, toml.path, toml.sha256).is_file()


def trust(home: Path, toml: Toml) -> None:
    """Raises LocalDisk."""
    file = _trust_file(home, toml.path, toml.sha256)
    try:
        file.parent.mkdir(mode=0o700, exist_ok=True)
        create_once(file, f"{os.fsencode(place(toml.path))!r}\n")
    except OSError as error:
        raise LocalDisk(
            f"gpuops cannot keep your word in {file.parent}: {error.strerror or error}",
            "see that it can be written and the disk has space",
        ) from error


def revoke(home: Path, toml: Path) -> int:
    """Trust no content of this file any more. How many there were; raises LocalDisk."""
    try:
        any_content = _trust_file(home, toml, "")
        files = list(any_content.parent.glob(f"{any_content.name}*"))
        for file in files:
            file.unlink(missing_ok=True)
    except OSError as error:
        raise LocalDisk(
            f"{error.filename} cannot be removed: {error.strerror}", "see that it can be written"
        ) from error
    return len(files)


def _trust_file(home: Path, toml: Path, sha256: str) -> Path:
    return home / "trusted" / f"{hashlib.sha256(os.fsencode(place(toml))).hexdigest()[:32]}-{sha256}"
