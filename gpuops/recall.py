"""What a run's nodes have kept in a bucket comes home, as if it came from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gpuops import bucket
from gpuops.errors import GpuopsError, LocalDisk
from gpuops.ledger import RunRow
from gpuops.progress import Progress
from gpuops.results import RunHome
from gpuops.results.archive import is_result, keep_longer, unpack
from gpuops.results.folder import OutFolder
from gpuops.results.memory import Arrival
from gpuops.world import World


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

    One whose archive is not as the node says, or cannot be read, keeps no other's files away: its error is the second
    of what is returned. Raises LocalDisk.
    """
    home, sink, place = RunHome(row.home), row.request["sink"], str(row.facts["bucket"]["place"])
    home.create()
    out = OutFolder(home)
    out.clear_dead()
    brought: dict[int, Brought] = {}
    arrivals: list[Arrival] = []
    errors: list[GpuopsError] = []

    @contextmanager
    def noted() -> Iterator[None]:
        try:
            yield
        except LocalDisk:
            raise
        except GpuopsError as error:
            errors.append(error)

    with progress.during(f"fetching what {row.name} kept in {place}"), out.staging() as staging:
        archives: dict[int, bucket.Download] = {}
        for node in nodes:
            with noted():
                if there := bucket.open_archive(world, sink, place, node):
                    archives[node] = there
        total = sum(one.size for one in archives.values())
        for node, archive in archives.items():
            before = sum(one.size for other, one in archives.items() if other < node)
            told = lambda _size, at=archive, done=before: progress.advance(done + at.at, total, "results")  # noqa: E731
            with noted():
                found = unpack(archive, node, staging, told)
                for stream, path in found.logs.items():
                    keep_longer(path, home.log(node, stream))
                memory = out.memory()
                arrivals += [one for one in found.arrivals if not out.is_home(memory, node, one.path, one.stamp)]
                brought[node] = Brought(found.result if is_result(found.result) else None, found.missing)
        if total:
            progress.advance(total, total, "results")
        for conflict in out.publish(arrivals, staging):
            progress.say(conflict)
    return brought, errors


def lacking(brought: Mapping[int, Brought]) -> str:
    """What nodes had no time for, or could not read; empty where there is nothing."""
    short = {node: one.missing for node, one in brought.items() if one.missing}
    return "; ".join(f"node{node} could not keep {count} file{'s' * (count != 1)}" for node, count in short.items())
