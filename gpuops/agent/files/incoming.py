"""What a push has brought so far, before its commit: `incoming/<tree>/`, on the tree's disk.

    plan.json      the push that is under way
    files-<push>/  each file's content under its path; `files-copy…` of another node's files
    links/         where the commit makes the links, so that no content is written through one
    relay-<any>/   files that another node has passed on, until the client vouches for them

Each plan has a folder of its own, so that an older push which still writes cannot mix its bytes into a newer one. What
an older push brought is moved to the new folder: files that came whole, and parts of files that rsync, which writes in
place, goes on from.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections import deque
from typing import Iterable, Iterator, Mapping, NamedTuple, Sequence

from gpuops.agent.files.folder import FULL_DISK_ERRORS, disk_full, path_bytes, stat_entry
from gpuops.agent.files.push_decision import FILE, Entry, Found
from gpuops.agent.node import Node, Refusal, read_json, write_json
from gpuops.agent.wire_format import Whole

STAGED = "files-"
"""Before the name of a push, the name of the folder of what it has brought."""
COPY = "copy"
"""How the name of a push begins that brings another node's files: others have hexadecimal digits alone."""
MAX_AT_ONCE_BYTES = 1 << 16
"""A content of so many bytes is written where it is staged, at once: its size and time tell that it is whole."""
MAX_WAITING_BYTES = 16 << 20
"""What a relay holds in memory of the files that the client has not vouched for yet."""
ROUNDINGS_NS = 1_000, 1_000_000_000
"""An rsync whose system knows no finer times writes whole microseconds or seconds."""


class Plan(NamedTuple):
    """One push, from its `plan` to its `commit`."""

    push: str
    """Its random id."""
    files: dict[str, Entry]
    """The client's list, by path."""
    overwrite: bool
    """Whether files that were edited on the node are replaced as well."""
    sums: dict[str, str]
    """SHA-256 of the client's files that an earlier plan asked for, by path."""
    adds: bool = False
    """Whether the tree keeps all else that it has: these files are another node's, and have a record of their own."""

    def record_name(self, tree: str) -> str:
        """Of the record of what was written into the tree."""
        return f"{tree}.copied" if self.adds else tree


