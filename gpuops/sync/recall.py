"""What a run's nodes have kept in a bucket comes home, as if it came from them."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gpuops.core.context import World
from gpuops.core.errors import GpuopsError, LocalDisk, NodeError
from gpuops.core.output import amount
from gpuops.core.progress import Progress
from gpuops.core.safe_folder import SPARE, SafeFolder
from gpuops.ledger.store import RunRow
from gpuops.sync import RunHome, bucket
from gpuops.sync.archive import keep_longer, unpack
from gpuops.sync.memory import Arrival
from gpuops.sync.outputs import OutFolder

FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Brought:
    """Of one node: its result, where it has one, and how many files were not in the bucket."""

    result: Mapping[str, Any] | None
    missing: int


def is_kept(row: RunRow) -> bool:
    """Whether a run's nodes were told to keep its results in a bucket."""
    return bool((row.request.get("sink") or {}).get("bucket") and (row.facts.get("bucket") or {}).get("place"))


def bring(
    world: World, row: RunRow, nodes: Iterable[int], progress: Progress
) -> tuple[dict[int, Brought], list[GpuopsError]]:
    """Bring home what those nodes have kept; those of which nothing is there are left out.

    One whose archive is not as the node says, cannot be read, or finds no room here, keeps no other's files away: its
    error is in the second of what is returned. Raises LocalDisk.
    """
    home, sink, place = RunHome(row.home), row.request["sink"], str(row.facts["bucket"]["place"])
    home.create()
    out = OutFolder(home)
    out.clear_dead()
    brought: dict[int, Brought] = {}
    arrivals: list[Arrival] = []
    errors: dict[int, GpuopsError] = {}
    with progress.during(f"fetching what {row.name} kept in {place}"), out.staging() as staging:
        archives: dict[int, bucket.Download] = {}
        for node in nodes:
            with _noted(errors, node):
                if there := bucket.open_archive(world, sink, place, node):
                    archives[node] = there
        sizes = {node: one.size for node, one in archives.items()}
        chosen = fitting(sizes, shutil.disk_usage(home.path).free)
        total, done = sum(sizes[node] for node in chosen), 0
        for node in chosen:
            told = _teller(world, progress, node, archives[node], done, total)
            try:
                with _noted(errors, node):
                    found = unpack(archives[node], node, staging, told)
                    for stream, name in found.logs.items():
                        keep_longer(staging, name, home, node, stream)
                    memory = out.memory()
                    arrivals += [one for one in found.arrivals if not out.is_home(memory, node, one.path, one.stamp)]
                    brought[node] = Brought(found.result, found.missing)
            except LocalDisk as error:
                if getattr(error.__cause__, "errno", None) not in FULL:
                    raise
                break  # somebody else took the room, and the next one is no smaller
            finally:
                if node not in brought:
                    _clear(staging, node)
            done += sizes[node]
        if total:
            progress.advance(total, total, "results")
        for conflict in out.publish(arrivals, staging):
            progress.say(conflict)
    if left := {node: size for node, size in sizes.items() if node not in brought and node not in errors}:
        errors[min(left)] = no_room(row.name, place, left, shutil.disk_usage(home.path).free)
    return brought, [errors[node] for node in sorted(errors)]


@contextmanager
def _noted(errors: dict[int, GpuopsError], node: int) -> Iterator[None]:
    try:
        yield
    except LocalDisk:
        raise
    except GpuopsError as error:
        errors[node] = error


def _teller(
    world: World, progress: Progress, node: int, archive: bucket.Download, done: int, total: int
) -> Callable[[int], None]:
    """Told of bytes, says how far all of it is. A second signal ends the wait: raises NodeError."""

    def told(_size: int) -> None:
        if world.signals.hurry:
            raise NodeError(f"what node{node} kept was not waited for any longer", "`gpuops pull` fetches it")
        progress.advance(done + archive.at, total, "results")

    return told


def _clear(staging: SafeFolder, node: int) -> None:
    """What came of an archive that did not come whole takes no room from the others."""
    for name in staging.names():
        if name.startswith(f"{node}-"):
            staging.remove(name)


def fitting(sizes: Mapping[int, int], free: int) -> list[int]:
    """The nodes whose archives find room together, the smallest first: so most of them come."""
    room, found = free - SPARE, []
    for node in sorted(sizes, key=lambda node: (sizes[node], node)):
        room -= sizes[node]
        if room < 0:
            break
        found.append(node)
    return found


def no_room(run: str, place: str, left: Mapping[int, int], free: int) -> LocalDisk:
    """What stays in the bucket since this disk has no room for it."""
    names = " and ".join(f"node{node} ({amount(size)})" for node, size in sorted(left.items()))
    return LocalDisk(
        f"what {names} kept stays in {place}: {amount(free)} are free on this computer's disk",
        f"free some space, then fetch it: gpuops pull {run}",
    )


def announced(row: RunRow, cluster: str) -> str:
    """What is said where nodes that live would bill while that is fetched."""
    where = f"what lost nodes of {row.name} kept is in {row.facts['bucket']['place']}"
    return f"{where}: it is fetched once {cluster} has ended (or later: gpuops pull {row.name})"


def waiting(row: RunRow, nodes: Sequence[int]) -> str:
    """What is there, and is fetched when nothing bills any more."""
    names = " and ".join(f"node{node}" for node in nodes)
    return f"what {names} kept is in {row.facts['bucket']['place']}"


def lacking(brought: Mapping[int, Brought]) -> str:
    """What nodes had no time for, or could not read; empty where there is nothing."""
    short = {node: one.missing for node, one in brought.items() if one.missing}
    return "; ".join(f"node{node} could not keep {count} file{'s' * (count != 1)}" for node, count in short.items())
