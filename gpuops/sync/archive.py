"""Download of what nodes kept of a run in a bucket (docs/protocol.md: Sink): one archive per node.

`fetch_archives` downloads the archives that this disk has room for, `unpack` verifies each against the list of files
that the node wrote into it, and `merged_outputs` publishes the files. A damaged archive does not keep other nodes'
files from being fetched.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpuops.core.context import Context
from gpuops.core.errors import GpuopsError, LocalDisk, NodeError
from gpuops.core.format import amount, first_few, plural
from gpuops.core.reporting import Progress
from gpuops.core.safe_folder import DISK_RESERVE_BYTES, Readable, SafeFolder, local_errors
from gpuops.core.safe_paths import may_come
from gpuops.core.sink import BucketSink, find_bucket
from gpuops.core.timings import Whose
from gpuops.ledger.store import RunRow
from gpuops.sync import bucket
from gpuops.sync.merged_outputs import OutFolder
from gpuops.sync.merged_outputs_record import Arrival
from gpuops.sync.project_files import printable_path
from gpuops.sync.run_folder import MAX_DOCUMENT_BYTES, STREAM_NAME, RunHome
from gpuops.transport.tar_reader import Content, Member, TarError, members

if TYPE_CHECKING:
    from gpuops.transport.schemas import ResultDocument


SAFE_DOCUMENT = "safe.json"
RESULT_DOCUMENT = "result.json"
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass
class Unpacked:
    """The content of one node's archive, in the staging folder."""

    result: ResultDocument | None = None
    arrivals: list[Arrival] = field(default_factory=list)
    logs: dict[str, str] = field(default_factory=dict)
    """Stream -> its name in the staging folder."""
    missing: int = 0
    """How many files are not in the archive, or cannot have their name here."""


@dataclass
class _File:
    temp: str
    size: int
    sha256: str


def unpack(source: Readable, node: int, folder: SafeFolder, on_bytes: Callable[[int], None]) -> Unpacked:
    """Read an archive to its end into `folder`, and verify each file against the node's list.

    `on_bytes` is called with the number of bytes of each block. Raises NodeError where a file differs or the archive is
    malformed, LocalDisk, and what `source` raises.
    """
    from gpuops.transport import validation
    from gpuops.transport.program_schemas import ArchiveListing

    files: dict[str, _File] = {}
    documents: dict[str, Any] = {}
    try:
        for member, content in members(source):
            if member.link is None and may_come(member.name):
                if member.name in files:
                    raise TarError(f"{member.name[:200]!r} is in it twice")
                files[member.name] = _store_file(folder, f"{node}-{len(files)}", member, content, on_bytes)
                if member.name in (SAFE_DOCUMENT, RESULT_DOCUMENT):
                    documents[member.name] = _read_document(folder, files[member.name])
        listing: ArchiveListing = validation.convert(documents[SAFE_DOCUMENT], ArchiveListing)
        rows = {name: (size, sha256, mtime_ns) for name, size, sha256, mtime_ns in listing.files}
        refused = {name for name in rows if not _has_place(name)}
        missing = (listing.missing or 0) + len(refused)
    except (TarError, KeyError, ValueError) as error:
        why = str(error) if isinstance(error, TarError) else f"{SAFE_DOCUMENT} is none of ours"
        raise NodeError(f"what node{node} kept is no whole archive of gpuops: {why}", "look at it by hand") from error
    rows = {name: row for name, row in rows.items() if name not in refused}
    _verify(node, files, rows)
    return _sort_files(folder, node, files, rows, validation.parse_result(documents.get(RESULT_DOCUMENT)), missing)


def _has_place(name: str) -> bool:
    """Whether a file of that name can lie in a run's folder here."""
    kind, _, path = name.partition("/")
    return may_come(name) and (kind != "logs" or STREAM_NAME.fullmatch(path) is not None)


def _store_file(
    folder: SafeFolder, temp: str, member: Member, content: Content, on_bytes: Callable[[int], None]
) -> _File:
    with local_errors(folder.path / temp):
        return _File(temp, member.size, folder.create(temp, content, member.size, on_bytes=on_bytes))


