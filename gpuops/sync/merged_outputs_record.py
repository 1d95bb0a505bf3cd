"""The record of `runs/<run>/out/`: the files of each node that are home, the files that gpuops wrote, and the place of
each path. Pure: no disk is touched; `merged_outputs_journal` keeps it in a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from gpuops.core.safe_paths import is_inside

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
    """What is known of an `out/`."""

    held: dict[str, dict[int, Held]] = field(default_factory=dict)
    """Path -> node -> its file."""
    written: dict[str, Written] = field(default_factory=dict)
    """Place in out/ -> the file that gpuops wrote there."""
    key: Callable[[str], str] = field(default=str, repr=False, compare=False)
    """Maps places that this computer takes for the same file to equal keys."""
    _places: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    _places_of: dict[str, set[str]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Path -> the places in `written` that are its."""
    _folders: set[str] = field(default_factory=set, init=False, repr=False, compare=False)
    """Keys of folders of files that are about to be renamed into place, which are not on the disk yet."""

    def __post_init__(self) -> None:
        for place, written in self.written.items():
            self._index(place, written)

    def _index(self, place: str, written: Written) -> None:
        self._places[self.key(place)] = place
        self._places_of.setdefault(written.path, set()).add(place)

    def owner(self, place: str) -> str | None:
        """The path whose file has this place, or a place with the same key; None where it is free."""
        written = self.written.get(self._places.get(self.key(place), ""))
        return written.path if written else None

    def becomes_folder(self, place: str) -> bool:
        """Whether a file below `place` is about to be renamed into place."""
        return self.key(place) in self._folders

    def paths(self) -> list[str]:
        """All paths of which something is known."""
        return list(self.held | self._places_of)

    def places_of(self, path: str) -> list[str]:
        """Where gpuops wrote files of this path."""
        return sorted(self._places_of.get(path, ()))

    def announce(self, place: str, written: Written) -> None:
        """Record a file that is about to be renamed to `place`."""
        self.record(place, written)
        self._folders |= {self.key(folder.as_posix()) for folder in PurePosixPath(place).parents[:-1]}

    def record(self, place: str, written: Written) -> None:
        """Record a file that gpuops wrote."""
        self.drop(place)
        self.written[place] = written
        self._index(place, written)

    def drop(self, place: str) -> None:
        """Forget the file that gpuops wrote at a place, if it did."""
        written = self.written.pop(place, None)
        if written:
            self._places_of[written.path].discard(place)

    def settle(self) -> None:
        """What was announced is in place, or never will be."""
        self._folders.clear()

    @classmethod
    def parse(cls, raw: Mapping[str, Any], key: Callable[[str], str] = str) -> Memory:
        """The record of one JSON document, as earlier versions wrote it. Raises ValueError, TypeError, AttributeError
        for what is none, or leads out of the folder."""
        held = {path: _parse_held(nodes) for path, nodes in raw.get("held", {}).items()}
        written = {
            check_place(place): Written(path, sha256, _parse_stamps(stamps))
            for place, (path, sha256, stamps) in raw.get("written", {}).items()
        }
        return cls(held, written, key)

    def apply(self, line: Mapping[str, Any]) -> None:
        """Take a line of the journal: all that is known of one path from then on. Raises ValueError, TypeError,
        AttributeError, KeyError for what is none, or leads out of the folder, and changes nothing then."""
        path = line["path"]
        held = _parse_held(line["held"])
        written = {
            check_place(place): Written(path, sha256, _parse_stamps(stamps))
            for place, (sha256, stamps) in line["written"].items()
        }
        for place in self.places_of(path):
            self.drop(place)
        for place, one in written.items():
            self.record(place, one)
        self.held[path] = held

    def describe(self, path: str) -> dict[str, object]:
        """The line of the journal that `apply` takes."""
        held, written = self.held.get(path, {}), {place: self.written[place] for place in self.places_of(path)}
        return {
            "path": path,
            "held": {str(node): [one.stamp, one.sha256, one.place] for node, one in held.items()},
            "written": {place: [one.sha256, one.stamps] for place, one in written.items()},
        }


def _parse_held(nodes: Mapping[str, Any]) -> dict[int, Held]:
    return {int(node): Held(tuple(stamp), sha256, check_place(place)) for node, (stamp, sha256, place) in nodes.items()}


def _parse_stamps(stamps: Any) -> tuple[Stamp, ...]:
    return tuple(tuple(stamp) for stamp in stamps)


def check_place(place: Any) -> str:
    """Raises ValueError for a place outside the folder: the record may have come with a repository."""
    if not isinstance(place, str) or not is_inside(place):
        raise ValueError(place)
    return place


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
