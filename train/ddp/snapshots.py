"""Snapshots to resume from: each file is complete or not there, and rank 0 chooses one for all ranks.

Rank 0 alone writes and reads. Each file holds what every rank needs, its own random numbers too, so that it is enough
by itself: on other machines, after a change of node, in a world of another size.
"""

from __future__ import annotations

import contextlib
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import torch

from ddp.world import World

FORMAT = 1
KEEP = 3
POINTER = "last"  # names the newest complete file; to go back to an older one, write its name there
UNFINISHED = "unfinished.tmp"  # always the same, so that no number of kills leaves more than one
NAME = re.compile(r"step-(\d{8,})\.pt")


class Snapshots:
    """The snapshots of one program in one folder."""

    def __init__(self, world: World, program: str) -> None:
        self.world, self.program = world, program
        self.folder = Path("snapshots") / program

    def write(self, step: int, state: dict[str, Any]) -> Path:
        """All ranks call it; `state` is rank 0's. Leaves, with a sentence, when it cannot be written."""
        path = self.folder / f"step-{step:08}.pt"
        problem = None
        if self.world.rank == 0:
            state = {"format": FORMAT, "program": self.program, **state}
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                replace(path, lambda file: torch.save(state, file))
            except (OSError, RuntimeError) as error:  # torch's writer turns a full disk into a RuntimeError
                problem = f"no snapshot could be written to {path}: {reason(error)}; {self._left()}"
        self.world.check(problem)  # the barrier: only a file that all know to be complete becomes the last one
        if self.world.rank == 0:
            try:
                replace(self.folder / POINTER, lambda file: file.write(f"{path.name}\n".encode()))
            except OSError as error:
                problem = f"{self.folder / POINTER} could not be written: {reason(error)}; {path} is complete"
            self._forget(step)
        self.world.check(problem)
        return path

    def newest(self) -> tuple[Path, dict[str, Any]] | None:
        """The newest whole snapshot, None without one; the same on every rank, whose machine may have no file.

        Rank 0 looks and hands what it found to the others. Where each rank looked for itself, a replaced node would
        begin at epoch 0 beside others at epoch 6, without a word.
        """
        path, state, problem, note = self.world.broadcast(self._look() if self.world.rank == 0 else None)
        self.world.check(problem)
        if note:
            self.world.note(note)
        return (path, state) if state else None

    def _look(self) -> tuple[Path | None, dict[str, Any] | None, str | None, str | None]:
        """Path, content, why it cannot be used, what to know."""
        torn = []
        for path in self._candidates():
            state = read(path)
            if state is None:
                torn.append(path)
                continue
            if state.get("program") != self.program:
                return path, None, f"{path} is not a snapshot of {self.program}; {self._way_out()}", None
            if state.get("format") != FORMAT:
                return path, None, f"{path} has another format than this program reads; {self._way_out()}", None
            return path, state, None, f"{torn[0]} is torn; going on from {path.name}" if torn else None
        if torn:
            return torn[0], None, f"{torn[0]} is torn, and there is no older one; {self._way_out()}", None
        return None, None, None, None

    def _candidates(self) -> list[Path]:
        """The one that `last` names, then from the newest to the oldest."""
        paths = sorted((path for path in self.folder.glob("step-*.pt") if number(path) >= 0), key=number, reverse=True)
        try:
            last = self.folder / (self.folder / POINTER).read_text().strip()
        except (OSError, ValueError):
            return paths
        return sorted(paths, key=lambda path: path != last)

    def _forget(self, step: int) -> None:
        """Remove all but the last few. Those of a later step stay: a person went back from them, and may want them."""
        older = sorted((path for path in self.folder.glob("step-*.pt") if 0 <= number(path) <= step), key=number)
        for path in older[:-KEEP]:
            with contextlib.suppress(OSError):  # another program reads it (Windows), or it is not ours: it stays
                path.unlink()

    def _left(self) -> str:
        paths = self._candidates()
        return f"{paths[0].name} is still there" if paths else "make room and start again"

    def _way_out(self) -> str:
        return f"move {self.folder} away to start from the beginning"


def number(path: Path) -> int:
    """The step in a file's name; -1 for a file that is not named like a snapshot."""
    found = NAME.fullmatch(path.name)
    return int(found[1]) if found else -1


def replace(path: Path, fill: Any) -> None:
    """Write a file so that, whatever is killed or unplugged when, its name stands for the old content or the new.

    Beside its place, then to the disk, then into its place; the folder goes to the disk, too, or the new name may be
    forgotten. `torch.save(state, path)` on the old file destroys it first.
    """
    temporary = path.with_name(UNFINISHED)
    try:
        with open(temporary, "wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        if temporary.exists():
            temporary.unlink()  # a half-written file would only keep the disk full
        raise
    if hasattr(os, "O_DIRECTORY"):  # Windows has no such thing, and does not need it
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def read(path: Path) -> dict[str, Any] | None:
    """A snapshot's content; None for a file that is torn.

    torch's files are zip archives: the directory at the end tells a complete one, and a checksum of every tensor
    is in it, which `torch.load` does not look at. `weights_only` reads nothing that could run.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.testzip():
                return None
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # zipfile, pickle and torch raise many kinds for one thing
        return None
    return state if isinstance(state, dict) else {}


def reason(error: BaseException) -> str:
    """`No space left on device`, also where torch has wrapped it."""
    for cause in (error, error.__cause__, error.__context__):
        if isinstance(cause, OSError):
            return cause.strerror or str(cause)
    return str(error).splitlines()[0]
