"""What a push would do to a tree as it is now, from the client's list, the record of earlier pushes, and the disk."""

from __future__ import annotations

import functools
import os
from typing import Any, Container, Mapping, NamedTuple

from gpuops.agent.files.folder import TreeFolder, blocked, checked_path, in_the_way, parent_paths, sha256
from gpuops.agent.files.push_decision import (
    ABSENT,
    BLOCKED,
    FOLDER,
    KEPT,
    NOTHING,
    SAME,
    WRITE,
    Entry,
    Found,
    Written,
    decide_verdict,
    matching_record,
)
from gpuops.agent.node import Node, Refusal, read_json, write_json


class Record(NamedTuple):
    """What we wrote into a tree, by path (`trees/<tree>.json`).

    A commit records in `pending` and `leaving`, before it acts, what it is about to write and to remove. Both are empty
    unless a commit was killed.
    """

    files: dict[str, Written]
    pending: dict[str, Written]
    leaving: list[str]

    def paths(self) -> list[str]:
        return list(dict.fromkeys([*self.files, *self.pending]))

    def part(self, paths: Container[str]) -> Record:
        """Of these paths alone."""
        return Record({path: one for path, one in self.files.items() if path in paths},
                      {path: one for path, one in self.pending.items() if path in paths},
                      [path for path in self.leaving if path in paths])  # fmt: skip

    def merged(self, other: Record) -> Record:
        """With what another one has besides."""
        return Record({**other.files, **self.files}, {**other.pending, **self.pending}, self.leaving)


def _record_path(node: Node, tree: str) -> str:
    return node.path("trees", tree + ".json")


def load_record(node: Node, tree: str) -> Record:
    return parse_record(load_document(node, tree))


def load_document(node: Node, tree: str) -> dict[str, Any]:
    """The record as it is stored."""
    return read_json(_record_path(node, tree)) or {}


def parse_record(document: Mapping[str, Any]) -> Record:
    return Record(_written(document.get("files")), _written(document.get("pending")), document.get("leaving") or [])


def store_record(node: Node, tree: str, record: Record) -> None:
    os.makedirs(node.path("trees"), exist_ok=True)
    rows = {name: {path: _row(*one) for path, one in getattr(record, name).items()} for name in ("files", "pending")}
    write_json(_record_path(node, tree), {"schema": 1, **rows, "leaving": record.leaving})


def _row(sent: Entry, here: Entry) -> tuple[Entry, Entry | None]:
    """A file here is most often exactly as it was sent, and is noted once."""
    return sent, None if here == sent else here


def _written(document: Mapping[str, Any] | None) -> dict[str, Written]:
    written = {}
    for path, (sent, here) in (document or {}).items():
        entry = Entry(*sent)
        written[path] = Written(entry, Entry(*here) if here else entry)
    return written


def parse_files(files: list[list[Any]]) -> dict[str, Entry]:
    """The client's list, by path. Raises Refusal(`bad-path`) for a list that no folder can hold."""
    wanted = {checked_path(path): Entry.parse(fields) for path, *fields in files}
    if len(wanted) != len(files):
        raise Refusal("bad-path", "a path is listed twice", "push again")
    for folder in {path.rpartition("/")[0] for path in wanted}:
        above = next((parent for parent in parent_paths(folder + "/") if parent in wanted), None)
        if above is not None:
            raise Refusal("bad-path", f"'{above}' is listed as a file and as a folder", "push again")
    return wanted


class Survey(NamedTuple):
    """The result: verdicts for wanted paths, and the state of recorded paths that are no longer wanted."""

    verdicts: dict[str, str]
    """By wanted path: WRITE, TOUCH, SAME, KEPT, ASK or CONFLICT."""
    stale: list[str]
    """Not wanted, untouched here: to be removed."""
    edited: list[str]
    """Not wanted, edited here: left as they are."""
    gone: list[str]
    """Not wanted, and absent."""
    settled: dict[str, Written]
    """The record with the effects of a killed commit."""

    def having(self, verdict: str) -> list[str]:
        return [path for path, given in self.verdicts.items() if given == verdict]


def survey(
    folder: TreeFolder, record: Record, wanted: Mapping[str, Entry], overwrite: bool, sums: Mapping[str, str]
) -> Survey:
    """Look at every path that is wanted or recorded. `sums`: SHA-256 of the client's files, by path.

    Raises Refusal(`outside`, `in-the-way`) where a wanted path leads through a link, or to a folder with files that are
    not ours.
    """
    if not record.paths() and folder.is_empty():  # a first push: each look would come to the same
        return Survey(dict.fromkeys(wanted, WRITE), [], [], [], {})
    result = Survey({}, [], [], [], dict(record.files))
    looked: dict[str, Found] = {}
    without: dict[str, Found] = {}
    for path in record.paths():
        found = looked[path] = folder.look(path, without)
        known = matching_record(found, record.pending.get(path), record.files.get(path))
        if known:
            result.settled[path] = known
        if path not in wanted:
            if known:
                result.stale.append(path)
            elif found.kind in (ABSENT, BLOCKED, FOLDER):
                result.gone.append(path)
            elif path in record.files:
                result.edited.append(path)
    leaving = set(result.stale)
    for path, entry in wanted.items():
        found = _after_leaving(folder, path, looked[path] if path in looked else folder.look(path, without), leaving)
        same = functools.partial(_same_bytes, folder, path, sums.get(path))
        last, pending = record.files.get(path), record.pending.get(path)
        result.verdicts[path] = decide_verdict(entry, found, last, pending, overwrite, same)
    return result


def _same_bytes(folder: TreeFolder, path: str, theirs: str | None) -> bool | None:
    return None if theirs is None else sha256(folder.at(path)) == theirs


def _after_leaving(folder: TreeFolder, path: str, found: Found, leaving: set[str]) -> Found:
    """What will be at `path` once the stale files are removed."""
    if found.kind == BLOCKED:
        if found.blocker in leaving:
            return NOTHING
        raise blocked(path, found)
    if found.kind == FOLDER:
        if all(below in leaving for below in folder.files_under(path)):
            return NOTHING
        raise in_the_way(path)
    return found


def is_as_pushed(folder: TreeFolder, document: Mapping[str, Any], files: list[list[Any]]) -> bool:
    """Whether a tree has just what is wanted, as an earlier push wrote it: most often, and sooner seen in the record's
    `document` and the client's list than by `survey` and `is_settled`, which come to the same."""
    recorded = document.get("files") or {}
    if not files or document.get("pending") or document.get("leaving"):  # without files the tree itself may be absent
        return False
    sent = {path: fields for path, (fields, _) in recorded.items()}
    if len(files) != len(sent) or {path: fields for path, *fields in files} != sent:
        return False
    found = folder.look_at_all(recorded)
    return all([*one.entry] == (here or fields) for one, (fields, here) in zip(found, recorded.values()))


def is_settled(record: Record, seen: Survey) -> bool:
    """Whether a push changes nothing, neither in the tree nor in its record."""
    untouched = all(verdict in (SAME, KEPT) for verdict in seen.verdicts.values())
    return untouched and not (seen.stale or seen.gone or record.pending or record.leaving)


def to_write(seen: Survey) -> list[str]:
    return seen.having(WRITE)
