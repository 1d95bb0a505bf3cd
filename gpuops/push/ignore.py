"""Ignore files with git's syntax, where git itself is not asked: nested, the last match decides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec


class IgnoreRules:
    """The ignore files called `name` in `folder` and below. Paths are relative, with `/`."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self._specs: dict[str, GitIgnoreSpec | None] = {}
        self._folders: dict[str, bool] = {"": False}

    def ignores(self, path: str) -> bool:
        """Whether this file is ignored, by itself or because a folder above it is."""
        above = path.rpartition("/")[0]
        return self.ignores_folder(above) or self._decide(path)

    def ignores_folder(self, path: str) -> bool:
        """As `ignores`, for a folder: nothing below an ignored folder can be taken back in."""
        known = self._folders.get(path)
        if known is None:
            known = self.ignores_folder(path.rpartition("/")[0]) or self._decide(path + "/")
            self._folders[path] = known
        return known

    def _decide(self, path: str) -> bool:
        """The deepest ignore file that has an opinion."""
        base = path.rstrip("/").rpartition("/")[0]
        while True:
            spec = self._spec(base)
            if spec is not None:
                verdict = spec.check_file(path[len(base) + 1 :] if base else path).include
                if verdict is not None:
                    return verdict
            if not base:
                return False
            base = base.rpartition("/")[0]

    def _spec(self, base: str) -> GitIgnoreSpec | None:
        if base not in self._specs:
            path = self.folder / base / self.name
            try:
                # A pipe or a device may stand there, or a link to one, and reading it never ends.
                lines = path.read_text("utf-8", "surrogateescape").splitlines() if path.is_file() else []
            except OSError:
                lines = []
            self._specs[base] = _parsed(lines) if lines else None
        return self._specs[base]


def _parsed(lines: Sequence[str]) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec  # most pushes do without: git has ignored, and there is no file of ours

    return GitIgnoreSpec.from_lines(lines)
