"""Where fetched data lie on this node, whole or in part, and what is known of them.

    <large trees>/<tree>/<path>           whole files: synced, checked and renamed into their place
    <large trees>/incoming/<tree>/K.part  a file that has not arrived whole; K: from its path
    <large trees>/incoming/<tree>/K.json  of which version of the source that is, and since which boot
    <large trees>/incoming/<tree>copies/  what another node has fetched, and sends (`copied`)
    trees/<tree>.fetched                  a line for each file that came: its path, version, SHA-256 and change time

A line is written before the file is renamed. So a killed fetch leaves no file that the next one does not know, and what
was changed here since is told from what came.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import threading
import time
from functools import partial
from typing import Any, Iterator, NamedTuple

from gpuops.agent.fetch.web import Version
from gpuops.agent.files.folder import TreeFolder, path_bytes, stat_entry
from gpuops.agent.files.push_decision import FILE
from gpuops.agent.machine_resources import boot_id
from gpuops.agent.node import Node, Refusal, read_json, write_json

MIN_RESUMED_BYTES = 1 << 20
"""A smaller file that did not arrive whole begins again: to note its version would take longer."""
LOCK_WAIT_S = 60.0
"""How long a fetch waits for one that was cut and has not noticed yet."""


class Wanted(NamedTuple):
    """A file as the client names it."""

    path: str
    """Inside the tree."""
    size: int | None
    """None where no listing tells it."""
    etag: str
    """Of a listing; empty without one."""
    sha256: str
    """Given by the user; empty without."""


class Known(NamedTuple):
    """A file that came: what the source said of it, and its size and change time here."""

    version: Version
    sha256: str
    size: int
    mtime_ns: int


class Partial(NamedTuple):
    """What has arrived of a file that is not whole."""

    version: Version
    sha256: str
    """Which the server has told; empty where it did not."""
    size: int


class Store:
    """One tree's files. Several threads may use it, each for files of its own."""

    def __init__(self, node: Node, tree: str, overwrite: bool) -> None:
        """`overwrite`: files that were changed here are fetched again, instead of refused."""
        self.tree = TreeFolder(node.tree(tree))
        self.copies = tree + "copies"
        """The tree under whose name another node's files are received: no such tree is ever made."""
        above = os.path.join(os.path.dirname(node.tree(tree)), "incoming")
        self.incoming, self._received = os.path.join(above, tree), os.path.join(above, self.copies)
        self._show = partial(node.show_tree, tree)
        self._journal = node.path("trees", tree + ".fetched")
        self._lock_file = node.path("trees", tree + ".lock")
        self._overwrite = overwrite
        self._known: dict[str, list[Known]] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Hold the tree for one fetch. Raises Refusal(`busy`) where another one does."""
        os.makedirs(os.path.dirname(self._journal), exist_ok=True)
        with open(self._lock_file, "w") as lock:
            _wait_for(lock)
            os.makedirs(self.incoming, mode=0o700, exist_ok=True)
            self._known = _read_journal(self._journal)
            yield

    def find(self, path: str) -> Known | None:
        """What is known of the file in its place; None where there is none.

        Raises Refusal(`edited`) for one that did not come so, and `outside` where it lies behind a link.
        """
        found = self.tree.look(path)
        if found.kind == FILE:
            for known in reversed(self._known.get(path, [])):
                if (known.size, known.mtime_ns) == (found.entry.size, found.entry.mtime_ns):
                    return known
        if os.path.lexists(self.tree.at(path)) and not self._overwrite:
            raise Refusal(
                "edited",
                f"'{path}' was changed on this node since it was fetched",
                "--overwrite fetches it again; a run writes its own files elsewhere",
            )
        return None

    def partial(self, path: str) -> Partial | None:
        """What has arrived of a file, if a rest can be added to it."""
        document = read_json(self._at(path, "json"))
        found = stat_entry(os.fsencode(self._at(path, "part")))
        # After another boot, the last bytes may not have reached the disk.
        if found.kind != FILE or not document or document["boot"] != boot_id():
            return None
        return Partial(Version(*document["version"]), document["sha256"], found.entry.size)

    def begin(self, path: str, version: Version, sha256: str) -> None:
        """Note of which version a file's bytes will be, and drop what has arrived of another."""
        self.drop(path)
        if version.validator and (version.size or MIN_RESUMED_BYTES) >= MIN_RESUMED_BYTES:
            write_json(self._at(path, "json"), {"version": version, "sha256": sha256, "boot": boot_id()})

    def open_part(self, path: str, size: int) -> int:
        """A descriptor to write from byte `size` on; what lies behind it is dropped."""
        fd = os.open(self._at(path, "part"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        os.ftruncate(fd, size)
        os.lseek(fd, size, os.SEEK_SET)
        return fd

    def read_part(self, path: str, size: int) -> Iterator[bytes]:
        """The first `size` bytes that have arrived."""
        with open(self._at(path, "part"), "rb") as file:
            while size:
                block = file.read(min(size, 1 << 20))
                if not block:
                    raise OSError(errno.EIO, "it became shorter")
                size -= len(block)
                yield block

    def drop(self, path: str) -> None:
        for kind in ("json", "part"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._at(path, kind))

    def place(self, path: str, version: Version, sha256: str) -> None:
        """Move a file that is whole and synced into its place. Raises Refusal(`outside`, `in-the-way`)."""
        part = os.fsencode(self._at(path, "part"))
        entry = stat_entry(part).entry
        known = Known(version, sha256, entry.size, entry.mtime_ns)
        with self._lock:
            with open(self._journal, "ab") as file:
                file.write(_line(path, known))
            self.tree.place(path, part)
            self._known.setdefault(path, []).append(known)
        self.drop(path)

    def take(self, path: str, received: bytes, version: Version, sha256: str) -> None:
        """Move a file that lies whole and synced elsewhere on this disk into its place. Raises as `place`."""
        self.drop(path)
        os.replace(received, self._at(path, "part"))
        self.place(path, version, sha256)

    def remove_stale(self, paths: set[str]) -> None:
        """Remove what came earlier and is no longer at the source; what a run has changed of it stays."""
        for path in [path for path in self._known if path not in paths]:
            with contextlib.suppress(Refusal):
                if self.find(path):
                    self.tree.remove(path)
                    self.tree.prune(path)
            del self._known[path]

    def close(self) -> None:
        """Everything has come: write the record anew, and remove what is left of earlier attempts."""
        temporary = self._journal + ".tmp"
        with open(temporary, "wb") as file:
            for path, known in self._known.items():
                file.write(_line(path, known[-1]))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._journal)
        self._show()
        for folder in (self.incoming, self._received):
            shutil.rmtree(folder, ignore_errors=True)

    def _at(self, path: str, kind: str) -> str:
        return os.path.join(self.incoming, f"{hashlib.sha256(path_bytes(path)).hexdigest()[:32]}.{kind}")


def _line(path: str, known: Known) -> bytes:
    """Begins with the line break: one that was cut takes no other along."""
    return b"\n" + json.dumps([path, known.version, known.sha256, known.size, known.mtime_ns]).encode()


def _read_journal(path: str) -> dict[str, list[Known]]:
    """Every file that came, with all lines on it, the latest last. A line that was cut counts for nothing."""
    known: dict[str, list[Known]] = {}
    try:
        with open(path, "rb") as file:
            for line in file:
                with contextlib.suppress(ValueError, TypeError):
                    name, version, sha256, size, mtime_ns = json.loads(line)
                    known.setdefault(name, []).append(Known(Version(*version), sha256, size, mtime_ns))
    except FileNotFoundError:
        pass
    return known


def _wait_for(lock: Any) -> None:
    end = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if time.monotonic() > end:
                raise Refusal("busy", "these data are being fetched already", "wait for that to end") from error
            time.sleep(0.5)
        else:
            return
