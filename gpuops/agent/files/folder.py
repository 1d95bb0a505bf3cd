"""The folder of a pushed tree: reading, writing and removing in it, and never outside it.

A path is text in messages: relative, with `/`, and with surrogate escapes for bytes that are not UTF-8. On disk it is
bytes, whatever the locale of this process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from typing import Container, Iterable, Iterator

from gpuops.agent.files.push_decision import ABSENT, BLOCKED, FILE, FOLDER, LINK, NOTHING, OTHER, Entry, Found
from gpuops.agent.node import Refusal

MOUNT_ESCAPE = re.compile(r"\\([0-7]{3})")
"""The kernel's notation of a blank in the name of a mount point."""
NO_NAMES = frozenset(("", ".", ".."))
OPEN_FOLDER = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_PATH", os.O_RDONLY)
"""Windows has none of these, and loads this file as well."""
HASH_BLOCK_BYTES = 1 << 20
FULL_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT)


def path_bytes(text: str) -> bytes:
    """A path as bytes."""
    return text.encode("utf-8", "surrogateescape")


def path_text(path: bytes) -> str:
    """A path as text."""
    return path.decode("utf-8", "surrogateescape")


def is_inside(path: str) -> bool:
    """Whether a relative path with `/` stays inside its folder."""
    return "\0" not in path and NO_NAMES.isdisjoint(path.split("/"))


def checked_path(path: object) -> str:
    """The path, if it stays inside its folder. Raises Refusal(`bad-path`)."""
    if not isinstance(path, str) or not is_inside(path):
        raise Refusal("bad-path", f"{path!r} is not a path inside the tree", "push files of the project only")
    return path


def parent_paths(path: str) -> Iterable[str]:
    """`a/b/c` -> `a`, `a/b`."""
    end = path.find("/")
    while end >= 0:
        yield path[:end]
        end = path.find("/", end + 1)


def stat_entry(path: bytes, folder: int | None = None) -> Found:
    """What is at a path, absolute or in an open folder, without following links."""
    try:
        status = os.lstat(path, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return NOTHING
        raise
    if stat.S_ISREG(status.st_mode):
        return Found(FILE, Entry(status.st_size, status.st_mtime_ns, status.st_mode & 0o777, None))
    if stat.S_ISLNK(status.st_mode):
        return Found(LINK, Entry(0, 0, 0, path_text(os.readlink(path, dir_fd=folder))))
    return Found(FOLDER if stat.S_ISDIR(status.st_mode) else OTHER)


def sha256(path: bytes) -> str:
    import hashlib  # loads OpenSSL: most programs of the agent do without

    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(HASH_BLOCK_BYTES), b""):
            digest.update(block)
    return digest.hexdigest()


def mounts_below(folder: str) -> list[str]:
    """Mount points inside a folder: disks, shares and buckets, which must not be emptied with it."""
    inside = os.path.realpath(folder) + "/"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            points = [MOUNT_ESCAPE.sub(lambda match: chr(int(match[1], 8)), line.split()[4]) for line in file]
    except (OSError, IndexError):
        points = [path for path, _, _ in os.walk(folder) if os.path.ismount(path)]
    return sorted(point for point in points if (point + "/").startswith(inside) and point + "/" != inside)


