"""Clusters that this computer has traces of and its ledger does not know: a look at two folders, for every command."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path


def orphans(home: Path, live: Callable[[], Iterable[str]]) -> list[str]:
    """Clusters that this computer has names or nodes of and that are none of `live`: a ledger was lost.

    `live` is asked last, since a cluster is in the ledger before anything of it is here.
    """
    names = {path.stem for path in home.glob("ssh/*.conf")}
    names |= {path.parent.name for path in home.glob("local/*/n*") if path.name[1:].isdigit()}
    return sorted(names.difference(live())) if names else []
