"""A run's folder on this computer, and nothing about how it is filled.

runs/.gitignore            `*`: results are never committed nor pushed
runs/.lock                 held for a moment by whoever puts files into an `out/`
runs/<run>/run.json        what the run was (written atomically)
runs/<run>/logs/node<i>/   the streams of node i, byte for byte
runs/<run>/out/            what the run made, all nodes merged (see `folder`)
runs/<run>/incoming/       files on their way in
"""

from __future__ import annotations

import io
import json
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuops.core.errors import NodeError, UsageError
from gpuops.core.git import git
from gpuops.core.safe_folder import SafeFolder, local_errors

STREAM_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}(\.[a-z]{1,8})?")
"""What a node may call a stream: the name becomes a file on this computer."""


MAX_DOCUMENT_BYTES = 64 << 20
"""No document of ours is longer, in bytes: that of half a million files is not."""


class RunHome:
    """`runs/<run>/` as an object; construction touches nothing. What is written goes through `folder`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.out = path / "out"
        self.incoming = path / "incoming"
        self.folder = SafeFolder(path.parent).below(path.name)

    def create(self) -> None:
        """Make the folder and keep git's hands off it. Raises LocalDisk, UsageError."""
        with local_errors(self.path):
            keep_from_git(self.path)
            self.folder.below("out").make()

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Replace `run.json`. Raises LocalDisk."""
        with local_errors(self.path):
            self.folder.write_json("run.json", record)

    def log(self, node: int, stream: str) -> Path:
        """The file of a stream, to be read; raises NodeError for a name that no agent of ours would use."""
        return self.path / self.log_name(node, stream)

    def log_name(self, node: int, stream: str) -> str:
        """The same below `folder`, to be written."""
        if not STREAM_NAME.fullmatch(stream):
            raise NodeError(f"node{node} sent a log named {stream!r}", "check that this is the node you rented")
        return f"{_logs(node)}/{stream}"

    def lines(self, node: int, stream: str) -> list[bytes]:
        """Of a journal, from its beginning, as far as it has a length that an agent's has. Raises OSError."""
        with self.log(node, stream).open("rb") as file:
            return file.read(MAX_DOCUMENT_BYTES).splitlines()

    def offsets(self, node: int) -> dict[str, int]:
        """How many bytes of each of the node's streams are home."""
        logs = self.folder.below(_logs(node))
        sizes = {name: logs.size(name) for name in logs.names() if STREAM_NAME.fullmatch(name)}
        return {name: size for name, size in sizes.items() if size is not None}


def _logs(node: int) -> str:
    return f"logs/node{node}"


def keep_from_git(path: Path) -> SafeFolder:
    """Make a folder under `runs/` that git ignores: all of `runs/` where it is ours alone, else just this one
    (`runs/` is also where TensorBoard writes). A `.gitignore` of the user's stays.

    Raises OSError, and UsageError where `runs/` is a link that the repository brought along: it may lead anywhere.
    """
    above = path.parent.parent
    seen = SafeFolder(above).look(path.parent.name)
    if seen and stat.S_ISLNK(seen.st_mode) and git(above, "ls-files", "-z", "--", path.parent.name):
        raise UsageError(f"{path.parent} is a link that git tracks: results may not follow it", "remove the link")
    runs = SafeFolder(path.parent)
    runs.below(path.name).make()
    if runs.look(".gitignore") is None:
        name = ".gitignore" if seen is None else f"{path.name}/.gitignore"
        runs.write(name, io.BytesIO(b"*\n"), 0)
    return runs.below(path.name)


def read_json(path: Path) -> dict[str, Any]:
    """The file's JSON object; empty when the file is absent or is none."""
    try:
        with path.open(encoding="utf-8") as file:
            value = json.loads(file.read(MAX_DOCUMENT_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
