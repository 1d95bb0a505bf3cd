"""What a node has kept of a run elsewhere (docs/protocol.md: Sink), from a stream of its archive into files of ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpuops.core.errors import NodeError
from gpuops.core.safe_folder import Readable, SafeFolder, local_errors, may_come
from gpuops.sync.memory import Arrival
from gpuops.sync.run_folder import DOCUMENT, STREAM, RunHome
from gpuops.transport.tarmembers import Content, Member, TarError, members

if TYPE_CHECKING:
    from gpuops.transport.answers import Result

SAFE = "safe.json"
RESULT = "result.json"


@dataclass
class Unpacked:
    """What came of one node: its result, its files, its logs by stream (as names in the folder they were unpacked to),
    and how many files are not in the archive, or cannot be named here."""

    result: Result | None = None
    arrivals: list[Arrival] = field(default_factory=list)
    logs: dict[str, str] = field(default_factory=dict)
    missing: int = 0


@dataclass
class _File:
    temp: str
    size: int
    sha256: str


def unpack(source: Readable, node: int, folder: SafeFolder, told: Callable[[int], None]) -> Unpacked:
    """Read an archive to its end into `folder`, and hold each file against what the node says it sent.

    Raises NodeError where they differ or the archive is none of ours, LocalDisk, and what `source` raises.
    """
    from gpuops.transport import answers

    files: dict[str, _File] = {}
    documents: dict[str, Any] = {}
    try:
        for member, content in members(source):
            if member.link is None and may_come(member.name):
                if member.name in files:
                    raise TarError(f"{member.name[:200]!r} is in it twice")
                files[member.name] = _store(folder, f"{node}-{len(files)}", member, content, told)
                if member.name in (SAFE, RESULT):
                    documents[member.name] = _document(folder, files[member.name])
        said: answers.Kept = answers.shaped(documents[SAFE], answers.Kept)
        rows = {name: (size, sha256, mtime_ns) for name, size, sha256, mtime_ns in said["files"]}
        refused = {name for name in rows if not _has_place(name)}
        missing = (said.get("missing") or 0) + len(refused)
    except (TarError, KeyError, ValueError) as error:
        why = str(error) if isinstance(error, TarError) else f"{SAFE} is none of ours"
        raise NodeError(f"what node{node} kept is no whole archive of gpuops: {why}", "look at it by hand") from error
    rows = {name: row for name, row in rows.items() if name not in refused}
    _verify(node, files, rows)
    return _sorted(folder, node, files, rows, answers.result(documents.get(RESULT)), missing)


def _has_place(name: str) -> bool:
    """Whether a file of that name can lie in a run's folder here."""
    kind, _, path = name.partition("/")
    return may_come(name) and (kind != "logs" or STREAM.fullmatch(path) is not None)


def _store(folder: SafeFolder, temp: str, member: Member, content: Content, told: Callable[[int], None]) -> _File:
    with local_errors(folder.path / temp):
        return _File(temp, member.size, folder.create(temp, content, member.size, told=told))


def _document(folder: SafeFolder, file: _File) -> Any:
    from gpuops.transport import answers

    if file.size > DOCUMENT:
        raise TarError(f"a document of it has {file.size:,} bytes")
    with local_errors(folder.path), folder.reading(file.temp) as content:
        return answers.parsed(content.read(DOCUMENT))


def _verify(node: int, files: dict[str, _File], rows: dict[str, tuple[int, Any, int]]) -> None:
    wrong = [
        name
        for name, (size, sha256, _) in rows.items()
        if name not in files or files[name].size != size or sha256 not in (None, files[name].sha256)
    ]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise NodeError(
            f"what node{node} kept could not be verified: {', '.join(wrong[:3])}{more}", "`gpuops pull` tries again"
        )


def _sorted(
    folder: SafeFolder,
    node: int,
    files: dict[str, _File],
    rows: dict[str, tuple[int, Any, int]],
    result: Result | None,
    missing: int,
) -> Unpacked:
    found = Unpacked(result, missing=missing)
    for name, (size, _, mtime_ns) in rows.items():
        file, (kind, _, path) = files[name], name.partition("/")
        folder.date(file.temp, mtime_ns)
        if kind == "out" and path:
            found.arrivals.append(Arrival(node, path, (size, mtime_ns), file.sha256, file.temp))
        elif kind == "logs" and path:
            found.logs[path] = file.temp
    return found


def keep_longer(folder: SafeFolder, name: str, home: RunHome, node: int, stream: str) -> None:
    """Logs only grow: what is here is the beginning of what is there, in `folder`. Raises LocalDisk, NodeError."""
    log = home.log_name(node, stream)
    with local_errors(home.path / log):
        there = folder.size(name)
        if there is not None and there > (home.folder.size(log) or -1):
            home.folder.move(folder, name, log)
