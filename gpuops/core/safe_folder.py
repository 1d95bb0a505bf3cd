"""A folder of this computer for files whose paths a node has named; all such files are read and written here.

Every path is resolved below the folder, component by component at the moment of access, and no link is followed: a link
that a node sent, or that lies in a cloned repository, leads nowhere. The same holds for reading: files elsewhere must
not be sent to a node. The folder itself (`root`) is the user's choice and may be a link to another disk.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any, Protocol

from gpuops.agent.wire_format import Whole
from gpuops.core.errors import LocalDisk, NodeError
from gpuops.core.platform import HERE, System, replace
from gpuops.core.safe_open import (
    ABSENT_ERRNOS,
    FOLDER,
    HAS_HANDLES,
    LINK_IN_THE_WAY,
    PLAIN,
    flush_file,
    flush_folder,
    open_folder,
    open_plain,
    set_date,
)
from gpuops.core.safe_paths import is_inside

DISK_RESERVE_BYTES = 16 << 20
"""Bytes of the disk that no node's file takes: the record of the run needs room, too."""
BLOCK_BYTES = 1 << 20


class Readable(Protocol):
    def read(self, count: int, /) -> bytes:
        """At most `count` bytes; none at the end."""


@contextmanager
def local_errors(path: Path) -> Iterator[None]:
    """Raise LocalDisk for an OSError in the block."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise LocalDisk(
                f"this computer's disk is full: cannot write to {where}", "free space, then run `gpuops pull`"
            ) from error
        fix = "remove it" if error.strerror == LINK_IN_THE_WAY else "free space or fix the permissions"
        raise LocalDisk(
            f"cannot write to {where}: {error.strerror or error}", f"{fix}, then run `gpuops pull`"
        ) from error


class SafeFolder:
    """Construction touches nothing. Paths are relative, with `/`. Methods raise NodeError for a path that `is_inside`
    refuses, and OSError of the disk, also for a link on the way (ELOOP)."""

    def __init__(self, root: Path, inside: str = "", system: System = HERE) -> None:
        self.root = root
        self.system = system
        self._inside = inside

    @property
    def path(self) -> Path:
        """Its path, for people and for programs that only read."""
        return self.root / self._inside

    def below(self, path: str) -> SafeFolder:
        """The folder `path` in this one, whether it exists or not."""
        return SafeFolder(self.root, self._joined(path), self.system)

    def _joined(self, path: str) -> str:
        if not is_inside(path) or self.system.stored(path) != path:  # which would lie elsewhere, or nowhere
            raise NodeError(f"a node names a file {path[:200]!r}", "check that this node is yours")
        return f"{self._inside}/{path}" if self._inside else path

    @contextmanager
    def _parent(self, path: str, make: bool = False) -> Iterator[tuple[int | None, str]]:
        """The open folder that `path` lies in, and its name there; without handles, None and the whole path.

        `make`: create missing folders on the way. Raises OSError with the path of what is not a folder.
        """
        *folders, name = self._joined(path).split("/")
        place = str(self.root)
        if make:
            os.makedirs(place, exist_ok=True)
        handle = os.open(place, FOLDER & ~getattr(os, "O_NOFOLLOW", 0)) if HAS_HANDLES else None
        try:
            for folder in folders:
                place = os.path.join(place, folder)
                at = folder if HAS_HANDLES else place
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(at, dir_fd=handle)
                inner = open_folder(at, handle, place)
                if handle is not None:
                    os.close(handle)
                handle = inner
            yield handle, name if HAS_HANDLES else os.path.join(place, name)
        except OSError as error:
            if not error.filename or error.filename == name:
                error.filename = os.path.join(place, name)
            raise
        finally:
            if handle is not None:
                os.close(handle)

    def make(self) -> SafeFolder:
        """Create this folder and missing ones above it."""
        if self._inside:
            with SafeFolder(self.root, "", self.system)._parent(f"{self._inside}/x", make=True):
                pass
        else:
            os.makedirs(self.root, exist_ok=True)
        return self

    def make_new(self, path: str) -> None:
        """Create a folder, and missing ones above it. Raises FileExistsError where something has its name."""
        with self._parent(path, make=True) as (folder, name):
            os.mkdir(name, dir_fd=folder)

    def look(self, path: str) -> os.stat_result | None:
        """The state of a path, or of a link itself; None where nothing, or no folder on the way, lies there."""
        try:
            with self._parent(path) as (folder, name):
                return os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            if error.errno in ABSENT_ERRNOS:
                return None
            raise

    def size(self, path: str) -> int | None:
        """The size of a plain file in bytes; None without one."""
        seen = self.look(path)
        return seen.st_size if seen and stat.S_ISREG(seen.st_mode) else None

    def target(self, path: str) -> str | None:
        """The target of a link; None without one."""
        seen = self.look(path)
        if not seen or not stat.S_ISLNK(seen.st_mode):
            return None
        with self._parent(path) as (folder, name):
            return os.readlink(name, dir_fd=folder)

    def names(self) -> list[str]:
        """The names in this folder; empty where it is not a folder."""
        try:
            with self._parent("x") as (folder, name):
                return os.listdir(os.path.dirname(name) if folder is None else folder)
        except OSError:
            return []

    def reading(self, path: str) -> BufferedReader:
        """Open a plain file for reading. Raises OSError for anything else."""
        with self._parent(path) as (folder, name):
            return open(open_plain(name, os.O_RDONLY, folder), "rb")

    def sha256(self, path: str) -> str | None:
        """SHA-256 of a file's current bytes; None where it cannot be read."""
        try:
            with self.reading(path) as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:
            return None

    def room(self) -> int:
        """Bytes that this disk can still take of a node; at least 0."""
        place = self.path
        while not place.exists() and place != place.parent:
            place = place.parent
        return max(0, shutil.disk_usage(place).free - DISK_RESERVE_BYTES)

    def create(
        self,
        path: str,
        content: Readable,
        size: int,
        *,
        mtime_ns: int | None = None,
        mode: int = 0o666,
        on_bytes: Callable[[int], None] = lambda _: None,
    ) -> str:
        """Write a new file and flush it to the disk, since the node may end next. Returns its SHA-256.

        `size`: the bytes that the node announced; OSError (ENOSPC) where the disk has no room for them. `on_bytes` is
        called with the number of bytes of each block. Whatever is raised, no partial file stays. `mode`: the exact
        permissions; without it those of the user's umask.
        """
        if size > self.room():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path / path))
        digest = hashlib.sha256()
        with self._parent(path, make=True) as (folder, name):
            made = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | PLAIN, mode, dir_fd=folder)
            try:
                with open(made, "wb") as file:
                    while block := content.read(BLOCK_BYTES):
                        digest.update(block)
                        file.write(block)
                        on_bytes(len(block))
                    file.flush()
                    os.fsync(file.fileno())
                    if mode != 0o666 and hasattr(os, "fchmod"):
                        os.fchmod(file.fileno(), mode)
                if mtime_ns is not None:
                    set_date(name, folder, mtime_ns)
            except BaseException:
                with suppress(OSError):
                    os.unlink(name, dir_fd=folder)
                raise
        return digest.hexdigest()

    def write(self, path: str, content: Readable, size: int, *, mtime_ns: int | None = None, draft: str = "") -> None:
        """As `create`, but replace an existing file: a reader sees the old bytes or the new. `draft`: the temporary
        name, whose file is removed first; any by default."""
        draft = draft or self.draft(path)
        self.remove(draft)
        try:
            self.create(draft, content, size, mtime_ns=mtime_ns)
            self.move(self, draft, path)
        finally:
            self.remove(draft)

    def write_json(self, path: str, value: Mapping[str, Any], draft: str = "") -> None:
        """Write a document of gpuops, which may use the disk's reserve."""
        self.write(path, io.BytesIO(json.dumps(value, indent=1).encode()), 0, draft=draft)

    def draft(self, path: str) -> str:
        """A random unused name beside `path`."""
        folder, _, _ = path.rpartition("/")
        return f"{folder}{'/' * bool(folder)}.gpuops-{secrets.token_hex(8)}.part"

    def date(self, path: str, mtime_ns: int) -> None:
        """Set a file's time, where this disk can store it."""
        with self._parent(path) as (folder, name):
            set_date(name, folder, mtime_ns)

    def link(self, path: str, target: str) -> None:
        """Create a symbolic link. The caller checks its target with `stays_inside`."""
        with self._parent(path, make=True) as (folder, name):
            os.symlink(target, name, dir_fd=folder)

    def stays_inside(self, path: str, target: str) -> bool:
        """Whether a link at `path` with this target stays in this folder and passes no other link."""
        up = path.split("/")[:-1]
        parts = target.split("/")
        while parts and parts[0] in ("..", "."):
            if parts.pop(0) == ".." and not (up and up.pop()):
                return False
        place = "/".join([*up, *parts])
        if not place or not is_inside(place) or self.system.stored(place) != place:
            return False
        folders = place.split("/")[:-1]
        return all(self.target("/".join(folders[: count + 1])) is None for count in range(len(folders)))

    def share(self, path: str, other: SafeFolder, name: str) -> None:
        """Give a file a second name in another folder, or copy it where the disk has no hard links."""
        with self._parent(path) as (folder, ours), other._parent(name, make=True) as (there, theirs):
            try:
                return os.link(ours, theirs, src_dir_fd=folder, dst_dir_fd=there, follow_symlinks=False)
            except (OSError, NotImplementedError):
                pass  # a disk without second names
        with self.reading(path) as file:
            seen = os.fstat(file.fileno())
            other.create(name, file, seen.st_size, mtime_ns=seen.st_mtime_ns)
        return None

    def move(self, source: SafeFolder, name: str, path: str) -> None:
        """Move a file or link of `source` to `path`, replacing a file or link there."""
        with source._parent(name) as (there, theirs), self._parent(path, make=True) as (folder, ours):
            rename = partial(os.replace, src_dir_fd=there, dst_dir_fd=folder) if HAS_HANDLES else os.replace
            replace(theirs, ours, self.system, rename)

    def write_at(self, path: str, offset: int, data: bytes) -> bool:
        """Write bytes at an offset of a growing file; False where the file is shorter than that."""
        if len(data) > self.room():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path / path))
        with (
            self._parent(path, make=True) as (folder, name),
            open(open_plain(name, os.O_RDWR | os.O_CREAT, folder), "r+b", buffering=0) as file,
        ):
            if os.fstat(file.fileno()).st_size < offset:
                return False
            file.seek(offset)
            Whole(file).write(data)
        return True

    def append(self, path: str, data: bytes) -> int:
        """Write at the end of a file of gpuops, which may use the disk's reserve, and flush it to the disk. Returns
        the file's size."""
        with (
            self._parent(path) as (folder, name),
            open(open_plain(name, os.O_WRONLY | os.O_APPEND, folder), "ab", buffering=0) as file,
        ):
            Whole(file).write(data)
            os.fsync(file.fileno())
            return file.tell()

    def flush(self, *, files: bool = False) -> None:
        """Wait until the names in this folder and in those below are on the disk; with `files`, the files' bytes as
        well. A missing folder is success."""
        if not HAS_HANDLES:
            for place, _, names in os.walk(self.path) if files else ():  # Windows flushes no folder
                for name in names:
                    flush_file(os.path.join(place, name), os.O_RDWR, None)
            return
        try:
            with self._parent("x") as (handle, _):
                for _, _, names, folder in os.fwalk(".", dir_fd=handle):
                    for name in names if files else ():
                        flush_file(name, os.O_RDONLY, folder)
                    flush_folder(folder)
        except FileNotFoundError:
            pass

    def remove(self, path: str) -> None:
        """Remove a file or link; a missing one is success."""
        try:
            with self._parent(path) as (folder, name):
                os.unlink(name, dir_fd=folder)
        except OSError as error:
            if error.errno not in ABSENT_ERRNOS:
                raise

    def remove_tree(self, path: str) -> None:
        """Remove a folder with its content; what cannot be removed stays."""
        with suppress(OSError), self._parent(path) as (folder, name):
            shutil.rmtree(name, ignore_errors=True, dir_fd=folder)

    def remove_empty(self, path: str) -> None:
        """Remove a folder and those above it, below this one, while they are empty."""
        while path:
            try:
                with self._parent(path) as (folder, name):
                    os.rmdir(name, dir_fd=folder)
            except OSError:
                return
            path = path.rpartition("/")[0]
