"""Verb `tail`: a run's streams as bytes from given offsets, up to the last byte."""

from __future__ import annotations

import base64
import os
import time
from typing import Any, Iterator

from gpuops.agent import run_files
from gpuops.agent.node import BEAT_INTERVAL_S, Emit, Node, size_of
from gpuops.agent.run import run_verbs

CHUNK_BYTES = 65536
MIN_POLL_INTERVAL_S, MAX_POLL_INTERVAL_S = 0.05, 0.2
QUIET_FACTOR = 1.25
"""The interval grows by this while a run writes nothing: to a quarter of the time since it last wrote."""


def tail(node: Node, args: dict[str, Any], emit: Emit) -> dict[str, Any]:
    """Items `{"s", "o", "b64"}` and `{"beat"}`; answers `{"result"}`. Raises Refusal(`no-run`)."""
    folder = node.run(args["run"])
    if not os.path.isdir(folder):
        raise run_files.unknown_run(args["run"])
    offsets = {str(name): int(offset) for name, offset in (args.get("offsets") or {}).items()}
    last_beat = time.monotonic()
    pause_s = MIN_POLL_INTERVAL_S
    while True:
        # Checked before reading: what was written before the run's end is then read below.
        is_over = not args.get("follow") or run_verbs.run_state(node, args["run"]) != "running"
        pause_s = min(MAX_POLL_INTERVAL_S, QUIET_FACTOR * pause_s)
        for item in read_pieces(folder, offsets):
            emit(item)
            pause_s = MIN_POLL_INTERVAL_S
        if is_over:
            return {"result": run_verbs.run_result(node, args["run"])}
        if time.monotonic() - last_beat >= BEAT_INTERVAL_S:
            emit({"beat": time.time()})
            last_beat = time.monotonic()
        run_verbs.await_end(args["run"], pause_s)


def read_pieces(folder: str, offsets: dict[str, int]) -> Iterator[dict[str, Any]]:
    """The bytes beyond `offsets`, which are moved along. A growing file is read to the end that it has now, so that
    every stream gets its turn."""
    for name, path in run_files.list_streams(folder).items():
        end = size_of(path)
        while offsets.get(name, 0) < end:
            offset = offsets.get(name, 0)
            data = _read(path, offset, min(CHUNK_BYTES, end - offset))
            if not data:
                break
            offsets[name] = offset + len(data)
            yield {"s": name, "o": offset, "b64": base64.b64encode(data).decode("ascii")}


def _read(path: str, offset: int, length: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(length)
