"""What this computer's folder says of clusters beside the ledger, for the case that the ledger was lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from gpuops.core.errors import LocalDisk

RENTED = "rented"
"""A name a line: the providers that were ever asked for machines. It outlives a ledger that is lost."""


def find_unrecorded_clusters(home: Path, live: Callable[[], Iterable[str]]) -> list[str]:
    """Clusters that this computer has names or nodes of and that are none of `live`: a ledger was lost.

    `live` is asked last, since a cluster is in the ledger before anything of it is here.
    """
    names = {path.stem for path in home.glob("ssh/*.conf")}
    names |= {path.parent.name for path in home.glob("local/*/n*") if path.name[1:].isdigit()}
    return sorted(names.difference(live())) if names else []


def record_rented(home: Path, provider: str) -> None:
    """Record that machines are rented from a provider, before it is asked for any. Raises LocalDisk."""
    if provider in read_rented(home):
        return
    try:
        with (home / RENTED).open("a", encoding="utf-8") as file:
            file.write(f"{provider}\n")
    except OSError as error:
        raise LocalDisk(
            f"{home / RENTED} cannot be written: {error.strerror}", "free some space on that disk"
        ) from error


def read_rented(home: Path) -> set[str]:
    try:
        return set((home / RENTED).read_text(encoding="utf-8", errors="replace").split())
    except OSError:
        return set()
