"""Ignore files with git's syntax, where git itself is not asked: nested, the last match decides."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpuops.core.errors import UsageError
from gpuops.core.smallfile import read_small

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec


STAR, ANY_FOLDERS = r"\[\^/\]\*", r"\(\?:/\.\+\)\?"
"""How the library writes `*` and `/**` as regular expressions."""
CLASS = r"\[\^?\]?(?:\\.|[^\]\\])+\]"
LETTER = rf"\\.|(?:\(\?!/\))?{CLASS}(?!\*)|" + r"[^\\\[\](){}*+?.|^$/]"
"""What stands there for one character of a name."""
OTHER_CLASS = re.compile(rf"\\.|(?!\[\^/\])({CLASS})")
"""Such as `[^a]`, which the library lets stand for a `/`, and git does not."""
BETWEEN_STARS = re.compile(rf"{STAR}((?:{LETTER})*)(?={STAR})")
BETWEEN = rf"((?:(?!{ANY_FOLDERS}).)+)(?={ANY_FOLDERS})"
FIRST_FOLDERS = re.compile(rf"^(\^)\(\?:\.\+/\)\?{BETWEEN}")
BETWEEN_FOLDERS = re.compile(rf"{ANY_FOLDERS}{BETWEEN}")


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
        unknown = []
        while path not in self._folders:
            unknown.append(path)
            path = path.rpartition("/")[0]
        known = self._folders[path]
        for below in reversed(unknown):
            known = self._folders[below] = known or self._decide(below + "/")
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
            lines = _lines(path) if path.is_file() else []
            self._specs[base] = _parsed(lines) if lines else None
        return self._specs[base]


def _lines(path: Path) -> list[str]:
    """Raises UsageError: without its rules, files would be sent that somebody wanted to keep here."""
    try:
        return read_small(path).decode("utf-8", "surrogateescape").splitlines()
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}", "make it a text file with a pattern a line"
        ) from error


def _parsed(lines: Sequence[str]) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec  # most pushes do without: git has ignored, and there is no file of ours

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of `re`, about classes like [[:alpha:]]
        spec = GitIgnoreSpec.from_lines(line for line in lines if _is_pattern(line))
        for pattern in spec.patterns:
            if isinstance(found := getattr(pattern, "regex", None), re.Pattern):
                pattern.regex = re.compile(in_linear_time(found.pattern))
    return spec


def _is_pattern(line: str) -> bool:
    """Git takes no notice of a line that is none, such as `[z-a]`."""
    from pathspec import GitIgnoreSpec

    try:
        GitIgnoreSpec.from_lines([line])
    except (ValueError, re.error):
        return False
    return True


def in_linear_time(regex: str) -> str:
    """The same pattern for a `re` that tries no two ways where one will do.

    The first place where what stands between two `*` fits is as good as any later one, since the second `*` takes the
    rest; of `**` likewise. Else a dozen of them in one line keep `re` busy for years.
    """
    regex = OTHER_CLASS.sub(lambda found: found[0] if found[1] is None else f"(?!/){found[1]}", regex)
    regex = BETWEEN_STARS.sub(r"(?>[^/]*?\1)", regex)
    regex = FIRST_FOLDERS.sub(r"\1(?>(?:.+?/)??\2(?=/))", regex)
    return BETWEEN_FOLDERS.sub(r"(?>(?:/.+?)??\1(?=/))", regex)
