"""What a run made: whatever its tree has that the inventory of all its files, taken at the run's start, has not.

A file's stamp is `[size, mtime_ns, ctime_ns]`: a program may give a file any mtime (an archive does), but no ctime.
"""

from __future__ import annotations

import os
from typing import Any, Mapping, NamedTuple, Sequence

from gpuops.agent.node import read_json

FILE = "inventory.json"
SCHEMA = 2


class Inventory(NamedTuple):
    """The files of a run's tree when it started: path -> stamp."""

    files: Mapping[str, Sequence[int]]
    is_whole: bool
    """False for a run of an older agent: it noted only files that match its patterns, and no ctime."""

    def has(self, path: str, stamp: Sequence[int]) -> bool:
        """Whether the file was there at the start, as it is now."""
        before = self.files.get(path)
        return before is not None and list(before) == list(stamp[: len(before)])


def inventory_document(files: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """What `inventory.json` holds."""
    return {"schema": SCHEMA, "files": files}


def read_inventory(folder: str) -> Inventory:
    """The inventory in a run's folder; an empty one where it cannot be read."""
    document = read_json(os.path.join(folder, FILE)) or {}
    if document.get("schema") == SCHEMA:
        return Inventory(document["files"], is_whole=True)
    return Inventory(document, is_whole=False)
