"""What lies in a run's folder on this node, for those who read it while the run is on and after."""

from __future__ import annotations

import json
import math
import os
import re
import time
from typing import Any, Mapping

from gpuops.agent.node import Node, read_json
from gpuops.agent.processes import Marker

TAIL_LINES = 40
TAIL_BYTES = 8192
COMMAND_TIMES = 4
"""How much longer the tail of a plain command is: all it starts writes there, and a launcher of its own (torchrun)
says more after the words that matter than one rank does."""
PROGRESS = "progress.json"
PROGRESS_BYTES = 4096
SNAPSHOT = "snapshot"
"""Appears, or is written anew, when a snapshot is asked for (saving.py)."""
_OF_THE_RUN = ("launcher.out", "launcher.err", "events.jsonl", "times.jsonl")
_RANK_FILE = re.compile(r"([0-9]+)\.(out|err)")


def marker(node: Node, spec: Mapping[str, Any]) -> Marker:
    name = f"{spec['cluster']}-{spec['run']}-{spec['node']}"
    return Marker(name, os.path.join(node.run(spec["run"]), "stop"))


def markers(node: Node) -> list[Marker]:
    """The markers of every run that was ever started here."""
    specs = (read_json(node.path("runs", name, "spec.json")) for name in node.runs())
    return [marker(node, spec) for spec in specs if spec]


def result(folder: str) -> dict[str, Any] | None:
    """How the run ended; None while it has not."""
    found: dict[str, Any] | None = read_json(os.path.join(folder, "result.json"))
    return found


def records(folder: str) -> dict[int, dict[str, Any]]:
    """What the rank wrappers noted, by rank; `ended` is None while the rank lives."""
    found = map(read_json, record_files(folder))
    return {record["rank"]: record for record in found if record}


def record_files(folder: str) -> list[str]:
    """The files that the rank wrappers' notes lie in."""
    ranks = os.path.join(folder, "ranks")
    try:
        return [os.path.join(ranks, name) for name in os.listdir(ranks) if name.endswith(".json")]
    except OSError:
        return []


def streams(folder: str) -> dict[str, str]:
    """The run's streams that exist, by name, with their files; the launcher's first, then by rank."""
    found = {name: os.path.join(folder, name) for name in _OF_THE_RUN}
    found = {name: path for name, path in found.items() if os.path.exists(path)}
    try:
        names = os.listdir(os.path.join(folder, "ranks"))
    except OSError:
        names = []
    matches = [match for match in map(_RANK_FILE.fullmatch, names) if match]
    for match in sorted(matches, key=lambda match: (int(match[1]), match[2])):
        found["rank" + match[0]] = os.path.join(folder, "ranks", match[0])
    return found


def progress(folder: str) -> dict[str, float] | None:
    """What the run's own program last said of how far it is (`$GPUOPS_PROGRESS`): the numbers in it, by name."""
    path = os.path.join(folder, PROGRESS)
    try:
        if os.path.getsize(path) > PROGRESS_BYTES:
            return None
    except OSError:
        return None
    found = read_json(path)
    if not isinstance(found, dict):
        return None
    return {name: value for name, value in found.items() if _is_number(value)} or None


def _is_number(value: Any) -> bool:
    """Whether it is one that a float holds, too."""
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:
        return False


def last_lines(path: str, times: int = 1) -> str:
    """The last 40 lines of a file, at most 8 KiB of it; or so many times as much."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - times * TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    return "".join(text.splitlines(keepends=True)[-times * TAIL_LINES :])


def event(folder: str, kind: str, **data: Any) -> None:
    """Append a line to the run's events.jsonl, in one write."""
    append(os.path.join(folder, "events.jsonl"), json.dumps({"at": time.time(), "event": kind, **data}))


def append(path: str, line: str) -> None:
    """Append a line to a file, in one write."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(fd, line.encode() + b"\n")
    finally:
        os.close(fd)
