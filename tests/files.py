"""Files in folders in which others work meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuops.agent.lease_clock import read_clocks
from gpuops.agent.node import read_json, write_json


def below(*folders: Path) -> Iterator[Path]:
    """All that is no folder; what comes or goes while it is looked for may be left out."""
    for folder in folders:
        for place, _, names in os.walk(folder):
            yield from (Path(place, name) for name in names)


def written_in(*folders: Path) -> dict[Path, bytes]:
    """What every file holds. What goes while it is looked at is left out."""
    found = {}
    for path in below(*folders):
        with suppress(OSError):
            if path.is_file() and not path.is_symlink():
                found[path] = path.read_bytes()
    return found


def change(path: Path, **more: Any) -> None:
    """Change a document that others may read at any moment."""
    write_json(str(path), {**read_json(str(path)), **more})


def expire_lease(path: Path) -> None:
    """Let a node's `lease.json` say that its hard end is now, by both of its clocks."""
    now = read_clocks()
    change(path, hard_wall=now.wall, hard_mono=now.mono)
