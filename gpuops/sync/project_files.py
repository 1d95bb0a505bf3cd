"""Which files a project or `--data` sends: paths, sizes and modes, sorted.

In a git repository git itself lists the files (`core.git`); elsewhere `IgnoreRules` reads .gitignore files by git's
rules. `.gpuopsignore` excludes more in both cases; results, `.git`, caches and virtual environments are never sent. No
link is followed out of the project.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from gpuops.core.errors import UsageError
from gpuops.core.files import read_small
from gpuops.core.git import git, lies_here
from gpuops.core.platform import HERE, System

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec


STAR, ANY_FOLDERS = r"\[\^/\]\*", r"\(\?:/\.\+\)\?"
"""How pathspec translates `*` and `/**` to regular expressions."""
CLASS = r"\[\^?\]?(?:\\.|[^\]\\])+\]"
LETTER = rf"\\.|(?:\(\?!/\))?{CLASS}(?!\*)|" + r"[^\\\[\](){}*+?.|^$/]"
"""How pathspec translates one character of a name."""
OTHER_CLASS = re.compile(rf"\\.|(?!\[\^/\])({CLASS})")
"""A class such as `[^a]`, which matches `/` in pathspec and not in git."""
BETWEEN_STARS = re.compile(rf"{STAR}((?:{LETTER})*)(?={STAR})")
BETWEEN = rf"((?:(?!{ANY_FOLDERS}).)+)(?={ANY_FOLDERS})"
FIRST_FOLDERS = re.compile(rf"^(\^)\(\?:\.\+/\)\?{BETWEEN}")
BETWEEN_FOLDERS = re.compile(rf"{ANY_FOLDERS}{BETWEEN}")
RESULTS_FOLDER = "runs"
IGNORE_FILE = ".gpuopsignore"
NEVER_SENT = {".git", "__pycache__"}
MAX_FOLDER_DEPTH = 100
"""A project with deeper folders is refused: only a crafted one has them."""
EDIT_DRAFT = re.compile(r"\.gpuops-[0-9a-f]{16}\.part")
"""A file that a killed `gpuops pull --edits` leaves (`SafeFolder.draft`)."""


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
        return self.ignores_folder(above) or self._matches(path)

    def ignores_folder(self, path: str) -> bool:
        """As `ignores`, for a folder: nothing below an ignored folder can be included again."""
        unknown = []
        while path not in self._folders:
            unknown.append(path)
            path = path.rpartition("/")[0]
        is_ignored = self._folders[path]
        for folder in reversed(unknown):
            is_ignored = self._folders[folder] = is_ignored or self._matches(folder + "/")
        return is_ignored

    def _matches(self, path: str) -> bool:
        """The verdict of the deepest ignore file with a matching line; False without one."""
        base = path.rstrip("/").rpartition("/")[0]
        while True:
            spec = self._load_spec(base)
            if spec is not None:
                verdict = spec.check_file(path[len(base) + 1 :] if base else path).include
                if verdict is not None:
                    return verdict
            if not base:
                return False
            base = base.rpartition("/")[0]

    def _load_spec(self, base: str) -> GitIgnoreSpec | None:
        if base not in self._specs:
            path = self.folder / base / self.name
            lines = _read_lines(path) if path.is_file() else []
            self._specs[base] = _parse_rules(lines) if lines else None
        return self._specs[base]


def _read_lines(path: Path) -> list[str]:
    """The lines of an ignore file. Raises UsageError: without its rules, files would be sent that should stay here."""
    try:
        return read_small(path).decode("utf-8", "surrogateescape").splitlines()
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}", "make it a text file with a pattern a line"
        ) from error


def _parse_rules(lines: Sequence[str]) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec  # most pushes need no import: git lists, and there is no .gpuopsignore

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of `re`, about classes like [[:alpha:]]
        spec = GitIgnoreSpec.from_lines(line for line in lines if _is_pattern(line))
        for pattern in spec.patterns:
            if isinstance(regex := getattr(pattern, "regex", None), re.Pattern):
                pattern.regex = re.compile(in_linear_time(regex.pattern))
    return spec


def _is_pattern(line: str) -> bool:
    """Whether a line is a valid pattern: git ignores one such as `[z-a]`."""
    from pathspec import GitIgnoreSpec

    try:
        GitIgnoreSpec.from_lines([line])
    except (ValueError, re.error):
        return False
    return True


def in_linear_time(regex: str) -> str:
    """An equivalent regular expression that matches in linear time.

    The first place where the text between two `*` fits is as good as any later one, since the second `*` takes the
    rest; likewise for `**`. Without atomic groups, a dozen `*` in one line keep `re` busy for years.
    """
    regex = OTHER_CLASS.sub(lambda match: match[0] if match[1] is None else f"(?!/){match[1]}", regex)
    regex = BETWEEN_STARS.sub(r"(?>[^/]*?\1)", regex)
    regex = FIRST_FOLDERS.sub(r"\1(?>(?:.+?/)??\2(?=/))", regex)
    return BETWEEN_FOLDERS.sub(r"(?>(?:/.+?)??\1(?=/))", regex)


@dataclass(frozen=True)
class FileEntry:
    """One file to send. A link has only its target; its other numbers are 0."""

    path: str
    """Relative to the folder, with `/`."""
    size: int
    mtime_ns: int
    mode: int
    link: str | None = None

    @property
    def wire(self) -> list[str | int | None]:
        """The row that a node is sent, and that a push record keeps."""
        return [self.path, self.size, self.mtime_ns, self.mode, self.link]


@dataclass(frozen=True)
class Listing:
    """The paths of a project."""

    paths: list[str]
    """Sorted."""
    tracked: frozenset[str]
    """Those that git tracks."""
    in_git: bool
    """Whether git listed them."""


def printable_path(path: str) -> str:
    """A path for people: one line, whatever the name holds."""
    return path if path.isprintable() else repr(path)


def read_entry(folder: Path, path: str, system: System = HERE) -> FileEntry | None:
    """The file's current state; None when it is gone, or neither a file nor a link."""
    full_path = f"{folder}/{path}"  # a Path per file costs more than lstat itself
    try:
        status = os.lstat(full_path)
        if stat.S_ISLNK(status.st_mode):
            return FileEntry(path, 0, 0, 0, system.link(os.readlink(full_path)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _entry_from_stat(path, status, system) if stat.S_ISREG(status.st_mode) else None


def project_files(folder: Path) -> Listing:
    """The project's paths, sorted. Raises UsageError for what is no project, OSError for what cannot be read."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", "name the project's folder")
    own_rules = IgnoreRules(folder, IGNORE_FILE)
    git_paths = _git_paths(folder, own_rules)
    tracked = frozenset(git_paths[0]) if git_paths else frozenset()
    ignored_by_git = IgnoreRules(folder, ".gitignore")
    paths = [*git_paths[0], *git_paths[1]] if git_paths else list(_walk(folder, "", ignored_by_git))
    for path in paths:
        _refuse_deep(path)
    behind_links = _folders_behind_links(folder, paths)
    environments = {path.rpartition("/")[0] for path in paths if path.endswith("/pyvenv.cfg")}
    sent = (
        path
        for path in set(paths)
        if _may_be_sent(path)
        and path.rpartition("/")[0] not in behind_links
        and not own_rules.ignores(path)
        and (path in tracked or not _is_below(path, environments))
    )
    return Listing(sorted(sent), tracked, git_paths is not None)


def _may_be_sent(path: str) -> bool:
    parts = path.split("/")
    return parts[0] != RESULTS_FOLDER and NEVER_SENT.isdisjoint(parts) and not EDIT_DRAFT.fullmatch(parts[-1])


def _folders_behind_links(folder: Path, paths: Iterable[str]) -> set[str]:
    """The folders of these paths that lie behind a link: git's index may name files in them."""
    folders = {path.rpartition("/")[0] for path in paths} - {""}
    return {path for path in folders if os.path.lexists(folder / path) and not lies_here(folder, path)}


def _is_below(path: str, folders: set[str]) -> bool:
    return any(path.startswith(folder + "/") for folder in folders)


def _walk(folder: Path, base: str, rules: IgnoreRules) -> Iterator[str]:
    """Paths below `base` that no .gitignore ignores; links are not followed. A folder that has vanished has none.

    Raises OSError for a folder that cannot be read.
    """
    _refuse_deep(base)
    try:
        items = sorted(os.scandir(folder / base), key=lambda item: item.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    if base and any(item.name == "pyvenv.cfg" for item in items):
        return
    for item in items:
        path = f"{base}/{item.name}" if base else item.name
        if item.is_dir(follow_symlinks=False) and not _is_junction(item):
            if _may_be_sent(path) and not rules.ignores_folder(path):
                yield from _walk(folder, path, rules)
        elif not rules.ignores(path):
            yield path


def list_files(folder: Path, places: Sequence[Path]) -> list[FileEntry]:
    """Every file below a folder, ignored or not, sorted; links are replaced by their targets.

    Raises UsageError for links that lead neither into the folder itself nor into one of `places`.
    """

    def refuse(error: OSError) -> None:
        raise error

    roots = [Path(os.path.realpath(place)) for place in (folder, *places)]
    entries: list[FileEntry] = []
    escaping: list[tuple[str, Path]] = []
    for place, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        folders.sort()
        inside = Path(place).relative_to(folder)
        _refuse_deep(inside.as_posix())
        real = Path(os.path.realpath(place))
        if not any(map(real.is_relative_to, roots)):
            escaping.append((inside.as_posix(), real))
            folders.clear()
            continue
        if str(real) in {os.path.realpath(folder / above) for above in inside.parents}:
            folders.clear()  # a circular link; a link to a neighbour is a second name for the same files
            continue
        for name in sorted(names):
            path, full_path = (inside / name).as_posix(), os.path.join(place, name)
            target = Path(os.path.realpath(full_path)) if os.path.islink(full_path) else real
            if not any(map(target.is_relative_to, roots)):
                escaping.append((path, target))
                continue
            status = os.stat(full_path)
            if stat.S_ISREG(status.st_mode):
                entries.append(_entry_from_stat(path, status))
    if escaping:
        refuse_escaping_links(escaping)
    return entries


def refuse_escaping_links(links: Sequence[tuple[str, Path]]) -> NoReturn:
    """Raises UsageError for links of the data (path, target) that lead out of it without permission."""
    examples = "; ".join(f"{printable_path(path)} leads to {printable_path(str(target))}" for path, target in links[:3])
    more = f"; {len(links) - 3} more" if len(links) > 3 else ""
    target = links[0][1]
    place = target if target.is_dir() or len(links) == 1 else target.parent
    raise UsageError(
        f"links in the data lead out of it: {examples}{more}",
        f"if it shall be sent, too: --send-anyway {shlex.quote(printable_path(str(place)))}",
    )


def file_entry(path: Path) -> FileEntry:
    """One file under its own name; for a link, its target's state."""
    return _entry_from_stat(path.name, os.stat(path))


def _entry_from_stat(path: str, status: os.stat_result, system: System = HERE) -> FileEntry:
    return FileEntry(path, status.st_size, status.st_mtime_ns, system.mode(stat.S_IMODE(status.st_mode)))


def is_in_project(folder: Path, path: str) -> bool:
    """Whether a path's target lies in the project, outside of what is never sent."""
    target = Path(os.path.normpath(folder / os.path.expanduser(path)))
    try:
        relative = target.resolve().relative_to(folder.resolve())
    except (ValueError, OSError, RuntimeError):  # elsewhere, no path at all, or links in a circle
        return False
    return _may_be_sent(relative.as_posix())


def _is_junction(item: os.DirEntry[str]) -> bool:
    """Whether an entry is Windows' other kind of link (Python knows them from 3.12 on)."""
    return bool(getattr(item, "is_junction", bool)())


def _git_paths(folder: Path, own_rules: IgnoreRules) -> tuple[list[str], list[str]] | None:
    """Tracked and untracked paths; None where there is no git, no repository, or one that ignores this folder."""
    if git(folder, "rev-parse", "--is-inside-work-tree") != "true\n":
        return None
    tracked, untracked = _repository_paths(folder, "", own_rules)
    if not tracked and git(folder, "check-ignore", "-q", ".") is not None:
        return None
    return tracked, untracked


def _repository_paths(folder: Path, base: str, own_rules: IgnoreRules) -> tuple[list[str], list[str]]:
    """Tracked and untracked paths at and below `base`, also of submodules and clones there. Folders that are never sent
    are not entered."""
    tracked: list[str] = []
    untracked: list[str] = []
    for options, paths in ((("--cached",), tracked), (("--others", "--exclude-standard"), untracked)):
        for name in _git_ls_files(folder / base, *options):
            path = f"{base}/{name}" if base else name
            _refuse_deep(path)
            if not _is_folder(folder / path):
                paths.append(path)
            elif _may_be_sent(path) and not own_rules.ignores_folder(path) and _is_repository(folder, path):
                inner_tracked, inner_untracked = _repository_paths(folder, path, own_rules)
                tracked += inner_tracked
                untracked += inner_untracked
    return tracked, untracked


def _refuse_deep(path: str) -> None:
    """Raises UsageError for a path that is deeper than `MAX_FOLDER_DEPTH`."""
    if path.count("/") > MAX_FOLDER_DEPTH:
        raise UsageError(
            f"folders lie in each other more than {MAX_FOLDER_DEPTH} deep: {printable_path(path)[:40]}…",
            "move them out of the project",
        )


def _is_repository(folder: Path, path: str) -> bool:
    return (folder / path / ".git").exists() and lies_here(folder, path)


def _git_ls_files(folder: Path, *options: str) -> list[str]:
    paths = (git(folder, "ls-files", "-z", *options) or "").split("\0")
    return list(dict.fromkeys(path.rstrip("/") for path in paths if path))


def _is_folder(path: Path) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)  # unlike Path.is_dir, False for an inaccessible path
