"""What this computer knows without its ledger: clusters that it has traces of, and with whom it ever rented."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from gpuops.core.errors import LocalDisk

RENTED = "rented"
"""A name a line: the providers that were ever asked for machines. It outlives a ledger that is lost."""


def orphans(home: Path, live: Callable[[], Iterable[str]]) -> list[str]:
    """Clusters that this computer has names or nodes of and that are none of `live`: a ledger was lost.

    `live` is asked last, since a cluster is in the ledger before anything of it is here.
    """
    names = {path.stem for path in home.glob("ssh/*.conf")}
    names |= {path.parent.name for path in home.glob("local/*/n*") if path.name[1:].isdigit()}
    return sorted(names.difference(live())) if names else []


def note_rented(home: Path, provider: str) -> None:
    """To be called before a provider is asked for machines. Raises LocalDisk where it cannot be written down."""
    if provider in ever_rented(home):
        return
    try:
        with (home / RENTED).open("a", encoding="utf-8") as file:
            file.write(f"{provider}\n")
    except OSError as error:
        raise LocalDisk(
            f"{home / RENTED} cannot be written: {error.strerror}", "free some space on that disk"
        ) from error


def ever_rented(home: Path) -> set[str]:
    try:
        return set((home / RENTED).read_text(encoding="utf-8", errors="replace").split())
    except OSError:
        return set()
