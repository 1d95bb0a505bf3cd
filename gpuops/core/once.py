"""A file that several processes may want to make, and one makes."""

from __future__ import annotations

import os
from pathlib import Path


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