def _read_document(folder: SafeFolder, file: _File) -> Any:
    from gpuops.transport import validation

    if file.size > MAX_DOCUMENT_BYTES:
        raise TarError(f"a document of it has {file.size:,} bytes")
    with local_errors(folder.path), folder.reading(file.temp) as content:
        return validation.parse_json(content.read(MAX_DOCUMENT_BYTES))


def _verify(node: int, files: dict[str, _File], rows: dict[str, tuple[int, Any, int]]) -> None:
    wrong = [
        name
        for name, (size, sha256, _) in rows.items()
        if name not in files or files[name].size != size or sha256 not in (None, files[name].sha256)
    ]
    if wrong:
        raise NodeError(
            f"what node{node} kept could not be verified: {first_few([*map(printable_path, wrong)], 3)}",
            "`gpuops pull` tries again",
        )


def _sort_files(
    folder: SafeFolder,
    node: int,
    files: dict[str, _File],
    rows: dict[str, tuple[int, Any, int]],
    result: ResultDocument | None,
    missing: int,
) -> Unpacked:
    unpacked = Unpacked(result, missing=missing)
    for name, (size, _, mtime_ns) in rows.items():
        file, (kind, _, path) = files[name], name.partition("/")
        folder.date(file.temp, mtime_ns)
        if kind == "out" and path:
            unpacked.arrivals.append(Arrival(node, path, (size, mtime_ns), file.sha256, file.temp))
        elif kind == "logs" and path:
            unpacked.logs[path] = file.temp
    return unpacked


def replace_shorter_log(folder: SafeFolder, name: str, home: RunHome, node: int, stream: str) -> None:
    """Replace a log by the longer copy `name` in `folder`: logs only grow. Raises LocalDisk, NodeError."""
    log = home.log_name(node, stream)
    with local_errors(home.path / log):
        size = folder.size(name)
        if size is not None and size > (home.folder.size(log) or -1):
            home.folder.move(folder, name, log)


@dataclass(frozen=True)
class FetchedNode:
    """One node's archive that was fetched."""

    result: ResultDocument | None
    missing: int
    """How many files the node could not keep in the bucket."""


def is_kept_in_bucket(row: RunRow) -> bool:
    """Whether a run's nodes keep its results in a bucket."""
    return find_bucket(row.request.get("sink")) is not None and bool(row.facts.bucket_place)


def fetch_archives(
    ctx: Context, row: RunRow, nodes: Iterable[int], progress: Progress
) -> tuple[dict[int, FetchedNode], list[GpuopsError]]:
    """Fetch the archives of those nodes. Returns what came, by node, and the errors of the nodes whose archive is
    damaged, unreadable or too large for this disk; a node without an archive is in neither. Raises LocalDisk.
    """
    home, sink, place = RunHome(row.home), find_bucket(row.request.get("sink")), row.facts.bucket_place
    if sink is None:
        return {}, []
    home.create()
    out = OutFolder(home)
    out.clear_dead()
    fetched: dict[int, FetchedNode] = {}
    arrivals: list[Arrival] = []
    errors: dict[int, GpuopsError] = {}
    with progress.during(f"fetching what {row.name} kept in {place}", whose=Whose.NETWORK), out.staging() as staging:
        archives = _open_archives(ctx, sink, place, nodes, errors)
        sizes = {node: archive.size for node, archive in archives.items()}
        chosen = select_fitting(sizes, shutil.disk_usage(home.path).free)
        total, done = sum(sizes[node] for node in chosen), 0
        for node in chosen:
            on_bytes = _progress_callback(ctx, progress, node, archives[node], done, total)
            try:
                with _collect_errors(errors, node):
                    unpacked = unpack(archives[node], node, staging, on_bytes)
                    for stream, name in unpacked.logs.items():
                        replace_shorter_log(staging, name, home, node, stream)
                    memory = out.memory()
                    arrivals += [new for new in unpacked.arrivals if not out.is_home(memory, node, new.path, new.stamp)]
                    fetched[node] = FetchedNode(unpacked.result, unpacked.missing)
            except LocalDisk as error:
                if getattr(error.__cause__, "errno", None) not in DISK_FULL:
                    raise
                break  # another program took the room, and the next archive is no smaller
            finally:
                if node not in fetched:
                    _remove_partial(staging, node)
            done += sizes[node]
        if total:
            progress.advance(total, total, "results")
        for conflict in out.publish(arrivals, staging):
            progress.say(conflict)
    if skipped := {node: size for node, size in sizes.items() if node not in fetched and node not in errors}:
        errors[min(skipped)] = disk_full_error(row.name, place, skipped, shutil.disk_usage(home.path).free)
    return fetched, [errors[node] for node in sorted(errors)]


