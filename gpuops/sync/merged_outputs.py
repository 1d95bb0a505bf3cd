"""`runs/<run>/out/`: all nodes' outputs merged into one tree, without overwriting a person's work.

The same path with the same bytes on several nodes is one file. With other bytes, the lowest node's file has the path
and the others lie under `node<i>/`. A journal (`merged_outputs_journal`) records each written file (size and time); a
file with another size or time belongs to a person, and a download for its path is put beside it as `<name>.new`.

It is written before the files are renamed into place, so a process killed between any two renames leaves no
file that the next one takes for a person's. Several processes may publish at once (a terminal and the guard): each
publication holds a lock, and nothing slow is done under it.
"""

from __future__ import annotations

import io
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath

from gpuops.core.errors import NodeError
from gpuops.core.file_lock import LockTimeout, file_lock
from gpuops.core.platform import HERE, System
from gpuops.core.safe_folder import SafeFolder, local_errors
from gpuops.core.safe_paths import may_come
from gpuops.sync.merged_outputs_journal import DOCUMENT_FILE, JOURNAL_FILE, Journal
from gpuops.sync.merged_outputs_record import (
    Arrival,
    Held,
    Memory,
    Move,
    Stamp,
    Written,
    choose_places,
    inherited_arrivals,
    is_beside,
)
from gpuops.sync.project_files import printable_path
from gpuops.sync.run_folder import RunHome

OWN_FILES = (JOURNAL_FILE, DOCUMENT_FILE)
"""Names in `out/` that no file of a run may have."""
LOCK_FILE = ".lock"
LOCK_TIMEOUT_S = 120.0
"""How long another process may take to publish."""
MAX_STAGE_ATTEMPTS = 10
NO_PLAIN_FILE = (-1, -1)
"""The stamp of a link, and of anything else that is not a plain file."""


