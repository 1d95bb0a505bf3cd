"""`runs/<run>/out/`: what several nodes made, merged into one tree, and never over a person's work.

The same path with the same bytes on several nodes is one file. With other bytes, the lowest node's
file has the path and the others lie under `node<i>/`. `out/.gpuops.json` remembers what we wrote
(size and time); a file that no longer looks so belongs to a person, and what comes home for that
path lies beside it as `<name>.new`.

The memory is written before the files are, so a process killed between any two renames leaves
nothing that the next one takes for a person's. Several processes may publish at once (a terminal
and the guard): each publication holds a lock, and nothing slow is done while it is held.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from filelock import FileLock, Timeout

from gpuops.errors import NodeError
from gpuops.results.home import RunHome, local_errors, read_json, write_json
from gpuops.results.memory import Arrival, Held, Memory, Move, Stamp, Written, is_beside, places
from gpuops.system import HERE, System, replace

MEMORY = ".gpuops.json"
LOCK_S = 120.0
"""How long another process may take to publish, in seconds."""
STAGE_TRIES = 10


class OutFolder:
    """The merged tree of one run. Errors of this computer's disk are LocalDisk."""

    def __init__(self, home: RunHome, system: System = HERE) -> None:
        self.root = home.out
        self._system = system
        self.incoming = home.incoming
        self._draft = home.path / ".publish.tmp"
        # One lock for all runs of a folder: it stays for ever, which would be litter in each run's own.
        self._lock = FileLock(home.path.parent / ".lock", timeout=LOCK_S)

    def memory(self) -> Memory:
        """What we remember; nothing where the file is damaged, and then every file counts as a person's."""
        try:
            return Memory.parse(read_json(self.root / MEMORY), self._system.key)
        except (ValueError, TypeError, AttributeError):
            return Memory(key=self._system.key)

    @contextmanager
    def staging(self) -> Iterator[Path]:
        """A folder for files on their way in, on the same filesystem; gone afterwards."""
        with local_errors(self.incoming):
            folder = self._stage()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            self._remove_incoming()

    def _stage(self, tries: int = STAGE_TRIES) -> Path:
        self.incoming.mkdir(parents=True, exist_ok=True)
        try:
            return Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=self.incoming))
        except FileNotFoundError:  # another process found it empty and removed it in between
            if tries == 1:
                raise
            return self._stage(tries - 1)

    def _remove_incoming(self) -> None:
        try:
            self.incoming.rmdir()
        except OSError:
            pass  # another process has files on their way in, or removed it first

    def clear_dead(self) -> None:
        """Remove what processes that are no more have left half-way."""
        import psutil

        try:
            folders = list(self.incoming.iterdir())
        except OSError:
            return  # nothing is on its way in
        for folder in folders:
            pid = folder.name.partition("-")[0]
            if not (pid.isdigit() and psutil.pid_exists(int(pid))):
                shutil.rmtree(folder, ignore_errors=True)
        self._remove_incoming()

    def publish(self, arrivals: Sequence[Arrival], staging: Path) -> list[str]:
        """Put arrivals in their places; returns a sentence for each that lies under another name than its own.

        All nodes' arrivals of one path belong into one call, so that equal files never part.
        """
        if not arrivals:
            return []
        with local_errors(self.root), self._locked():
            memory = self.memory()
            moves: list[Move] = []
            for path in sorted({arrival.path for arrival in arrivals}):
                settled = self._settle(memory, path, [a for a in arrivals if a.path == path], staging)
                announce(memory, settled)
                moves += settled
            self._remember(memory)
            for move in moves:
                target = self.root / move.place
                target.parent.mkdir(parents=True, exist_ok=True)
                replace(move.temp, target)
            self._drop_unused(memory, {arrival.path for arrival in arrivals})
            self._finish(memory, moves)
        return [said for move in moves if (said := self._remark(memory, move))]

    def _remark(self, memory: Memory, move: Move) -> str:
        """Why a file does not have its own name here; empty where it has."""
        other = memory.owner(move.wanted)
        if move.place == move.wanted:
            ours = self._system.stored(move.path)
            return "" if ours == move.path else f"out/{move.place} is {move.path}, a name that no file can have here"
        if memory.becomes_folder(move.wanted) or (self.root / move.wanted).is_dir():
            return f"out/{move.place} is {move.path}: a folder has that name here"
        if other not in (None, move.path):
            return f"out/{move.place} is {move.path}: to this computer that is the same name as {other}"
        return f"out/{move.place} lies beside a file that was changed here"

    def forget(self, wrong: Iterable[tuple[int, str]]) -> None:
        """(node, path) pairs that are not home after all: the next fetch brings them again."""
        with local_errors(self.root), self._locked():
            memory = self.memory()
            for node, path in wrong:
                held = memory.held.get(path, {}).pop(node, None)
                written = memory.written.get(held.at) if held else None
                if held and written:
                    memory.written[held.at] = Written(written.path, "", written.looks)
            self._remember(memory)

    def is_home(self, memory: Memory, node: int, path: str, stamp: Stamp) -> bool:
        """Whether this version was brought home and not lost on the last step by a crash."""
        held = memory.held.get(path, {}).get(node)
        if held is None or held.stamp != stamp:
            return False
        now, written = look(self.root / held.at), memory.written.get(held.at)
        return now is not None and not (written and now in written.looks[:-1])

    def sha256(self, place: str) -> str | None:
        """The checksum of the bytes that lie there now, or None."""
        try:
            with (self.root / place).open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:
            return None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.root.mkdir(parents=True, exist_ok=True)
        try:
            with self._lock:
                yield
        except Timeout as error:
            raise NodeError(
                f"another gpuops has been writing to {self.root} for {LOCK_S:.0f} s",
                "end it (perhaps it is suspended in a terminal), then run `gpuops pull`",
            ) from error

    def _remember(self, memory: Memory) -> None:
        # One name is enough, since we hold the lock; and what a crash leaves there is overwritten.
        write_json(self.root / MEMORY, memory.dump(), self._draft)

    def _settle(self, memory: Memory, path: str, arrivals: Sequence[Arrival], staging: Path) -> list[Move]:
        """Update the memory for one path and say which files have to move where."""
        before = memory.held.get(path, {})
        arrived = {a.node: a for a in arrivals if self._at_hand(memory, before, a.sha256, arrivals)}
        stamps = {node: held.stamp for node, held in before.items()} | {n: a.stamp for n, a in arrived.items()}
        sums = {node: held.sha256 for node, held in before.items()} | {n: a.sha256 for n, a in arrived.items()}
        after: dict[int, Held] = {}
        moves: list[Move] = []
        name = self._system.stored(path)
        for sha256, place in places(name, sums).items():
            nodes = [node for node in sums if sums[node] == sha256]
            lying = sorted({held.at for held in before.values() if held.sha256 == sha256})
            at = next((at for at in lying if at == place or is_beside(at, place)), None)
            if at is None or not arrived.keys().isdisjoint(nodes):
                at = self._free(memory, path, f"node{min(nodes)}/{name}", place, sha256)
                if not self._has(memory, at, sha256):
                    temps = [arrived[node].temp for node in nodes if node in arrived]
                    temp = next(filter(None, temps), None) or self._kept(memory, sha256, lying, staging)
                    if temp is None:
                        continue  # its bytes are not at hand: unknown again, so the next fetch brings them
                    moves.append(Move(temp, at, path, sha256, wanted=place))
            after |= {node: Held(stamps[node], sha256, at) for node in nodes}
        memory.held[path] = after
        return moves

    def _at_hand(self, memory: Memory, before: Mapping[int, Held], sha256: str, arrivals: Sequence[Arrival]) -> bool:
        """Whether these bytes have come, or are home; else what a node gave earlier must stay."""
        if any(arrival.temp for arrival in arrivals if arrival.sha256 == sha256):
            return True
        return any(self._has(memory, held.at, sha256) for held in before.values() if held.sha256 == sha256)

    def _kept(self, memory: Memory, sha256: str, lying: Sequence[str], staging: Path) -> Path | None:
        """Bytes that are home under a name that another node's version is about to take."""
        source = next((at for at in lying if self._has(memory, at, sha256)), None)
        if source is None:
            return None
        temp = staging / f"kept-{sha256}"
        _share(self.root / source, temp)
        return temp

    def _free(self, memory: Memory, path: str, aside: str, place: str, sha256: str) -> str:
        """`place`, or the nearest name where nothing of a person's, or of another path, lies."""
        if self._blocked(memory, place):
            place = aside
        while not self._may_write(memory, path, place, sha256):
            place += ".new"
        return place

    def _blocked(self, memory: Memory, place: str) -> bool:
        """A folder lies there, or a file lies (or is about to) where one of its folders would have to be."""
        target = self.root / place
        above = [parent.as_posix() for parent in PurePosixPath(place).parents][:-1]
        files = (memory.owner(parent) or (self.root / parent).is_file() for parent in above)
        return target.is_dir() or memory.becomes_folder(place) or any(files)

    def _may_write(self, memory: Memory, path: str, place: str, sha256: str) -> bool:
        if place == MEMORY or self._blocked(memory, place):
            return False
        now = look(self.root / place)
        written = memory.written.get(place)
        if memory.owner(place) not in (None, path):
            return False
        return now is None or bool(written and now in written.looks) or self.sha256(place) == sha256

    def _has(self, memory: Memory, place: str, sha256: str) -> bool:
        """Whether these bytes lie there, ours and untouched, or just the same by a person's hand."""
        now, written = look(self.root / place), memory.written.get(place)
        if now is None:
            return False
        if written and now in written.looks and len(written.looks) == 1:
            return written.sha256 == sha256
        return self.sha256(place) == sha256

    def _drop_unused(self, memory: Memory, paths: set[str]) -> None:
        """Remove files of ours that no node's version needs any more, unless a person changed them."""
        used = {held.at for path in paths for held in memory.held.get(path, {}).values()}
        for place, written in list(memory.written.items()):
            if written.path not in paths or place in used:
                continue
            if look(self.root / place) in written.looks:
                (self.root / place).unlink()
                _remove_empty(self.root / place, self.root)
            del memory.written[place]

    def _finish(self, memory: Memory, moves: Sequence[Move]) -> None:
        for move in moves:
            written = memory.written[move.place]
            memory.written[move.place] = Written(written.path, written.sha256, written.looks[-1:])
        self._remember(memory)


def announce(memory: Memory, moves: Sequence[Move]) -> None:
    """Remember files that are about to be renamed into place: old and new looks are both ours."""
    for move in moves:
        old, new = memory.written.get(move.place), look(move.temp)
        looks = (*(old.looks if old else ()), *((new,) if new else ()))
        memory.announce(move.place, Written(move.path, move.sha256, looks))


def look(path: Path) -> Stamp | None:
    """(size, mtime_ns) of the file that lies there, or None."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _share(source: Path, temp: Path) -> None:
    """The same file under a second name; the first is about to be replaced or removed."""
    try:
        os.link(source, temp)
    except OSError:
        shutil.copy2(source, temp)


def _remove_empty(path: Path, root: Path) -> None:
    for folder in path.parents:
        if folder == root or any(folder.iterdir()):
            return
        folder.rmdir()
