"""The record of `runs/<run>/out/` (`.gpuops.json`): what each node gave, what was written where, and where a file
belongs. Pure: no disk is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

Stamp = tuple[int, int]
"""Size in bytes and mtime in ns: how a file looked."""


@dataclass(frozen=True)
class Arrival:
    """A node's file that was received. `temp`: its name in the staging folder; None when equal bytes came from another
    node."""

    node: int
    path: str
    stamp: Stamp
    sha256: str
    temp: str | None = None


@dataclass(frozen=True)
class Held:
    """A node's file that is home: its stamp on the node, its checksum, and its place in out/."""

    stamp: Stamp
    sha256: str
    at: str


@dataclass(frozen=True)
class Written:
    """A file that gpuops wrote in out/, for a path of the run. `looks`: the stamps it may have while no person changed
    it."""

    path: str
    sha256: str
    looks: tuple[Stamp, ...]


@dataclass
class Memory:
    """The content of `.gpuops.json`: per path what each node gave, and per place what was written."""

    held: dict[str, dict[int, Held]] = field(default_factory=dict)
    written: dict[str, Written] = field(default_factory=dict)
    key: Callable[[str], str] = field(default=str, repr=False, compare=False)
    """Maps places that this computer takes for the same file to equal keys."""
    _places: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    _folders: set[str] = field(default_factory=set, init=False, repr=False, compare=False)
    """Keys of folders of files that are about to be renamed into place, which are not on the disk yet."""

    def __post_init__(self) -> None:
        self._places = {self.key(place): place for place in self.written}

    def owner(self, place: str) -> str | None:
        """The path whose file has this place, or a place with the same key; None where it is free."""
        written = self.written.get(self._places.get(self.key(place), ""))
        return written.path if written else None

    def becomes_folder(self, place: str) -> bool:
        return self.key(place) in self._folders

    def announce(self, place: str, written: Written) -> None:
        """A file is about to be renamed to `place`."""
        self.written[place] = written
        self._places[self.key(place)] = place
        self._folders |= {self.key(folder.as_posix()) for folder in PurePosixPath(place).parents[:-1]}

    @classmethod
    def parse(cls, raw: Mapping[str, Any], key: Callable[[str], str] = str) -> Memory:
        held = {
            path: {int(node): Held(tuple(stamp), sha256, at) for node, (stamp, sha256, at) in nodes.items()}
            for path, nodes in raw.get("held", {}).items()
        }
        written = {
            place: Written(path, sha256, tuple(tuple(look) for look in looks))
            for place, (path, sha256, looks) in raw.get("written", {}).items()
        }
        return cls(held, written, key)

    def dump(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "held": {
                path: {str(node): [held.stamp, held.sha256, held.at] for node, held in nodes.items()}
                for path, nodes in self.held.items()
            },
            "written": {
                place: [written.path, written.sha256, written.looks] for place, written in self.written.items()
            },
        }


@dataclass(frozen=True)
class Move:
    """A staged file that is about to be renamed to `place` in out/, for a path of the run."""

    temp: str
    place: str
    path: str
    sha256: str
    wanted: str
    """The place that the path should have; `place` differs where that is taken."""


def choose_places(path: str, sums: Mapping[int, str]) -> dict[str, str]:
    """SHA-256 -> place in out/, for one path and each node's checksum of it."""
    leaders: dict[str, int] = {}
    for node in sorted(sums):
        leaders.setdefault(sums[node], node)
    lowest = min(sums)
    return {sha256: path if node == lowest else f"node{node}/{path}" for sha256, node in leaders.items()}


def is_beside(place: str, wanted: str) -> bool:
    """Whether a place is `<wanted>.new`, `<wanted>.new.new`, …"""
    rest = place
    while rest != wanted and rest.endswith(".new"):
        rest = rest[: -len(".new")]
    return rest == wanted != place


def inherited_arrivals(memory: Memory, handed: Mapping[int, Mapping[str, int]]) -> list[Arrival]:
    """Arrivals of files that ended nodes had handed over; a later version from such a node itself stays."""
    found = []
    for holder, files in sorted(handed.items()):
        for path, node in sorted(files.items()):
            versions = memory.held.get(path, {})
            held, own = versions.get(holder), versions.get(node)
            if held is not None and (own is None or own.stamp[1] < held.stamp[1]):
                found.append(Arrival(node, path, held.stamp, held.sha256))
    return found
