"""A run's folder on this computer: where each file lies, and how git is kept away from it.

runs/.gitignore            `*`: results are never committed nor pushed
runs/.lock                 held by a process while it publishes files into an `out/`
runs/<run>/run.json        what the run was (written atomically)
runs/<run>/report.html     the same for people, with charts (see `runs.report`)
runs/<run>/logs/node<i>/   the streams of node i, byte for byte
runs/<run>/out/            what the run made, all nodes merged (see `merged_outputs`)
runs/<run>/incoming/       files on their way in
"""

from __future__ import annotations

import io
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuops.core.errors import NodeError, UsageError
from gpuops.core.git import git
from gpuops.core.safe_folder import SafeFolder, local_errors
from gpuops.sync.run_record import RunRecord

RECORD = "run.json"
REPORT = "report.html"
STREAM_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}(\.[a-z]{1,8})?")
"""What a node may call a stream: the name becomes a file on this computer."""


MAX_DOCUMENT_BYTES = 64 << 20
"""No document of a run is larger: that of a run with half a million files is smaller."""
MAX_LINE_BYTES = 1 << 20
"""No line of a journal is longer."""


class RunHome:
    """`runs/<run>/`. Construction touches nothing; every write goes through `folder`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.out = path / "out"
        self.folder = SafeFolder(path.parent).below(path.name)

    def claim(self) -> bool:
        """As `create`, of several at once by one alone. Returns whether it was not there yet. Raises LocalDisk,
        UsageError."""
        with local_errors(self.path):
            try:
                make_ignored_folder(self.path, new=True)
            except FileExistsError:
                if not os.path.lexists(self.path):  # what is in the way is above it
                    raise
                return False
            self.folder.below("out").make()
        return True

    def folder_id(self) -> int:
        """The number that the disk knows the folder by, which another in its place has not; 0 where that is unknown."""
        try:
            return os.stat(self.path).st_ino
        except OSError:
            return 0

    def create(self) -> None:
        """Make the folder, ignored by git. Raises LocalDisk, UsageError."""
        with local_errors(self.path):
            make_ignored_folder(self.path)
            self.folder.below("out").make()

    def remove_unused(self) -> None:
        """Remove the folder while nothing but what `create` made lies in it; otherwise it stays."""
        try:
            self.out.rmdir()
            if os.listdir(self.path) == [".gitignore"]:
                (self.path / ".gitignore").unlink()
            self.path.rmdir()
        except OSError:
            pass  # a result lies in it, or it was never made

    def write_record(self, record: RunRecord) -> None:
        """Replace `run.json`. Raises LocalDisk."""
        with local_errors(self.path):
            self.folder.write_json(RECORD, record.document())

    def read_record(self) -> RunRecord | None:
        """The record of the run; None where there is none that can be read."""
        document = read_json(self.path / RECORD)
        return RunRecord.parse(document) if document else None

    def flush(self) -> None:
        """Wait until the disk has all of it: the nodes that have it, too, may be destroyed next. Raises LocalDisk.

        Files in `out/` were flushed when they were received; logs grow, and are flushed here.
        """
        with local_errors(self.path):
            self.folder.below("logs").flush(files=True)
            self.folder.flush()

    def log(self, node: int, stream: str) -> Path:
        """The path of a stream, to be read. Raises NodeError for a name that no genuine agent uses."""
        return self.path / self.log_name(node, stream)

    def log_name(self, node: int, stream: str) -> str:
        """The same path relative to `folder`, to be written."""
        if not STREAM_NAME.fullmatch(stream):
            raise NodeError(f"node{node} sent a log named {stream!r}", "check that this is the node you rented")
        return f"{_logs(node)}/{stream}"

    def lines(self, node: int, stream: str) -> Iterator[bytes]:
        """The lines of a journal, of its first `MAX_DOCUMENT_BYTES`; none where it is not there, or cannot be read."""
        with suppress(OSError):
            yield from read_lines(self.log(node, stream), MAX_DOCUMENT_BYTES)

    def offsets(self, node: int) -> dict[str, int]:
        """Stream -> number of bytes that are home."""
        logs = self.folder.below(_logs(node))
        sizes = {name: logs.size(name) for name in logs.names() if STREAM_NAME.fullmatch(name)}
        return {name: size for name, size in sizes.items() if size is not None}


def _logs(node: int) -> str:
    return f"logs/node{node}"


def make_ignored_folder(path: Path, *, new: bool = False) -> SafeFolder:
    """Make a folder under `runs/` that git ignores: all of `runs/` where gpuops made it, else just this folder, since
    TensorBoard writes into `runs/`, too. A `.gitignore` of the user's stays.

    `new`: it must not be there yet. Raises OSError, and UsageError where `runs/` is a link that git tracks: it may lead
    anywhere.
    """
    project = path.parent.parent
    status = SafeFolder(project).look(path.parent.name)
    if status and stat.S_ISLNK(status.st_mode) and git(project, "ls-files", "-z", "--", path.parent.name):
        raise UsageError(f"{path.parent} is a link that git tracks: results may not follow it", "remove the link")
    runs = SafeFolder(path.parent)
    if new:
        runs.make_new(path.name)
    else:
        runs.below(path.name).make()
    if runs.look(".gitignore") is None:
        name = ".gitignore" if status is None else f"{path.name}/.gitignore"
        runs.write(name, io.BytesIO(b"*\n"), 0)
    return runs.below(path.name)


def read_lines(path: Path, limit_bytes: int) -> Iterator[bytes]:
    """The first lines of a file, each with its end; a line of more than `MAX_LINE_BYTES` comes in pieces. Raises
    OSError."""
    with path.open("rb") as file:
        while limit_bytes > 0 and (line := file.readline(MAX_LINE_BYTES)):
            limit_bytes -= len(line)
            yield line


def read_json(path: Path) -> dict[str, Any]:
    """The file's JSON object; empty when the file is absent or is none."""
    try:
        with path.open(encoding="utf-8") as file:
            value = json.loads(file.read(MAX_DOCUMENT_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
