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

from filelock import FileLock

from gpuops.core.errors import LocalDisk
from gpuops.core.safe_folder import SafeFolder
from gpuops.sync.project import FileEntry

RECORD_FOLDER = "pushed"


@dataclass(frozen=True)
class _NodeState:
    """What `<tree>-n<node>.json` holds: keys of the lists that may be on the node, and rows of edited files it kept."""

    lists: Sequence[str] = ()
    kept: Sequence[Sequence[Any]] = ()

    def document(self) -> dict[str, Any]:
        return {"schema": 1, "lists": list(self.lists), "kept": list(self.kept)}


class PushRecord:
    """The record of one tree on one cluster. Construction touches nothing. Raises LocalDisk."""

    def __init__(self, home: Path, token: str, tree: str) -> None:
        self._root = SafeFolder(home)
        self._folder = self._root.below(_name(token))
        self._tree = tree
        self._lock = FileLock(home / RECORD_FOLDER / ".lock")

    def begin(self, node: str, files: Sequence[FileEntry]) -> str:
        """Record a push before it is committed. Returns its key, for `end`."""
        data = json.dumps([entry.wire for entry in files]).encode()
        key = hashlib.sha256(data).hexdigest()
        with self._locked():
            if self._folder.size(key) is None:
                self._folder.write(key, io.BytesIO(data), 0)
            state = self._state(node)
            if key not in state.lists:
                self._write(node, replace(state, lists=[*state.lists, key]))
        return key

    def end(self, node: str, key: str, kept: Iterable[str]) -> None:
        """Record that a push was committed. `kept`: files of earlier pushes that were edited there and stayed."""
        with self._locked():
            state = _NodeState([key], self._stays(node, key, kept))
            if self._state(node) != state:
                self._write(node, state)
            names = self._folder.names()
            used = {one for name in names if name.endswith(".json") for one in self._read(name).lists}
            for name in names:
                if not name.endswith(".json") and name not in used:
                    self._folder.remove(name)

    def _stays(self, node: str, key: str, kept: Iterable[str]) -> list[Any]:
        if not (paths := set(kept)):
            return []
        after, before = {entry.path for entry in self._list(key)}, self.files(node)
        return [one.wire for path in sorted(paths - after) for one in before.get(path, [])]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self._root.below(RECORD_FOLDER).make()
            with self._lock:
                yield
        except OSError as error:
            raise LocalDisk(
                f"{error.filename or self._folder.path} cannot be written: {error.strerror or error}",
                "check this disk and its permissions",
            ) from error

    def files(self, node: str) -> dict[str, list[FileEntry]]:
        """Every version of every file that may lie on a node because of a push, by path, the latest first."""
        state = self._state(node)
        found: dict[str, list[FileEntry]] = {}
        for key in reversed(state.lists):
            for entry in self._list(key):
                found.setdefault(entry.path, []).append(entry)
        for row in state.kept:
            found.setdefault(row[0], []).append(FileEntry(*row))
        return found

    def _file(self, node: str) -> str:
        return f"{self._tree}-{node}.json"

    def _write(self, node: str, state: _NodeState) -> None:
        self._folder.write_json(self._file(node), state.document())

    def _state(self, node: str) -> _NodeState:
        return self._read(self._file(node))

    def _read(self, name: str) -> _NodeState:
        found = self._json(name)
        return _NodeState(found["lists"], found["kept"]) if isinstance(found, dict) else _NodeState([], [])

    def _list(self, key: str) -> list[FileEntry]:
        return [FileEntry(*row) for row in self._json(key) or []]

    def _json(self, name: str) -> Any:
        try:
            with self._folder.reading(name) as file:
                return json.load(file)
        except (OSError, ValueError):
            return None  # nothing was pushed from here, or the disk has lost it


def forget_cluster(home: Path, token: str) -> None:
    """Remove the record of a cluster that has ended."""
    SafeFolder(home).remove_tree(_name(token))


def _name(token: str) -> str:
    return f"{RECORD_FOLDER}/{hashlib.sha256(token.encode()).hexdigest()[:32]}"
