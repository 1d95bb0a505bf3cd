"""Verb `tail`: a run's streams as bytes from given offsets, to its last byte."""

from __future__ import annotations

import base64
import os
import time
from typing import Any, Callable, Iterator

from gpuops.agent import run_files
from gpuops.agent.node import Node, Refusal
from gpuops.agent.run import registry

CHUNK = 65536
LOOK_S = 0.05
LATE_LOOK_S = 0.2
"""A run that says nothing is looked at less and less often, up to this."""
BEAT_S = 5.0


def tail(node: Node, args: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Items `{"s", "o", "b64"}` and `{"beat"}`; answers `{"result"}`. Raises Refusal(`no-run`)."""
    folder = node.run(args["run"])
    if not os.path.isdir(folder):
        raise Refusal("no-run", f"no run '{args['run']}' was started on this node", "`gpuops runs` lists them")
    offsets = {str(name): int(offset) for name, offset in (args.get("offsets") or {}).items()}
    beat = time.monotonic()
    pause_s = LOOK_S
    while True:
        # Asked before reading: what is written before a run's end is read below.
        over = not args.get("follow") or registry.state(node, args["run"]) != "running"
        pause_s = min(LATE_LOOK_S, 2 * pause_s)
        for item in pieces(folder, offsets):
            emit(item)
            pause_s = LOOK_S
        if over:
            return {"result": registry.result(node, args["run"])}
        if time.monotonic() - beat >= BEAT_S:
            emit({"beat": time.time()})
            beat = time.monotonic()
        time.sleep(pause_s)


def pieces(folder: str, offsets: dict[str, int]) -> Iterator[dict[str, Any]]:
    """What lies beyond `offsets`, which move along. A file that grows all the while gets no more than its turn."""
    for name, path in run_files.streams(folder).items():
        end = _size(path)
        while offsets.get(name, 0) < end:
            offset = offsets.get(name, 0)
            data = _read(path, offset, min(CHUNK, end - offset))
            if not data:
                break
            offsets[name] = offset + len(data)
            yield {"s": name, "o": offset, "b64": base64.b64encode(data).decode("ascii")}


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _read(path: str, offset: int, length: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(length)