def _open_archives(
    ctx: Context, sink: BucketSink, place: str, nodes: Iterable[int], errors: dict[int, GpuopsError]
) -> dict[int, bucket.ArchiveDownload]:
    """The archives that can be read, by node; the errors of others go into `errors`."""
    archives: dict[int, bucket.ArchiveDownload] = {}
    for node in nodes:
        with _collect_errors(errors, node):
            if archive := bucket.open_archive(ctx, sink, place, node):
                archives[node] = archive
    return archives


@contextmanager
def _collect_errors(errors: dict[int, GpuopsError], node: int) -> Iterator[None]:
    try:
        yield
    except LocalDisk:
        raise
    except GpuopsError as error:
        errors[node] = error


def _progress_callback(
    ctx: Context, progress: Progress, node: int, archive: bucket.ArchiveDownload, done: int, total: int
) -> Callable[[int], None]:
    """A callback that shows the progress of all archives; it raises NodeError after a second signal."""

    def advance(_size: int) -> None:
        if ctx.signals.hurry:
            raise NodeError(f"what node{node} kept was not waited for any longer", "`gpuops pull` fetches it")
        progress.advance(done + archive.position, total, "results")

    return advance


def _remove_partial(staging: SafeFolder, node: int) -> None:
    """Remove the files of an archive that failed, so that they take no room from the others."""
    for name in staging.names():
        if name.startswith(f"{node}-"):
            staging.remove(name)


def select_fitting(sizes: Mapping[int, int], free: int) -> list[int]:
    """The nodes whose archives have room together, the smallest first, so that most of them fit."""
    room, fitting = free - DISK_RESERVE_BYTES, []
    for node in sorted(sizes, key=lambda node: (sizes[node], node)):
        room -= sizes[node]
        if room < 0:
            break
        fitting.append(node)
    return fitting


def disk_full_error(run: str, place: str, skipped: Mapping[int, int], free: int) -> LocalDisk:
    """The error for archives that stay in the bucket since this disk has no room for them."""
    names = " and ".join(f"node{node} ({amount(size)})" for node, size in sorted(skipped.items()))
    return LocalDisk(
        f"what {names} kept stays in {place}: {amount(free)} are free on this computer's disk",
        f"free some space, then fetch it: gpuops pull {run}",
    )


def describe_deferred_fetch(row: RunRow, cluster: str) -> str:
    """The sentence that says why archives are fetched only after the cluster has ended: living nodes bill meanwhile."""
    kept = f"what lost nodes of {row.name} kept is in {row.facts.bucket_place}"
    return f"{kept}: it is fetched once {cluster} has ended (or later: gpuops pull {row.name})"


def describe_waiting(row: RunRow, nodes: Sequence[int]) -> str:
    """The sentence on archives that are fetched once nothing bills any more."""
    names = " and ".join(f"node{node}" for node in nodes)
    return f"what {names} kept is in {row.facts.bucket_place}"


def describe_missing(fetched: Mapping[int, FetchedNode]) -> str:
    """The sentence on files that nodes could not keep, for lack of time or permission; empty without any."""
    missing = {node: archive.missing for node, archive in fetched.items() if archive.missing}
    return "; ".join(f"node{node} could not keep {plural(count, 'file')}" for node, count in missing.items())