class Incoming:
    """One push that is being received."""

    def __init__(self, node: Node, tree: str, push: str = "") -> None:
        self.folder = os.path.join(os.path.dirname(node.tree(tree)), "incoming", tree)
        self.files = os.path.join(self.folder, STAGED + push)
        self._push = push
        self._base = os.fsencode(self.files) + b"/"
        self._had_files: dict[bytes, bool] = {}
        """Of folders for contents that there are by now: whether one had something in it."""

    def at(self, path: str, entry: Entry) -> bytes:
        """Where a content is staged."""
        if entry.link is None:
            return self._base + path_bytes(path)
        return os.fsencode(f"{self.folder}/links/{hashlib.sha256(path_bytes(path)).hexdigest()[:32]}")

    def has(self, path: str, entry: Entry) -> bool:
        """Whether a content has arrived whole: it gets its time only then."""
        return self._is_whole(stat_entry(self.at(path, entry)), entry)

    def whole_or_rounded(self, staged: bytes, entry: Entry) -> Entry | None:
        """The stat of a content that this push itself has brought whole: rsync may have rounded its time."""
        found = stat_entry(staged)
        return found.entry if self._is_whole(found, entry, ROUNDINGS_NS) else None

    def _is_whole(self, found: Found, entry: Entry, roundings_ns: Sequence[int] = ()) -> bool:
        actual, wanted = found.entry.mtime_ns, entry.mtime_ns
        if found.kind != FILE or found.entry.size != entry.size:
            return False
        times = [wanted, *(wanted // unit * unit for unit in roundings_ns)] if actual != wanted else []
        return actual == wanted or actual in times or actual in map(self._kept_time, times)

    def _kept_time(self, mtime_ns: int) -> int:
        """What this disk keeps of a file's time: some keep whole seconds or microseconds."""
        probe = os.path.join(self.folder, "time")
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT, 0o600))
        os.utime(probe, ns=(mtime_ns, mtime_ns))
        return os.stat(probe).st_mtime_ns

    def missing_bytes(self, path: str, entry: Entry) -> int:
        """What the disk must still hold of a file: rsync writes on within the part that it has."""
        part = stat_entry(self.at(path, entry))
        return max(0, entry.size - part.entry.size) if part.kind == FILE else entry.size

    def write(self, path: str, entry: Entry, blocks: Iterable[bytes]) -> None:
        """Stage a content. Raises FileNotFoundError where another push has begun, and OSError."""
        if entry.size <= MAX_AT_ONCE_BYTES:
            self.write_at_once(path, entry, b"".join(blocks))
            return
        part = os.path.join(self.folder, f"part-{self._push}-{os.getpid()}")  # one agent may copy for two pushes
        self.write_part(part, path, entry, blocks)
        self.take(part, path, entry)

    def write_at_once(self, path: str, entry: Entry, content: bytes) -> None:
        """Stage a small content, all of it, with a third of the calls of `write_part`. Raises as `write`."""
        place, flags = self._base + path_bytes(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL
        self._make_folder(path)
        try:
            fd = os.open(place, flags, entry.mode)
        except FileExistsError:  # a part that rsync has given up
            _remove(place)
            fd = os.open(place, flags, entry.mode)
        try:
            while content:
                content = content[os.write(fd, content) :]
            os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))
        except BaseException:
            _remove(place)
            raise
        finally:
            os.close(fd)

    def write_part(self, part: str, path: str, entry: Entry, blocks: Iterable[bytes]) -> None:
        """Write a content with its time, not yet where it is staged. Raises as `write`."""
        try:
            if self._make_folder(path):
                _remove(self.at(path, entry))  # a part that rsync has given up takes room
            # the commit gives it its mode, where this process may not give it all of that here
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, entry.mode), "wb", buffering=0) as file:
                stream = Whole(file)
                for block in blocks:
                    stream.write(block)
            os.utime(part, ns=(entry.mtime_ns, entry.mtime_ns))
        except BaseException:
            _remove(part)
            raise

    def take(self, part: str, path: str, entry: Entry) -> None:
        """Stage what `write_part` has written. Raises as `write`."""
        try:
            os.replace(part, self.at(path, entry))
        except BaseException:
            _remove(part)
            raise

    def _make_folder(self, path: str) -> bool:
        """Make the folder where a content is staged; whether it had something in it. Once the push's own folder is
        gone, none is made: another push has begun."""
        folder = (self._base + path_bytes(path)).rpartition(b"/")[0]
        if folder not in self._had_files:
            if not os.path.isdir(folder) and os.path.isdir(self.files):
                os.makedirs(folder, exist_ok=True)
            self._had_files[folder] = bool(os.listdir(folder))
        return self._had_files[folder]

    def open(self, files: Mapping[str, Entry]) -> bool:
        """Make the folders, take over what older pushes left of `files`, and remove the rest.

        Returns whether anything was taken over: whole files, or parts of some.
        """
        shutil.rmtree(os.path.join(self.folder, "links"), ignore_errors=True)
        for folder in (self.files, os.path.join(self.folder, "links")):
            os.makedirs(folder, exist_ok=True)
        wanted = {path_bytes(path): entry for path, entry in files.items() if entry.link is None}
        is_useful = False
        for left in list(os.scandir(self.folder)):
            if left.name in ("links", "plan.json", os.path.basename(self.files)):
                continue
            if left.is_dir(follow_symlinks=False):
                if self._may_take_over(left.name):
                    is_useful |= self._take_over(os.fsencode(left.path), wanted)
                shutil.rmtree(left.path, ignore_errors=True)
            else:  # the part of a stream that was cut, or that still comes
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(left.path)
        return is_useful

    def _may_take_over(self, older: str) -> bool:
        """Whether an older push's folder is as good as this one's: another node's files are never the client's, and
        nobody has vouched for what a relay left."""
        copies = STAGED + COPY
        is_copy = os.path.basename(self.files).startswith(copies)
        return older.startswith(STAGED) and older.startswith(copies) == is_copy

    def _take_over(self, older: bytes, wanted: Mapping[bytes, Entry]) -> bool:
        """Move the wanted files, and parts of such, out of an older push's folder."""
        newer, took = os.fsencode(self.files), False
        for folder, _, names in os.walk(older):
            inside = folder[len(older) + 1 :]
            target = os.path.join(newer, inside)
            for name in names:
                source = os.path.join(folder, name)
                entry, found = wanted.get(os.path.join(inside, name)), stat_entry(source)
                if entry is None or found.kind != FILE:
                    continue
                is_whole = self._is_whole(found, entry)
                if found.entry.size in (0, entry.size) and not is_whole:
                    continue  # the size is to tell that rsync, which writes in place, has not come to the end
                with contextlib.suppress(OSError):  # what cannot be moved is sent again
                    if not is_whole:
                        os.chmod(source, 0o600)  # rsync gives it the file's mode, and is to write in it again
                    os.makedirs(target, exist_ok=True)
                    os.replace(source, os.path.join(target, name))
                    took = True
        return took

    def store(self, plan: Plan) -> None:
        write_json(os.path.join(self.folder, "plan.json"), {**plan._asdict(), "files": [
            [path, *entry] for path, entry in plan.files.items()]})  # fmt: skip

    def load(self) -> Plan:
        """Raises Refusal(`superseded`) where another push has replaced this one."""
        document = read_json(os.path.join(self.folder, "plan.json"))
        if not document or document["push"] != self._push:
            raise superseded()
        files = {path: Entry(*fields) for path, *fields in document["files"]}
        return Plan(self._push, files, *(document[name] for name in Plan._fields[2:]))

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class _Unproven(NamedTuple):
    """A file that has come from another node."""

    end: int
    """Where in the stream it ends."""
    number: int
    """In the plan's list."""
    came: bytes | str
    """The content, or where it lies beside its place."""
    path: str
    entry: Entry


