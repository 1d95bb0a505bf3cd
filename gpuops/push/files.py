"""Which files of a folder are the project: what git would track plus what it does not ignore.

In a repository git is asked; elsewhere the same rules are read by a library. `.gpuopsignore` (same
syntax) takes away more. Never taken: `.git`, the `runs/` in which gpuops keeps results, `__pycache__`,
and virtual environments, which work only where they were made.
"""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuops.errors import UsageError
from gpuops.push.ignore import IgnoreRules
from gpuops.system import HERE, System

RESULTS = "runs"
IGNORE_FILE = ".gpuopsignore"
NEVER = {".git", "__pycache__"}


@dataclass(frozen=True)
class FileEntry:
    """One file to send. `path` is relative to the folder, with `/`; a link has only its target."""

    path: str
    size: int
    mtime_ns: int
    mode: int
    link: str | None = None

    @property
    def wire(self) -> list[str | int | None]:
        return [self.path, self.size, self.mtime_ns, self.mode, self.link]


@dataclass(frozen=True)
class Listing:
    """The paths of a project. `tracked` are those that git tracks; `in_git` whether it was asked."""

    paths: list[str]
    tracked: frozenset[str]
    in_git: bool


def shown(path: str) -> str:
    """A path for people: one line, whatever the name holds."""
    return path if path.isprintable() else repr(path)


