"""What this computer has pushed to each node of a cluster, recorded here, so that a node cannot claim a push.

`<home>/pushed/<hash of the cluster's token>/` holds `<tree>-n<node>.json` (which lists may be on that node) and the
lists by their checksum: nodes that got the same files share one. A list is written before its push is committed, so
that every file a node may have is recorded; it is removed when a later push has replaced it.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuops.core.errors import LocalDisk
from gpuops.core.file_lock import LockTimeout, file_lock
from gpuops.core.safe_folder import SafeFolder
from gpuops.sync.project_files import FileEntry

RECORD_FOLDER = "pushed"
LOCK_TIMEOUT_S = 120.0
"""How long another process may take to write the record."""


@dataclass(frozen=True)
class _NodeState:
    """The content of `<tree>-n<node>.json`."""

    lists: Sequence[str] = ()
    """Keys of the lists that may be on the node."""
    kept: Sequence[FileEntry] = ()
    """Files of earlier lists that were edited on the node and stayed there."""

    def document(self) -> dict[str, object]:
        return {"schema": 1, "lists": list(self.lists), "kept": [entry.wire for entry in self.kept]}


class PushRecord:
    """The record of one tree on one cluster. Construction touches nothing. Raises LocalDisk."""

    def __init__(self, home: Path, token: str, tree: str) -> None:
        self._root = SafeFolder(home)
        self._folder = self._root.below(_name(token))
        self._tree = tree
        self._lock_path = home / RECORD_FOLDER / ".lock"

    def begin_push(self, node: str, files: str) -> str:
        """Record a push before it is committed. `files`: its list, as JSON. Returns its key, for `end_push`."""
        data = files.encode()
        key = hashlib.sha256(data).hexdigest()
        with self._locked():
            if self._folder.size(key) is None:
                self._folder.write(key, io.BytesIO(data), 0)
            state = self._read_state(node)
            if key not in state.lists:
                self._write_state(node, replace(state, lists=[*state.lists, key]))
        return key

    def end_push(self, node: str, key: str, kept: Iterable[str]) -> None:
        """Record that a push was committed. `kept`: files of earlier pushes that were edited there and stayed."""
        with self._locked():
            state = _NodeState([key], self._kept_entries(node, key, kept))
            if self._read_state(node) != state:
                self._write_state(node, state)
            names = self._folder.names()
            used = {used for name in names if name.endswith(".json") for used in self._read_file(name).lists}
            for name in names:
                if not name.endswith(".json") and name not in used:
                    self._folder.remove(name)

    def _kept_entries(self, node: str, key: str, kept: Iterable[str]) -> list[FileEntry]:
        """The recorded versions of files that stayed on the node and are not in the list `key`."""
        if not (paths := set(kept)):
            return []
        listed, before = {entry.path for entry in self._read_list(key)}, self.files(node)
        return [entry for path in sorted(paths - listed) for entry in before.get(path, [])]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self._root.below(RECORD_FOLDER).make()
            with file_lock(self._lock_path, LOCK_TIMEOUT_S):
                yield
        except LockTimeout as error:
            raise LocalDisk(
                f"another gpuops has been writing what was pushed for {LOCK_TIMEOUT_S:.0f} s",
                "end it (perhaps it is suspended in a terminal), then type this again",
            ) from error
        except OSError as error:
            raise LocalDisk(
                f"{error.filename or self._folder.path} cannot be written: {error.strerror or error}",
                "check this disk and its permissions",
            ) from error

    def files(self, node: str) -> dict[str, list[FileEntry]]:
        """Every version of every file that may lie on a node because of a push, by path, the latest first."""
        state = self._read_state(node)
        versions: dict[str, list[FileEntry]] = {}
        for key in reversed(state.lists):
            for entry in self._read_list(key):
                versions.setdefault(entry.path, []).append(entry)
        for entry in state.kept:
            versions.setdefault(entry.path, []).append(entry)
        return versions

    def _file_name(self, node: str) -> str:
        return f"{self._tree}-{node}.json"

    def _write_state(self, node: str, state: _NodeState) -> None:
        self._folder.write_json(self._file_name(node), state.document())

    def _read_state(self, node: str) -> _NodeState:
        return self._read_file(self._file_name(node))

    def _read_file(self, name: str) -> _NodeState:
        document = self._read_json(name)
        if not isinstance(document, dict):
            return _NodeState([], [])
        return _NodeState(document["lists"], [FileEntry(*row) for row in document["kept"]])

    def _read_list(self, key: str) -> list[FileEntry]:
        return [FileEntry(*row) for row in self._read_json(key) or []]

    def _read_json(self, name: str) -> Any:
        """The content of a file; None where nothing was pushed from here, or the disk has lost it."""
        try:
            with self._folder.reading(name) as file:
                return json.load(file)
        except (OSError, ValueError):
            return None


def forget_cluster(home: Path, token: str) -> None:
    """Remove the record of a cluster that has ended."""
    SafeFolder(home).remove_tree(_name(token))


def _name(token: str) -> str:
    return f"{RECORD_FOLDER}/{hashlib.sha256(token.encode()).hexdigest()[:32]}"
