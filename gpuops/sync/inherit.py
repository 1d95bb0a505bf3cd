"""Files that a node which went handed to one that stayed: at home they are what the first one made, too.

What came home of it before is older, and a resumed run would be given that: the pointer to a snapshot before the last.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuops.sync.memory import Arrival, Memory
from gpuops.sync.outputs import OutFolder
from gpuops.sync.run_folder import RunHome


def inherit(home: RunHome, handed: Mapping[int, Mapping[str, int]]) -> None:
    """`handed`: by the node that holds them, path -> the node whose files they are. To be called once they are home."""
    out = OutFolder(home)
    arrivals = inherited(out.memory(), handed)
    if arrivals:
        with out.staging() as staging:
            out.publish(arrivals, staging)


def inherited(memory: Memory, handed: Mapping[int, Mapping[str, int]]) -> list[Arrival]:
    """What counts as come home from the nodes that went; what did come from them later than that stays."""
    found = []
    for holder, files in sorted(handed.items()):
        for path, node in sorted(files.items()):
            versions = memory.held.get(path, {})
            held, own = versions.get(holder), versions.get(node)
            if held is not None and (own is None or own.stamp[1] < held.stamp[1]):
                found.append(Arrival(node, path, held.stamp, held.sha256))
    return found