class Shelf:
    """Files that another node passes on, in order: not in their places until the client vouches for them. Small ones
    wait in memory, others in a folder."""

    def __init__(self, incoming: Incoming) -> None:
        """Raises Refusal(`superseded`)."""
        self.last: int | None = None
        """The number of the last file that was staged."""
        self.refusal: Refusal | None = None
        """Why no more can be staged."""
        try:
            self.folder = tempfile.mkdtemp(prefix="relay-", dir=incoming.folder)
        except FileNotFoundError as error:
            raise superseded() from error
        self._incoming = incoming
        self._count = 0
        self._waiting: deque[_Unproven] = deque()
        self._held = 0
        """Bytes that wait in memory."""

    def keep(self, path: str, entry: Entry, blocks: Iterable[bytes]) -> bytes | str | None:
        """Read a file and keep it. Returns what came of it; None where this node cannot keep it, and what is left of it
        is read all the same: those behind this node get it."""
        if self.refusal is None and entry.size <= min(MAX_AT_ONCE_BYTES, MAX_WAITING_BYTES - self._held):
            self._held += entry.size
            return b"".join(blocks)
        part = os.path.join(self.folder, str(self._count))  # what comes may have one name twice
        self._count += 1
        if self.refusal is None:
            try:
                self._incoming.write_part(part, path, entry, blocks)
                return part
            except OSError as error:
                self.refusal = _explain(error)
        for _ in blocks:
            pass
        return None

    def put(self, end: int, number: int, came: bytes | str, path: str, entry: Entry) -> None:
        """Let a file that was kept wait for the proof of the stream up to `end`."""
        self._waiting.append(_Unproven(end, number, came, path, entry))

    def settle(self, proven: int) -> None:
        """Stage the files that end before `proven`."""
        while self._waiting and self._waiting[0].end <= proven and self.refusal is None:
            file = self._waiting.popleft()
            try:
                if isinstance(file.came, bytes):
                    self._held -= file.entry.size
                    self._incoming.write_at_once(file.path, file.entry, file.came)
                else:
                    self._incoming.take(file.came, file.path, file.entry)
                self.last = file.number
            except OSError as error:
                self.refusal = _explain(error)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _explain(error: OSError) -> Refusal:
    if isinstance(error, FileNotFoundError):
        return superseded()
    if error.errno in FULL_DISK_ERRORS:
        return disk_full()
    return Refusal("cannot-write", f"a file cannot be written: {error.strerror or error}", "check the node's disk")


def _remove(part: str | bytes) -> None:
    with contextlib.suppress(OSError):
        os.unlink(part)


def superseded() -> Refusal:
    return Refusal("superseded", "another push has begun since", "let it finish, then push again")


@contextlib.contextmanager
def tree_lock(node: Node, tree: str) -> Iterator[None]:
    """Hold the tree's lock file: of all clients' plans and commits, one runs at a time."""
    os.makedirs(node.path("trees"), exist_ok=True)
    with open(node.path("trees", tree + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