def entry(folder: Path, path: str, system: System = HERE) -> FileEntry | None:
    """The file as it is now; None when it is gone, or neither a file nor a link."""
    where = f"{folder}/{path}"  # a Path for each of many thousand files costs more than the look
    try:
        seen = os.lstat(where)
        if stat.S_ISLNK(seen.st_mode):
            return FileEntry(path, 0, 0, 0, system.link(os.readlink(where)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(seen.st_mode):
        return None
    return FileEntry(path, seen.st_size, seen.st_mtime_ns, system.mode(stat.S_IMODE(seen.st_mode)))


def project_files(folder: Path) -> Listing:
    """The project's paths, sorted. Raises UsageError when the folder or its repository cannot be read."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", "name the project's folder")
    listed = _in_git(folder)
    tracked = frozenset(listed[0]) if listed else frozenset()
    paths = [*listed[0], *listed[1]] if listed else list(_walk(folder, "", IgnoreRules(folder, ".gitignore")))
    mine = IgnoreRules(folder, IGNORE_FILE)
    environments = {path.rpartition("/")[0] for path in paths if path.endswith("/pyvenv.cfg")}
    taken = (
        path
        for path in set(paths)
        if _wanted(path) and not mine.ignores(path) and (path in tracked or not _below(path, environments))
    )
    return Listing(sorted(taken), tracked, listed is not None)


def _wanted(path: str) -> bool:
    parts = path.split("/")
    return parts[0] != RESULTS and NEVER.isdisjoint(parts)


def _below(path: str, folders: set[str]) -> bool:
    return any(path.startswith(folder + "/") for folder in folders)


def _walk(folder: Path, base: str, rules: IgnoreRules) -> Iterator[str]:
    """Paths below `base` that no .gitignore ignores; links are not followed."""
    try:
        found = sorted(os.scandir(folder / base), key=lambda item: item.name)
    except PermissionError:
        raise UsageError(f"{base or folder} cannot be read", f"list it in {IGNORE_FILE}") from None
    if base and any(item.name == "pyvenv.cfg" for item in found):
        return
    for item in found:
        path = f"{base}/{item.name}" if base else item.name
        if item.is_dir(follow_symlinks=False) and not _is_junction(item):
            if _wanted(path) and not rules.ignores_folder(path):
                yield from _walk(folder, path, rules)
        elif not rules.ignores(path):
            yield path


def files_of(folder: Path) -> Iterator[FileEntry]:
    """Every file below a folder, whatever ignores it, sorted; for a link what it leads to counts."""

    def refuse(error: OSError) -> None:
        raise error

    for place, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        folders.sort()
        inside = Path(place).relative_to(folder)
        if os.path.realpath(place) in {os.path.realpath(folder / above) for above in inside.parents}:
            folders.clear()  # a link that leads in a circle; one to a neighbour is another name for the same files
            continue
        base = inside.as_posix()
        for name in sorted(names):
            seen = os.stat(os.path.join(place, name))
            if stat.S_ISREG(seen.st_mode):
                yield _content(name if base == "." else f"{base}/{name}", seen)


def file_entry(path: Path) -> FileEntry:
    """One file under its own name; of a link, what it leads to."""
    return _content(path.name, os.stat(path))


def _content(path: str, seen: os.stat_result, system: System = HERE) -> FileEntry:
    return FileEntry(path, seen.st_size, seen.st_mtime_ns, system.mode(stat.S_IMODE(seen.st_mode)))


def _is_junction(item: os.DirEntry[str]) -> bool:
    """Windows' other kind of link, which may lead back above (Python knows them from 3.12 on)."""
    return bool(getattr(item, "is_junction", bool)())


def _in_git(folder: Path) -> tuple[list[str], list[str]] | None:
    """Tracked and untracked paths; None where there is no git, no repository, or one that ignores this folder."""
    if git(folder, "rev-parse", "--is-inside-work-tree") != "true\n":
        return None
    tracked, untracked = _repository(folder)
    if not tracked and git(folder, "check-ignore", "-q", ".") is not None:
        return None
    return tracked, untracked


def _repository(folder: Path) -> tuple[list[str], list[str]]:
    """What git tracks and what it would track, also inside the repositories below: submodules and clones."""
    tracked: list[str] = []
    untracked: list[str] = []
    for listed, own in ((("--cached",), tracked), (("--others", "--exclude-standard"), untracked)):
        for path in _ls(folder, *listed):
            if not _is_folder(folder / path):
                own.append(path)
            elif (folder / path / ".git").exists():
                inner_tracked, inner_untracked = _repository(folder / path)
                tracked += (f"{path}/{inner}" for inner in inner_tracked)
                untracked += (f"{path}/{inner}" for inner in inner_untracked)
    return tracked, untracked


def _ls(folder: Path, *which: str) -> list[str]:
    paths = (git(folder, "ls-files", "-z", *which) or "").split("\0")
    return list(dict.fromkeys(path.rstrip("/") for path in paths if path))


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def git(folder: Path, *command: str) -> str | None:
    """What git says, or None when it fails. Raises UsageError for a repository it cannot read."""
    try:
        done = subprocess.run(["git", *command], cwd=folder, env=_git_environment(), capture_output=True)
    except (FileNotFoundError, PermissionError):  # no git, or a folder that nobody may enter
        return None
    if done.returncode == 128 and command[0] == "rev-parse" and _has_repository(folder):
        words = os.fsdecode(done.stderr).strip().splitlines() or ["no reason given"]
        say = f"git cannot read this repository: {words[0].removeprefix('fatal: ')}"
        raise UsageError(say, "make `git status` work here first")
    return os.fsdecode(done.stdout) if done.returncode == 0 else None


def _has_repository(folder: Path) -> bool:
    here = folder.resolve()
    return any((above / ".git").exists() for above in (here, *here.parents))


def _git_environment() -> dict[str, str]:
    """Ours, without what points git at another repository (a hook that runs gpuops has it set)."""
    elsewhere = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR"}
    kept = {name: value for name, value in os.environ.items() if name not in elsewhere}
    return {**kept, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"}


def commit_of(folder: Path) -> tuple[str | None, bool]:
    """The commit that is checked out and whether this folder differs from it; (None, False) without git."""
    commit = (git(folder, "log", "-1", "--format=%H") or "").strip() or None
    return commit, commit is not None and bool(git(folder, "status", "--porcelain", "--", "."))
