"""Where the ranks of a run would begin, from what each node has of earlier runs. Pure.

A script finds a snapshot or not, on each node for itself: ranks must not begin at different places.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuops.sync.merged_outputs_record import Stamp

STATE_NAME = re.compile(
    r"(.*\.(pt|pth|tar|ckpt|safetensors|distcp|bin|npz|pkl|pickle|h5|hdf5|msgpack)|\.metadata)", re.I
)
STATE_FOLDER = re.compile(r"checkpoint|ckpt|snapshot|global_step|latest", re.I)
"""What a file or a folder above it is called that a script goes on from. Other results (predictions, pictures) may lie
on one node alone: no script begins elsewhere for want of one."""
NO_STATE = ("events.out.tfevents*", "*.log", "*.csv", "*.tsv", "*.jsonl", "*.png", "*.jpg", "*.svg", "*.pdf", "*.html")
"""Logs, curves and pictures, wherever they lie."""
NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class EarlierFile:
    """One node's version of a file that a run made, or that was put back from one (`restored`)."""

    size: int
    mtime_ns: int
    run: str
    """Empty where no run is known: it was put there by hand."""
    restored: bool = False

    @property
    def stamp(self) -> Stamp:
        return self.size, self.mtime_ns


NodeFiles = Mapping[str, EarlierFile]
"""What one node has, by path."""


@dataclass(frozen=True)
class Uneven:
    """A file that some nodes lack, or have only an older version of."""

    path: str
    run: str
    """The latest run that made it."""
    holders: tuple[int, ...]
    """Nodes that have that run's version."""
    lacking: tuple[int, ...]


@dataclass(frozen=True)
class Start:
    """Where a run would begin."""

    files: Sequence[tuple[str, str]]
    """(path, run) of what it may go on from, the latest run's first; the run is the latest that made the file."""
    uneven: Sequence[Uneven]
    is_one_state: bool
    """Whether the uneven files together are what one run left, or one node has: then they may be put on every node."""
    outdated: Sequence[Uneven] = ()
    """Files that were put back on some nodes, and that a later run has since removed on others."""


def decide_start(nodes: Sequence[NodeFiles], runs: Sequence[str]) -> Start:
    """Compare what the nodes have. `runs`: the names of all runs, the oldest first.

    Of each path the latest run's version counts; where that run wrote one on several nodes, each keeps its own. Files
    that only say in their name which rank or node they are of lie where they belong.
    """
    age = {run: number for number, run in enumerate(runs, 1)}
    newest_made = [max((age.get(one.run, 0) for one in its.values() if not one.restored), default=0) for its in nodes]
    latest: dict[str, str] = {}
    uneven, outdated = [], []
    for path in sorted({path for files in nodes for path in files if may_be_resumed(path)}):
        versions = {node: files[path].run for node, files in enumerate(nodes) if path in files}
        run = max(versions.values(), key=lambda name: age.get(name, 0))
        if run not in age:
            continue  # nobody knows who made it: it is as a person wants it
        holders = tuple(node for node, its in versions.items() if its == run)
        lacking = tuple(node for node in range(len(nodes)) if node not in holders)
        one = Uneven(path, run, holders, lacking)
        is_put_back = all(nodes[node][path].restored for node in holders)
        if is_put_back and any(newest_made[node] > age[run] for node in lacking):
            outdated.append(one)
            continue
        latest[path] = run
        if lacking:
            uneven.append(one)
    of_ranks = find_rank_files(uneven, len(nodes))
    uneven = [one for one in uneven if one.path not in of_ranks]
    is_one_run = len({one.run for one in uneven}) <= 1
    has_all = set(range(len(nodes))).intersection(*(one.holders for one in uneven))
    files = sorted(latest.items(), key=lambda item: (-age[item[1]], item[0]))
    return Start(files, uneven, is_one_run or bool(has_all), outdated)


def may_be_resumed(path: str) -> bool:
    """Whether a script may go on from a file of this name."""
    name = path.rpartition("/")[2]
    if any(fnmatch.fnmatchcase(name, pattern) for pattern in NO_STATE):
        return False
    return bool(STATE_NAME.fullmatch(name) or STATE_FOLDER.search(path))


def find_rank_files(uneven: Iterable[Uneven], count: int) -> set[str]:
    """Paths that differ by a rank's or a node's number alone: `rank0.pt` on node0 and `rank1.pt` on node1.

    Of one run, on all of `count` nodes, and numbered in the order of the nodes without a gap: `step-5.pt` and
    `step-10.pt` are not.
    """
    families: dict[tuple[str, str], dict[str, tuple[int, int]]] = {}
    for one in uneven:
        if len(one.holders) == 1:
            for number in NUMBER.finditer(one.path):
                masked = one.path[: number.start()] + "#" + one.path[number.end() :]
                families.setdefault((one.run, masked), {})[one.path] = (one.holders[0], int(number[0]))
    found: set[str] = set()
    for members in families.values():
        placed = sorted(members.values())
        if [number for _, number in placed] == list(range(len(placed))) and len({node for node, _ in placed}) == count:
            found |= members.keys()
    return found
