"""What a folder sends: its files by the rules of git and of .gpuopsignore, without those that hold keys.

`scan` is of a project, `scan_data` of what `--data` names.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from gpuops.core.errors import UsageError
from gpuops.core.format import amount, plural
from gpuops.core.git import commit_of, lies_here
from gpuops.sync.project_files import (
    IGNORE_FILE,
    FileEntry,
    file_entry,
    is_in_project,
    list_files,
    printable_path,
    project_files,
    read_entry,
    refuse_escaping_links,
)
from gpuops.sync.secret_scan import MAX_WHOLE_BYTES, find_keys

EDITED_COPY = re.compile(r"(.+)\.node\d+(?:-\d+)?", re.DOTALL)
"""The name under which `pull_edits` puts a node's version beside a file, such as `train.py.node0`."""
MIN_NAMED_TREE_BYTES = 10_000_000
"""From this size on the biggest files are listed before a push."""


@dataclass(frozen=True)
class HeldBack:
    """A file that is not sent, and why: `a secret of the kind runpod-api-key`."""

    path: str
    why: str


@dataclass(frozen=True)
class Tree:
    """A scanned folder: what a push sends and what it holds back."""

    folder: Path
    files: Sequence[FileEntry]
    held: Sequence[HeldBack] = ()
    commit: str | None = None
    """What git has checked out; None outside a repository or before the first commit."""
    dirty: bool = False
    """Whether the folder differs from that commit."""

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def scan(folder: Path, cache: Path, allow: Sequence[str] = ()) -> Tree:
    """What a push of `folder` sends. `allow`: paths or globs that are sent even where they hold keys.

    Raises UsageError for an unreadable folder or file, for a key in a file that git tracks, and for a
    folder that is no project: the root, or a home folder without a word on what to leave out.
    """
    _refuse_non_project(folder, cache.parent)
    home_prefix = _home_prefix(folder, cache.parent)
    try:
        listing = project_files(folder)
        paths = [path for path in listing.paths if not (home_prefix and path.startswith(home_prefix))]
        files = [file for path in paths if (file := read_entry(folder, path))]
        keys = find_keys(folder, [file for file in files if not is_allowed(file.path, allow)], cache)
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}", f"list it in {IGNORE_FILE}") from error
    _refuse_tracked_keys([path for path in keys if path in listing.tracked], keys)
    copies = {
        path: why for path, why in _find_edited_copies(paths, listing.tracked).items() if not is_allowed(path, allow)
    }
    reasons = {**copies, **keys}
    held = [HeldBack(path, why) for path, why in reasons.items()]
    commit, dirty = commit_of(folder) if listing.in_git else (None, False)
    return Tree(folder, [file for file in files if file.path not in reasons], held, commit, dirty)


def scan_data(data: Path, cache: Path, allow: Sequence[str] = (), project: Path | None = None) -> Tree:
    """What `--data` sends: a file, or a whole folder without files that hold keys, under its own name.

    A link may lead inside the data, or to an absolute path among `allow`. Raises UsageError for any other link, also
    for data whose path lies in `project` and leads out of it.
    """
    places, real = allowed_places(allow), data.resolve()
    if project and data.is_relative_to(project):
        path = data.relative_to(project).as_posix()
        is_inside = lies_here(project, path) or is_in_project(project, path)
        if not is_inside and not any(map(real.is_relative_to, places)):
            refuse_escaping_links([(path, real)])
    try:
        is_folder = data.is_dir()
        files = list_files(data, places) if is_folder else [file_entry(data)]
        searched = [file for file in files if not is_allowed(file.path, allow)]
        keys = find_keys(data if is_folder else data.parent, searched, cache)
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}", "move it out of the data") from error
    base = f"{data.name}/" if is_folder else ""
    sent = [dataclasses.replace(file, path=base + file.path) for file in files if file.path not in keys]
    return Tree(data.parent, sent, [HeldBack(base + path, why) for path, why in keys.items()])


def allowed_places(allow: Sequence[str]) -> list[Path]:
    """The absolute paths in `--send-anyway`, where links of the data may lead."""
    return [Path(os.path.realpath(path)) for path in map(os.path.expanduser, allow) if os.path.isabs(path)]


def _home_prefix(folder: Path, home: Path) -> str:
    """The prefix of project paths that lie in gpuops' own folder; empty where that lies outside the project."""
    try:
        return home.resolve().relative_to(folder.resolve()).as_posix() + "/"
    except ValueError:
        return ""


def _find_edited_copies(paths: Sequence[str], tracked: Collection[str]) -> dict[str, str]:
    """Path to reason, for nodes' versions that `pull --edits` has put beside files of the project."""
    known = set(paths)
    originals = {path: match[1] for path in paths if (match := EDITED_COPY.fullmatch(path)) and path not in tracked}
    return {
        path: f"a node's version of {printable_path(original)}"
        for path, original in originals.items()
        if original in known
    }


def _refuse_non_project(folder: Path, home: Path) -> None:
    """Raises UsageError for a root, a home folder without ignore rules, and gpuops' own folder."""
    if folder.resolve() == home.resolve() and (home / "owner").exists():
        raise UsageError(f"{folder} is gpuops' own folder, not a project", "start gpuops in your project's folder")
    is_everything = folder == Path(folder.anchor) or folder == Path.home()
    if is_everything and not (folder / ".git").exists() and not (folder / IGNORE_FILE).exists():
        raise UsageError(
            f"{folder} is not a project: all of it would be sent",
            f"start gpuops in your project's folder, or say in {folder / IGNORE_FILE} what to leave out",
        )


def is_allowed(path: str, allow: Sequence[str]) -> bool:
    """Whether a path is among the paths and globs that `--send-anyway` names."""
    return any(fnmatchcase(path, item) or path.startswith(item.rstrip("/") + "/") for item in allow)


def _refuse_tracked_keys(paths: Sequence[str], keys: dict[str, str]) -> None:
    if not paths:
        return
    named = "; ".join(f"{printable_path(path)} ({keys[path]})" for path in paths[:3])
    more = f"; {len(paths) - 3} more" if len(paths) > 3 else ""
    raise UsageError(
        f"git tracks files that should not leave this computer: {named}{more}",
        f"remove them from git or list them in {IGNORE_FILE}; `--send-anyway {paths[0]}` sends one all the same",
    )


def summary(tree: Tree) -> list[str]:
    """The lines to print before a push."""
    count = len(tree.files)
    lines = [f"{plural(count, 'file')}, {amount(tree.size)}"]
    if tree.size > MIN_NAMED_TREE_BYTES:
        biggest = sorted(tree.files, key=lambda file: file.size, reverse=True)[:5]
        lines.append("biggest: " + ", ".join(f"{printable_path(file.path)} ({amount(file.size)})" for file in biggest))
    if large := sum(file.size > MAX_WHOLE_BYTES for file in tree.files):
        files = f"{plural(large, 'file')} above {amount(MAX_WHOLE_BYTES)}"
        lines.append(f"{files} searched for keys at the beginning and the end only")
    lines += [f"held back: {printable_path(held.path)} ({held.why})" for held in tree.held[:10]]
    if len(tree.held) > 10:
        lines.append(f"held back: {len(tree.held) - 10} more")
    return lines
