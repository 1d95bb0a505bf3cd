"""Which files of a run are stored elsewhere: those that a client would download, and those lost with the node."""

from __future__ import annotations

import os
from typing import Any, Iterator, Sequence

from gpuops.agent import run_files
from gpuops.agent.files import output_files
from gpuops.agent.files.folder import path_bytes
from gpuops.agent.node import Node
from gpuops.agent.result_storage.streamed_archive import Item
from gpuops.agent.run_documents import LaunchSpec

LOGS = "logs/"
OUT = "out/"
UNNAMED_FILE_BYTES, UNNAMED_FILES = 100_000_000, 1000
"""Limits of files that no pattern names, on a node that outlives its run; on one that ends with it, all are stored."""
SHORT_LOG_BYTES = 10_000_000
"""Longer logs come last in an archive."""


def list_items(node: Node, spec: LaunchSpec, folder: str) -> Iterator[Item]:
    """All files: the result, the logs, then what the run made. `folder`: the run's own."""
    named = {run_files.RESULT_FILE: os.path.join(folder, run_files.RESULT_FILE)}
    named.update({LOGS + name: path for name, path in run_files.list_streams(folder).items()})
    for name, path in named.items():
        if os.path.exists(path):
            seen = os.stat(path)
            yield Item(os.fsencode(path), name, seen.st_size, seen.st_mtime_ns)
    tree = os.fsencode(node.tree(spec.tree))
    for path, size, mtime_ns in _outputs(node, spec):
        yield Item(os.path.join(tree, path_bytes(path)), OUT + path, size, mtime_ns)


def _outputs(node: Node, spec: LaunchSpec) -> Iterator[Sequence[Any]]:
    """(path, size, mtime in ns) of files that match the patterns, then of files that no pattern names."""
    question = {"run": spec.run, "patterns": spec.outs}
    yield from output_files.outs(node, question, lambda _item: None)["files"]
    unnamed = output_files.list_unnamed(node, question)["files"]
    if not (spec.sink and spec.sink.end):
        unnamed = [row for row in unnamed if row[1] <= UNNAMED_FILE_BYTES][:UNNAMED_FILES]
    for row in unnamed:
        yield row[:3]


def newest_first(items: Sequence[Item]) -> list[Item]:
    """The result, the newest output, short logs, other outputs, long logs: the machine may end before all are sent.

    A snapshot's files were written one after another, so they stay together in this order.
    """
    newest = sorted((item for item in items if item.name.startswith(OUT)), key=lambda item: -item.mtime_ns)
    logs = [item for item in items if item.name.startswith(LOGS)]
    result = [item for item in items if item.name == run_files.RESULT_FILE]
    short = [item for item in logs if item.size <= SHORT_LOG_BYTES]
    return [*result, *newest[:1], *short, *newest[1:], *(item for item in logs if item.size > SHORT_LOG_BYTES)]
