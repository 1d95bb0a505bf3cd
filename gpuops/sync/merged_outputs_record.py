"""The record of `runs/<run>/out/` (`.gpuops.json`): the files of each node that are home, the files that gpuops wrote,
and the place of each path. Pure: no disk is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

Stamp = tuple[int, int]
"""Size in bytes and mtime in ns."""


@dataclass(frozen=True)
class Arrival:
    """A node's file that was received."""

    node: int
    path: str
    stamp: Stamp
    sha256: str
    temp: str | None = None
    """Its name in the staging folder; None when equal bytes came from another node."""


@dataclass(frozen=True)
class Held:
    """A node's file that is home."""

    stamp: Stamp
    """On the node."""
    sha256: str
    place: str
    """Its path in out/."""


@dataclass(frozen=True)
class Written:
    """A file that gpuops wrote in out/."""

    path: str
    """The run's path whose file it is."""
    sha256: str
    stamps: tuple[Stamp, ...]
    """A file with another stamp was changed by a person. Two stamps: a crash may have come before the rename."""


@dataclass
class Memory:
    """The content of `.gpuops.json`."""

    held: dict[str, dict[int, Held]] = field(default_factory=dict)
    """Path -> node -> its file."""
    written: dict[str, Written] = field(default_factory=dict)
    """Place in out/ -> the file that gpuops wrote there."""
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
        """Whether a file below `place` is about to be renamed into place."""
        return self.key(place) in self._folders

    def announce(self, place: str, written: Written) -> None:
        """Record a file that is about to be renamed to `place`."""
        self.written[place] = written
        self._places[self.key(place)] = place
        self._folders |= {self.key(folder.as_posix()) for folder in PurePosixPath(place).parents[:-1]}

    @classmethod
    def parse(cls, raw: Mapping[str, Any], key: Callable[[str], str] = str) -> Memory:
        """The record of a JSON document. Raises ValueError, TypeError, AttributeError for what is none."""
        held = {
            path: {int(node): Held(tuple(stamp), sha256, place) for node, (stamp, sha256, place) in nodes.items()}
            for path, nodes in raw.get("held", {}).items()
        }
        written = {
            place: Written(path, sha256, tuple(tuple(stamp) for stamp in stamps))
            for place, (path, sha256, stamps) in raw.get("written", {}).items()
        }
        return cls(held, written, key)

    def dump(self) -> dict[str, object]:
        """The record as a JSON document."""
        return {
            "schema": 1,
            "held": {
                path: {str(node): [held.stamp, held.sha256, held.place] for node, held in nodes.items()}
                for path, nodes in self.held.items()
            },
            "written": {
                place: [written.path, written.sha256, written.stamps] for place, written in self.written.items()
            },
        }


@dataclass(frozen=True)
class Move:
    """A staged file that is about to be renamed to `place` in out/."""

    temp: str
    """Its name in the staging folder."""
    place: str
    path: str
    """The run's path whose file it is."""
    sha256: str
    proper_place: str
    """The place that the path should have; `place` differs where that is taken."""


def choose_places(path: str, sums: Mapping[int, str]) -> dict[str, str]:
    """SHA-256 -> place in out/, for one path and each node's checksum of it."""
    leaders: dict[str, int] = {}
    for node in sorted(sums):
        leaders.setdefault(sums[node], node)
    lowest = min(sums)
    return {sha256: path if node == lowest else f"node{node}/{path}" for sha256, node in leaders.items()}


def is_beside(place: str, proper: str) -> bool:
    """Whether a place is `<proper>.new`, `<proper>.new.new`, …"""
    rest = place
    while rest != proper and rest.endswith(".new"):
        rest = rest[: -len(".new")]
    return rest == proper != place


def inherited_arrivals(memory: Memory, handed: Mapping[int, Mapping[str, int]]) -> list[Arrival]:
    """Arrivals of files that ended nodes had handed over; a later version from such a node itself stays."""
    arrivals = []
    for holder, files in sorted(handed.items()):
        for path, node in sorted(files.items()):
            versions = memory.held.get(path, {})
            held, own = versions.get(holder), versions.get(node)
            if held is not None and (own is None or own.stamp[1] < held.stamp[1]):
                arrivals.append(Arrival(node, path, held.stamp, held.sha256))
    return arrivals
