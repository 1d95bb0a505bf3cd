"""What a node has kept of a run elsewhere (docs/protocol.md: Sink), from a stream of its archive into files of ours."""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

from gpuops.errors import NodeError
from gpuops.results.home import local_errors
from gpuops.results.memory import Arrival
from gpuops.results.plan import is_inside
from gpuops.system import replace

if TYPE_CHECKING:
    from gpuops.answers import Result

SAFE = "safe.json"
RESULT = "result.json"
BLOCK = 1 << 20
DOCUMENT = 256 << 20
"""No document of ours is longer."""


class Source(Protocol):
    def read(self, count: int, /) -> bytes: ...


@dataclass
class Unpacked:
    """What came of one node: its result, its files, its logs by stream, and how many files are not in the archive."""

    result: Result | None = None
    arrivals: list[Arrival] = field(default_factory=list)
    logs: dict[str, Path] = field(default_factory=dict)
    missing: int = 0


@dataclass
class _File:
    temp: Path
    size: int
    sha256: str


def unpack(source: Source, node: int, folder: Path, told: Callable[[int], None]) -> Unpacked:
    """Read an archive to its end into `folder`, and hold each file against what the node says it sent.

    Raises NodeError where they differ or the archive is none of ours, LocalDisk, and what `source` raises.
    """
    from gpuops import answers

    files: dict[str, _File] = {}
    documents: dict[str, Any] = {}
    try:
        with tarfile.open(mode="r|", fileobj=cast("IO[bytes]", source), bufsize=BLOCK, encoding="utf-8",
                          errors="surrogateescape") as tar:  # fmt: skip
            for member in tar:
                if not member.isreg() or not is_inside(member.name):
                    continue
                content = cast("IO[bytes]", tar.extractfile(member))
                temp = folder / f"{node}-{len(files)}"
                files[member.name] = _store(temp, content, told)
                if member.name in (SAFE, RESULT):
                    documents[member.name] = _document(temp)
        said: answers.Kept = answers.shaped(documents[SAFE], answers.Kept)
        rows = {name: (size, sha256, mtime_ns) for name, size, sha256, mtime_ns in said["files"]}
    except (tarfile.TarError, EOFError, KeyError, ValueError, OverflowError) as error:
        raise NodeError(
            f"what node{node} kept is no whole archive of gpuops ({type(error).__name__})", "look at it by hand"
        ) from error
    _verify(node, files, rows)
    return _sorted(node, files, rows, answers.result(documents.get(RESULT)), said.get("missing") or 0)


def _store(temp: Path, content: IO[bytes], told: Callable[[int], None]) -> _File:
    digest, size = hashlib.sha256(), 0
    with local_errors(temp):
        file = temp.open("wb")
    with file:
        while block := content.read(BLOCK):
            digest.update(block)
            size += len(block)
            with local_errors(temp):
                file.write(block)
            told(len(block))
    return _File(temp, size, digest.hexdigest())


def _document(path: Path) -> Any:
    from gpuops import answers

    return answers.parsed(path.read_bytes()) if path.stat().st_size <= DOCUMENT else None


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
    node: int, files: dict[str, _File], rows: dict[str, tuple[int, Any, int]], result: Result | None, missing: int
) -> Unpacked:
    found = Unpacked(result, missing=missing)
    for name, (size, _, mtime_ns) in rows.items():
        file, (kind, _, path) = files[name], name.partition("/")
        with local_errors(file.temp), suppress(OverflowError):  # a time that no file can have
            os.utime(file.temp, ns=(mtime_ns, mtime_ns))
        if kind == "out" and path:
            found.arrivals.append(Arrival(node, path, (size, mtime_ns), file.sha256, file.temp))
        elif kind == "logs" and path:
            found.logs[path] = file.temp
    return found


def keep_longer(there: Path, here: Path) -> None:
    """Logs only grow: what is here is the beginning of what is there. Raises LocalDisk."""
    with local_errors(here):
        if not here.exists() or there.stat().st_size > here.stat().st_size:
            here.parent.mkdir(parents=True, exist_ok=True)
            replace(there, here)
