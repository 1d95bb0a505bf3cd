"""What of a run is kept elsewhere: what a client would fetch, and what would go with the node."""

from __future__ import annotations

import os
from typing import Any, Iterator, Mapping, Sequence

from gpuops.agent import run_files
from gpuops.agent.files import outputs
from gpuops.agent.files.folder import raw
from gpuops.agent.node import Node
from gpuops.agent.retain.virtual_tar import Item

RESULT = "result.json"


LOGS = "logs/"


OUT = "out/"


SMALL = 100_000_000


MANY = 1000
"""Of a node that stays: files that nobody named are kept up to this size (bytes), and up to so many; of one that
ends with its run, all."""


SHORT = 10_000_000
"""A log of so many bytes keeps nothing waiting."""


def listing(node: Node, spec: Mapping[str, Any], folder: str) -> Iterator[Item]:
    """Everything, what says most first. `folder`: the run's own."""
    named = {RESULT: os.path.join(folder, RESULT)}
    named.update({LOGS + name: path for name, path in run_files.streams(folder).items()})
    for name, path in named.items():
        if os.path.exists(path):
            seen = os.stat(path)
            yield Item(os.fsencode(path), name, seen.st_size, seen.st_mtime_ns)
    tree = os.fsencode(node.tree(spec["tree"]))
    for path, size, mtime_ns in _made(node, spec):
        yield Item(os.path.join(tree, raw(path)), OUT + path, size, mtime_ns)


def _made(node: Node, spec: Mapping[str, Any]) -> Iterator[Sequence[Any]]:
    question = {"run": spec["run"], "patterns": spec.get("outs") or []}
    yield from outputs.outs(node, question, lambda _item: None)["files"]
    unnamed = outputs.listing(node, question)["files"]
    if not spec["sink"].get("end"):
        unnamed = [row for row in unnamed if row[1] <= SMALL][:MANY]
    for row in unnamed:
        yield row[:3]


def newest_first(items: Sequence[Item]) -> list[Item]:
    """How it ended, the newest of what it made, its logs: in this order for who may not have the time for all.

    What a snapshot consists of was written one after another, so that its files stand together.
    """
    made = sorted((item for item in items if item.name.startswith(OUT)), key=lambda item: -item.mtime_ns)
    logs = [item for item in items if item.name.startswith(LOGS)]
    result = [item for item in items if item.name == RESULT]
    short = [item for item in logs if item.size <= SHORT]
    return [*result, *made[:1], *short, *made[1:], *(item for item in logs if item.size > SHORT)]