class OutFolder:
    """The merged tree of one run. Errors of this computer's disk are LocalDisk."""

    def __init__(self, home: RunHome, system: System = HERE) -> None:
        self.folder = home.folder.below("out")
        self._system = system
        self._home = home.folder
        self._incoming = home.folder.below("incoming")
        self._journal = Journal(home.folder, system.key)
        # One lock for all runs of a folder: its file stays, and would be litter in each run's folder.
        self._runs = SafeFolder(home.path.parent)
        self._lock_path = home.path.parent / LOCK_FILE

    def memory(self) -> Memory:
        """The record; empty where its file is damaged, and then every file counts as a person's."""
        return self._journal.read()

    @contextmanager
    def staging(self) -> Iterator[SafeFolder]:
        """A folder on the same filesystem for files that are being received; removed afterwards."""
        name = f"{os.getpid()}-{secrets.token_hex(4)}"
        with local_errors(self._incoming.path):
            folder = self._make_staging(name)
        try:
            yield folder
        finally:
            self._incoming.remove_tree(name)
            self._remove_incoming()

    def _make_staging(self, name: str, tries: int = MAX_STAGE_ATTEMPTS) -> SafeFolder:
        try:
            return self._incoming.below(name).make()
        except FileNotFoundError:  # another process found `incoming` empty and removed it in between
            if tries == 1:
                raise
            return self._make_staging(name, tries - 1)

    def _remove_incoming(self) -> None:
        """Remove `incoming` unless another process is receiving files."""
        self._home.remove_empty("incoming")

    def clear_dead(self) -> None:
        """Remove the staging folders of processes that have ended."""
        for name in self._incoming.names():
            import psutil  # slow to import, and most often there is no such folder

            pid = name.partition("-")[0]
            if not (pid.isdigit() and psutil.pid_exists(int(pid))):
                self._incoming.remove_tree(name)
        self._remove_incoming()

    def publish(self, arrivals: Sequence[Arrival], staging: SafeFolder) -> list[str]:
        """Put arrivals in their places. Returns a sentence for each that lies under another name than its own.

        All nodes' arrivals of one path belong in one call, so that equal files stay one file.
        """
        if not arrivals:
            return []
        with local_errors(self.folder.path), self._locked():
            memory = self.memory()
            memory.settle()
            moves: list[Move] = []
            by_path: dict[str, list[Arrival]] = {}
            for arrival in arrivals:
                by_path.setdefault(arrival.path, []).append(arrival)
            for path in sorted(by_path):
                path_moves = self._plan_moves(memory, path, by_path[path], staging)
                record_moves(memory, path_moves, staging)
                moves += path_moves
            self._journal.append(by_path)
            for move in moves:
                self.folder.move(staging, move.temp, move.place)
            dropped = self._drop_unused(memory, by_path)
            record_moved(memory, moves)
            self._journal.append(sorted({*dropped, *(move.path for move in moves)}))
        return [sentence for move in moves if (sentence := self._explain_name(memory, move))]

    def _explain_name(self, memory: Memory, move: Move) -> str:
        """Why a file has another name here than on its node; empty where it has its own."""
        other = memory.owner(move.proper_place)
        here, path = printable_path(f"out/{move.place}"), printable_path(move.path)
        if move.place == move.proper_place:
            is_own = self._system.stored(move.path) == move.path
            return "" if is_own else f"{here} is {path}, a name that no file can have here"
        if memory.becomes_folder(move.proper_place) or self._is_folder(move.proper_place):
            return f"{here} is {path}: a folder has that name here"
        if other is not None and other != move.path:
            return f"{here} is {path}: to this computer that is the same name as {printable_path(other)}"
        return f"{here} lies beside a file that was changed here"

    def forget(self, wrong: Iterable[tuple[int, str]]) -> None:
        """Remove (node, path) pairs from the record: the next fetch brings them again."""
        with local_errors(self.folder.path), self._locked():
            memory = self.memory()
            for node, path in wrong:
                held = memory.held.get(path, {}).pop(node, None)
                written = memory.written.get(held.place) if held else None
                if held and written:
                    memory.record(held.place, Written(written.path, "", written.stamps))
            self._journal.append(sorted({path for _, path in wrong}))

    def is_home(self, memory: Memory, node: int, path: str, stamp: Stamp) -> bool:
        """Whether this version is home, and no crash came between the record and its file."""
        held = memory.held.get(path, {}).get(node)
        if held is None or held.stamp != stamp:
            return False
        now, written = self._read_stamp(held.place), memory.written.get(held.place)
        return now is not None and not (written and now in written.stamps[:-1])

    def sha256(self, place: str) -> str | None:
        """SHA-256 of the file that lies there now; None without one."""
        return self.folder.sha256(place)

    def _read_stamp(self, place: str) -> Stamp | None:
        return read_stamp(self.folder, place)

    def _is_folder(self, place: str) -> bool:
        status = self.folder.look(place)
        return status is not None and stat.S_ISDIR(status.st_mode)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.folder.make()
        if self._runs.look(LOCK_FILE) is None:
            with suppress(FileExistsError):
                self._runs.create(LOCK_FILE, io.BytesIO(), 0)
        self._runs.reading(LOCK_FILE).close()  # raises for a link, which a repository may contain
        try:
            with file_lock(self._lock_path, LOCK_TIMEOUT_S), self._forgetting_failures():
                yield
        except LockTimeout as error:
            raise NodeError(
                f"another gpuops has been writing to {self.folder.path} for {LOCK_TIMEOUT_S:.0f} s",
                "end it (perhaps it is suspended in a terminal), then run `gpuops pull`",
            ) from error

    @contextmanager
    def _forgetting_failures(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._journal.reset()  # the record in memory is ahead of the disk
            raise

    def _plan_moves(self, memory: Memory, path: str, arrivals: Sequence[Arrival], staging: SafeFolder) -> list[Move]:
        """Update the record for one path. Returns which files move where."""
        before = memory.held.get(path, {})
        arrived = {a.node: a for a in arrivals if self._is_available(memory, before, a.sha256, arrivals)}
        stamps = {node: held.stamp for node, held in before.items()} | {n: a.stamp for n, a in arrived.items()}
        sums = {node: held.sha256 for node, held in before.items()} | {n: a.sha256 for n, a in arrived.items()}
        after: dict[int, Held] = {}
        moves: list[Move] = []
        name = self._system.stored(path)
        for sha256, proper in choose_places(name, sums).items():
            nodes = [node for node in sums if sums[node] == sha256]
            current = sorted({held.place for held in before.values() if held.sha256 == sha256})
            place = next((place for place in current if place == proper or is_beside(place, proper)), None)
            if place is None or not arrived.keys().isdisjoint(nodes):
                place = self._find_free_place(memory, path, f"node{min(nodes)}/{name}", proper, sha256)
                if not self._has_bytes(memory, place, sha256):
                    temps = [arrived[node].temp for node in nodes if node in arrived]
                    temp = next(filter(None, temps), None) or self._stage_copy(memory, sha256, current, staging)
                    if temp is None:
                        continue  # its bytes are missing: not recorded, so that the next fetch brings them
                    moves.append(Move(temp, place, path, sha256, proper_place=proper))
            after |= {node: Held(stamps[node], sha256, place) for node in nodes}
        memory.held[path] = after
        return moves

    def _is_available(
        self, memory: Memory, before: Mapping[int, Held], sha256: str, arrivals: Sequence[Arrival]
    ) -> bool:
        """Whether these bytes were received or are home; otherwise the node's earlier version must stay."""
        if any(arrival.temp for arrival in arrivals if arrival.sha256 == sha256):
            return True
        return any(self._has_bytes(memory, held.place, sha256) for held in before.values() if held.sha256 == sha256)

    def _stage_copy(self, memory: Memory, sha256: str, places: Sequence[str], staging: SafeFolder) -> str | None:
        """A staged copy of bytes that are home under a name that another node's version is about to take."""
        source = next((place for place in places if self._has_bytes(memory, place, sha256)), None)
        if source is None:
            return None
        temp = f"kept-{sha256}"
        if staging.look(temp) is None:
            self.folder.share(source, staging, temp)
        return temp

    def _find_free_place(self, memory: Memory, path: str, aside: str, place: str, sha256: str) -> str:
        """`place`, or the nearest name that no person's file and no other path's file has."""
        if self._is_blocked(memory, place):
            place = aside
        while not self._may_write(memory, path, place, sha256):
            longer = place + ".new"
            place = longer if may_come(longer) else f"{sha256[:32]}-{secrets.token_hex(4)}"
        return place

    def _is_blocked(self, memory: Memory, place: str) -> bool:
        """Whether a folder has this place, or a file has, or is about to have, the place of one of its folders."""
        above = [parent.as_posix() for parent in PurePosixPath(place).parents][:-1]
        if not {*map(self._system.key, OWN_FILES)}.isdisjoint(map(self._system.key, [place, *above])):
            return True
        files = (memory.owner(parent) or self._read_stamp(parent) for parent in above)
        return self._is_folder(place) or memory.becomes_folder(place) or any(files)

    def _may_write(self, memory: Memory, path: str, place: str, sha256: str) -> bool:
        if self._is_blocked(memory, place):
            return False
        now = self._read_stamp(place)
        written = memory.written.get(place)
        if memory.owner(place) not in (None, path):
            return False
        return now is None or bool(written and now in written.stamps) or self.sha256(place) == sha256

    def _has_bytes(self, memory: Memory, place: str, sha256: str) -> bool:
        """Whether exactly these bytes lie there, written by gpuops or by a person."""
        now, written = self._read_stamp(place), memory.written.get(place)
        if now is None:
            return False
        if written and now in written.stamps and len(written.stamps) == 1:
            return written.sha256 == sha256
        return self.sha256(place) == sha256

    def _drop_unused(self, memory: Memory, paths: Iterable[str]) -> set[str]:
        """Remove written files that no node's version needs any more, unless a person changed them. Returns their
        paths."""
        dropped = set()
        for path in paths:
            used = {held.place for held in memory.held.get(path, {}).values()}
            for place in memory.places_of(path):
                if place in used:
                    continue
                if self._read_stamp(place) in memory.written[place].stamps:
                    self.folder.remove(place)
                    self.folder.remove_empty(place.rpartition("/")[0])
                memory.drop(place)
                dropped.add(path)
        return dropped


def record_moves(memory: Memory, moves: Sequence[Move], staging: SafeFolder) -> None:
    """Record files that are about to be renamed into place: old and new stamps both count as written by gpuops."""
    for move in moves:
        old, new = memory.written.get(move.place), read_stamp(staging, move.temp)
        stamps = (*(old.stamps if old else ()), *((new,) if new else ()))
        memory.announce(move.place, Written(move.path, move.sha256, stamps))


def record_moved(memory: Memory, moves: Sequence[Move]) -> None:
    """Record that files are in their places: of their stamps only the new one counts now."""
    for move in moves:
        written = memory.written[move.place]
        memory.record(move.place, Written(written.path, written.sha256, written.stamps[-1:]))


def read_stamp(folder: SafeFolder, path: str) -> Stamp | None:
    """(size, mtime_ns) of the file at `path`; None without one or for a folder, else NO_PLAIN_FILE."""
    status = folder.look(path)
    if status is None or stat.S_ISDIR(status.st_mode):
        return None
    return (status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else NO_PLAIN_FILE


def list_outputs(home: RunHome) -> list[str]:
    """Places in `out/` of everything that a run has made, sorted."""
    return sorted(OutFolder(home).memory().written)


def inherit(home: RunHome, handed: Mapping[int, Mapping[str, int]]) -> None:
    """Count files that one node handed to another as the first node's, once they are home.

    `handed`: node that holds the files -> path -> node that made the file.
    """
    out = OutFolder(home)
    arrivals = inherited_arrivals(out.memory(), handed)
    if arrivals:
        with out.staging() as staging:
            out.publish(arrivals, staging)
