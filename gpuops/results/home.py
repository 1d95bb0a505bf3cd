"""A run's folder on this computer, and nothing about how it is filled.

runs/.gitignore            `*`: results are never committed nor pushed
runs/.lock                 held for a moment by whoever puts files into an `out/`
runs/<run>/run.json        what the run was (written atomically)
runs/<run>/logs/node<i>/   the streams of node i, byte for byte
runs/<run>/out/            what the run made, all nodes merged (see `folder`)
runs/<run>/incoming/       files on their way in
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuops.errors import LocalDisk, NodeError
from gpuops.system import replace

STREAM = re.compile(r"[A-Za-z0-9_-]{1,64}(\.[a-z]{1,8})?")
"""What a node may call a stream: the name becomes a file on this computer."""


class RunHome:
    """`runs/<run>/` as an object; construction touches nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.out = path / "out"
        self.incoming = path / "incoming"

    def create(self) -> None:
        """Make the folder and keep git's hands off it."""
        with local_errors(self.path):
            keep_from_git(self.path)
            self.out.mkdir(parents=True, exist_ok=True)

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Replace `run.json`."""
        draft = self.path / f".run.json.{os.getpid()}-{secrets.token_hex(4)}.tmp"
        with local_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            write_json(self.path / "run.json", record, draft)

    def log(self, node: int, stream: str) -> Path:
        """The file of a stream; raises NodeError for a name that no agent of ours would use."""
        if not STREAM.fullmatch(stream):
            raise NodeError(f"node{node} sent a log named {stream!r}", "check that this is the node you rented")
        return self._logs(node) / stream

    def offsets(self, node: int) -> dict[str, int]:
        """How many bytes of each of the node's streams are home."""
        try:
            return {entry.name: entry.stat().st_size for entry in os.scandir(self._logs(node)) if entry.is_file()}
        except FileNotFoundError:
            return {}

    def _logs(self, node: int) -> Path:
        return self.path / "logs" / f"node{node}"


def keep_from_git(path: Path) -> None:
    """Make a folder under `runs/` that git ignores: all of `runs/` where it is ours alone, else just this one
    (`runs/` is also where TensorBoard writes). A `.gitignore` of the user's stays."""
    fresh = not path.parent.exists()
    path.mkdir(parents=True, exist_ok=True)
    if not (path.parent / ".gitignore").exists():
        ignore = (path.parent if fresh else path) / ".gitignore"
        ignore.write_text("*\n", encoding="utf-8")


def write_json(path: Path, value: Mapping[str, Any], temporary: Path) -> None:
    """Write atomically and to disk: a reader, or the next start, sees the old or the new file."""
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    replace(temporary, path)


def read_json(path: Path) -> dict[str, Any]:
    """The file's JSON object; empty when the file is absent or is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


@contextmanager
def local_errors(path: Path) -> Iterator[None]:
    """Turn what this computer's disk says into one sentence. Raises LocalDisk."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise LocalDisk(
                f"this computer's disk is full: cannot write to {error.filename or path}",
                "free space, then run `gpuops pull`",
            ) from error
        raise LocalDisk(
            f"cannot write to {error.filename or path}: {error.strerror or error}",
            "free space or fix the permissions, then run `gpuops pull`",
        ) from error
