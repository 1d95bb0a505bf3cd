"""Which code a long-lived process began with: an upgrade in place replaces it under the process, which goes on with
what it has in memory, and starts its children with the new one."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGES = ("gpuops", "provisioners")


@dataclass(frozen=True)
class InstalledCode:
    """The files of gpuops in one place, as they were at one time."""

    folder: str
    """That holds the packages."""
    digest: str
    """Of the paths, sizes and dates of all files: they are not read."""

    def is_outdated(self, mine: InstalledCode) -> bool:
        """Whether it was replaced or removed since; `mine`: this process's. What lies elsewhere (another environment
        on the same home) is only looked for."""
        if self.folder == mine.folder:
            return self.digest != mine.digest
        return not os.path.isdir(os.path.join(self.folder, PACKAGES[0]))


@cache
def installed_code() -> InstalledCode:
    """This process's, as it was at the first call."""
    folder = Path(__file__).parents[2]
    return InstalledCode(str(folder), _digest(folder))


def _digest(folder: Path) -> str:
    found = hashlib.sha256()
    for package in PACKAGES:
        for place, folders, names in os.walk(folder / package):
            folders.sort()
            for name in sorted(names):
                path = os.path.join(place, name)
                if name.endswith(".py"):
                    with suppress(OSError):  # an upgrade goes on
                        facts = os.stat(path)
                        found.update(f"{os.path.relpath(path, folder)} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return found.hexdigest()[:16]