class TreeFolder:
    """One tree on disk. It caches which parents are folders: make a new instance for each request."""

    def __init__(self, folder: str) -> None:
        """Raises Refusal(`outside`) where the folder is a link."""
        if os.path.islink(folder):
            raise Refusal(
                "outside",
                f"'{os.path.basename(folder)}' is a link on this node, not a folder",
                "remove the link on the node, then push again",
            )
        self.folder = os.fsencode(folder)
        self._folders: set[str] = set()

    def at(self, path: str) -> bytes:
        return self.folder + b"/" + path_bytes(path)

    def is_empty(self) -> bool:
        """Whether there is nothing in it, or no such folder yet."""
        try:
            with os.scandir(self.folder) as items:
                return next(items, None) is None
        except FileNotFoundError:
            return True
        except NotADirectoryError:
            return False

    def look(self, path: str, without: dict[str, Found] | None = None) -> Found:
        """What is at `path`, without following links on the way. `without`: what one survey has found in place of
        parents that are no folders."""
        above = path.rpartition("/")[0]
        if above not in self._folders:  # if it is, the folders above it are known as well
            missing = (without or {}).get(above) or self._look_above(path)
            if missing:
                if without is not None:
                    without[above] = missing
                return missing
        return stat_entry(self.at(path))

    def look_at_all(self, paths: Iterable[str]) -> Iterator[Found]:
        """What is at each path, as `look` finds it, at half the cost where those of one folder follow each other."""
        opened, fd = None, -1
        try:
            for path in paths:
                above, _, name = path.rpartition("/")
                if above != opened:
                    if missing := self._look_above(path):
                        yield missing
                        continue
                    opened, before, fd = above, fd, os.open(self.at(above), OPEN_FOLDER)
                    if before >= 0:
                        os.close(before)
                yield stat_entry(path_bytes(name), fd)
        finally:
            if fd >= 0:
                os.close(fd)

    def _look_above(self, path: str) -> Found | None:
        """What `path` finds where a parent is no folder; None where all are."""
        for parent in ("", *parent_paths(path)):
            if parent not in self._folders:
                kind = stat_entry(self.at(parent)).kind
                if kind != FOLDER:
                    return NOTHING if kind == ABSENT else Found(BLOCKED, blocker=parent)
                self._folders.add(parent)
        return None

    def files_under(self, path: str) -> Iterable[str]:
        """Every file, link and special file below a folder."""
        for folder, names, files in os.walk(self.at(path)):
            links = [name for name in names if os.path.islink(os.path.join(folder, name))]
            for name in files + links:
                yield path_text(os.path.relpath(os.path.join(folder, name), self.folder))

    def place(self, path: str, staged: bytes) -> None:
        """Move a staged file or link to `path`, replacing a folder without files.

        Raises Refusal(`outside`, `in-the-way`).
        """
        if path.rpartition("/")[0] in self._folders:  # looked at already, and most often nothing is in the way
            with contextlib.suppress(OSError):
                os.replace(staged, self.at(path))
                return
        present = self._look_for_place(path)
        if present.kind == BLOCKED:
            raise blocked(path, present)
        if present.kind == FOLDER:
            self._remove_empty(path)
        os.replace(staged, self.at(path))

    def place_folders(self, staged: bytes, wanted: Container[str]) -> set[str]:
        """Move every folder below `staged` that holds nothing but `wanted` paths to where there is none yet, with all
        that it holds. Returns the folders."""
        whole: dict[str, list[str]] = {}
        """The folders to move at and below each folder."""
        for place, folders, names in os.walk(staged, topdown=False):
            path = path_text(place[len(staged) + 1 :])
            base = path + "/" if path else ""
            below = [base + path_text(name) for name in folders]
            is_whole = all(whole.get(one) == [one] for one in below) and all(
                base + path_text(name) in wanted for name in names
            )
            is_moved = is_whole and path and (below or names) and self.look(path).kind == ABSENT
            whole[path] = [path] if is_moved else [one for found in below for one in whole.get(found, ())]
        return {path for path in whole.get("", ()) if self._move_folder(staged + b"/" + path_bytes(path), path)}

    def _move_folder(self, staged: bytes, path: str) -> bool:
        if self._look_for_place(path).kind != ABSENT:
            return False
        try:
            os.rename(staged, self.at(path))
        except OSError:
            return False  # something has come there since: each file goes by itself
        return True

    def _look_for_place(self, path: str) -> Found:
        """What is at `path`, once there are the folders above it."""
        os.makedirs(self.folder, exist_ok=True)
        for parent in parent_paths(path):
            if self.look(parent).kind == ABSENT:
                os.mkdir(self.at(parent))
        return self.look(path)

    def _remove_empty(self, path: str) -> None:
        for folder, _, _ in os.walk(self.at(path), topdown=False):
            try:
                os.rmdir(folder)
            except OSError as error:
                raise in_the_way(path) from error

    def remove(self, path: str) -> None:
        """Remove a file or link; one that is absent counts as removed."""
        if self.look(path).kind in (FILE, LINK):
            os.unlink(self.at(path))

    def prune(self, path: str) -> None:
        """Remove empty folders above `path`."""
        for parent in reversed(list(parent_paths(path))):
            if self.look(parent).kind != FOLDER:
                continue
            try:
                os.rmdir(self.at(parent))
            except OSError:
                return  # not empty
            self._folders.discard(parent)


def blocked(path: str, found: Found) -> Refusal:
    """Refuses writing below a link or a file that is not ours."""
    return Refusal(
        "outside",
        f"'{path}' cannot be written: '{found.blocker}' on this node is not a folder",
        f"move '{found.blocker}' away on the node, then push again",
    )


def in_the_way(path: str) -> Refusal:
    """Refuses replacing a folder that has files."""
    return Refusal(
        "in-the-way",
        f"'{path}' is a folder with files of its own on this node",
        "move it away on the node, then push again",
    )


def apply_stat(path: bytes, wanted: Entry, present: Entry) -> Entry:
    """Give a file, whose stat is `present`, the client's mode and time. Returns its stat afterwards."""
    if (present.mode, present.mtime_ns) == (wanted.mode, wanted.mtime_ns):
        return present
    os.chmod(path, wanted.mode)
    os.utime(path, ns=(wanted.mtime_ns, wanted.mtime_ns))
    return stat_entry(path).entry


def free_bytes(path: str) -> int | None:
    """Bytes that this user may still write to the path's file system; None where the system does not say."""
    try:
        disk = os.statvfs(path)
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize


def disk_full() -> Refusal:
    return Refusal("disk", "the disk is full", "take a node with a larger disk, or send less")


def check_room(folder: str, size: int, what: str, hint: str) -> None:
    """Raises Refusal(`disk`) where the disk has less room than `size` bytes. `what`: what needs it."""
    free = free_bytes(folder)
    if free is not None and size > free:
        raise Refusal("disk", f"{what} needs {size / 1e6:.0f} MB and the disk has {free / 1e6:.0f} MB left", hint)
