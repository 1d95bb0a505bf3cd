"""The files in a run's folder on this node: their names, and reading and writing them during the run and after.

`times.jsonl` records when output was written: a line for each check that found streams longer. A byte was written
between the last check that does not count it and the first that does. The streams themselves keep every byte as it
was written, and nothing else.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from typing import Any, Callable

from gpuops.agent.node import Node, Refusal, log, modified_at, open_append, read_json, remove_file, size_of, write_json
from gpuops.agent.process_table import Marker
from gpuops.agent.run_documents import LaunchSpec, RankRecord, Reason

MAX_TAIL_LINES = 40
MAX_TAIL_BYTES = 8192
COMMAND_TAIL_FACTOR = 4
"""How much longer the tail of a plain command is: everything it starts writes there, and a launcher of its own
(torchrun) writes more after the important words than one rank does."""
RESULT_FILE = "result.json"
PROGRESS_FILE = "progress.json"
MAX_PROGRESS_BYTES = 4096
SNAPSHOT_FILE = "snapshot"
"""Appears, or gets another mtime, when a snapshot is requested (run.snapshot_request)."""
HANDED_FILE = "handed.json"
"""Files that other nodes handed to this one: path -> the node that made it (peers.result_handover)."""
TIMES_FILE = "times.jsonl"
MIN_TIMES_INTERVAL_S = 1.0
TIMES_PER_AGE = 3600.0
"""The interval grows to this fraction of the run's age, so that the file of a day's run stays below some MB."""
USAGE_FILE = "usage.jsonl"
"""What the machine used meanwhile (usage.record)."""
_NOT_OUTPUT = ("events.jsonl", TIMES_FILE, USAGE_FILE)
_OF_THE_RUN = ("launcher.out", "launcher.err", *_NOT_OUTPUT)
_RANK_FILE = re.compile(r"([0-9]+)\.(out|err)")
_unwritten_results: dict[str, dict[str, Any]] = {}
"""Results that could not be written, by the run's folder: this machine's disk may be full."""


def run_marker(node: Node, run: str, cluster: str, index: int) -> Marker:
    return Marker(f"{cluster}-{run}-{index}", os.path.join(node.run(run), "stop"))


def run_markers(node: Node) -> list[Marker]:
    """The markers of all runs started here.

    The watchdog and mode `end` end processes by them: of a spec they need three fields, and no other field of a spec,
    which another version may have written, may keep them from it.
    """
    markers = []
    for name in node.runs():
        document = read_json(os.path.join(node.run(name), "spec.json"))
        if document is None:
            continue  # it was never started
        try:
            markers.append(run_marker(node, name, document["cluster"], document["node"]))
        except (KeyError, TypeError):
            log(f"the spec of run {name} names no cluster and node: its processes are found by descent only")
    return markers


def write_result(folder: str, document: dict[str, Any]) -> None:
    """Write how the run ended; in memory where the disk is full."""
    try:
        write_json(os.path.join(folder, RESULT_FILE), document)
        _unwritten_results.pop(folder, None)
    except OSError as error:
        _unwritten_results[folder] = document
        log(f"the result of {os.path.basename(folder)} is only in memory: {error}")


def read_result(folder: str) -> dict[str, Any] | None:
    """How the run ended; None while it has not ended."""
    document: dict[str, Any] | None = _unwritten_results.get(folder) or read_json(os.path.join(folder, RESULT_FILE))
    return document


def remove_result(folder: str) -> None:
    """Remove the result of an earlier attempt."""
    _unwritten_results.pop(folder, None)
    remove_file(os.path.join(folder, RESULT_FILE))


def read_end_reason(folder: str) -> Reason | None:
    """Why the run ended; None while it has not ended."""
    document = read_result(folder)
    return None if document is None else Reason.parse(document.get("reason") or {})


def read_spec(node: Node, name: str) -> LaunchSpec | None:
    """The run's launch spec; None where it was never started."""
    document = read_json(os.path.join(node.run(name), "spec.json"))
    return LaunchSpec.parse({"run": name, **document}) if document else None


def known_spec(node: Node, name: str) -> LaunchSpec:
    """The run's launch spec. Raises Refusal(`no-run`)."""
    spec = read_spec(node, name)
    if spec is None:
        raise unknown_run(name)
    return spec


def unknown_run(name: str) -> Refusal:
    return Refusal("no-run", f"no run '{name}' was started on this node", "`gpuops runs` lists them")


def read_records(folder: str) -> dict[int, RankRecord]:
    """The rank wrappers' records, by rank."""
    documents = filter(None, map(read_json, list_record_files(folder)))
    return {record.rank: record for record in map(RankRecord.parse, documents)}


def list_record_files(folder: str) -> list[str]:
    """Paths of the rank wrappers' records."""
    ranks = os.path.join(folder, "ranks")
    try:
        return [os.path.join(ranks, name) for name in os.listdir(ranks) if name.endswith(".json")]
    except OSError:
        return []


def list_streams(folder: str) -> dict[str, str]:
    """Paths of the run's existing streams, by name; the launcher's first, then by rank."""
    paths = {name: os.path.join(folder, name) for name in _OF_THE_RUN}
    paths = {name: path for name, path in paths.items() if os.path.exists(path)}
    try:
        names = os.listdir(os.path.join(folder, "ranks"))
    except OSError:
        names = []
    matches = [match for match in map(_RANK_FILE.fullmatch, names) if match]
    for match in sorted(matches, key=lambda match: (int(match[1]), match[2])):
        paths["rank" + match[0]] = os.path.join(folder, "ranks", match[0])
    return paths


def read_rank_progress(folder: str, rank: int) -> tuple[dict[str, float], float]:
    """What a rank last told of itself, and when (UTC seconds): in `$GPUOPS_PROGRESS.<rank>`; of rank 0, which tells for
    the whole run, in `$GPUOPS_PROGRESS`."""
    name = f"{PROGRESS_FILE}.{rank}" if rank else PROGRESS_FILE
    return read_progress(folder, name) or {}, modified_at(os.path.join(folder, name))


def read_progress(folder: str, name: str = PROGRESS_FILE) -> dict[str, float] | None:
    """The numbers, by name, in the document that the run's program last wrote to `$GPUOPS_PROGRESS`; None without."""
    path = os.path.join(folder, name)
    try:
        if os.path.getsize(path) > MAX_PROGRESS_BYTES:
            return None
    except OSError:
        return None
    document = read_json(path)
    if not isinstance(document, dict):
        return None
    return {name: value for name, value in document.items() if _is_number(value)} or None


def _is_number(value: Any) -> bool:
    """Whether it is a finite number that a float can hold."""
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:
        return False


def read_last_lines(path: str, factor: int = 1) -> str:
    """The last 40 lines of a file, at most 8 KiB; both limits times `factor`."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - factor * MAX_TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    return "".join(text.splitlines(keepends=True)[-factor * MAX_TAIL_LINES :])


def record_event(folder: str, kind: str, **data: Any) -> None:
    """Append an event to the run's events.jsonl. A full disk must not keep a run alive: then it is only logged."""
    try:
        append_line(os.path.join(folder, "events.jsonl"), json.dumps({"at": time.time(), "event": kind, **data}))
    except OSError as error:
        log(f"{os.path.basename(folder)}: the event {kind} {data} cannot be recorded: {error}")


def append_line(path: str, line: str) -> None:
    """Append a line to a file, in one write. Raises OSError."""
    with open_append(path) as file:
        file.write(line.encode() + b"\n")


class OutputTimes:
    """Writes the `times.jsonl` of one run."""

    def __init__(self, folder: str, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._clock = clock
        self._began = self._checked = clock()
        self._sizes: dict[str, int] = {}

    @property
    def total_bytes(self) -> int:
        """How much was written by the last check."""
        return sum(self._sizes.values())

    def check(self, last: bool = False) -> None:
        """Record which streams have grown, if a check is due or this is the `last` one."""
        now = self._clock()
        if not last and 0 <= now - self._checked < max(MIN_TIMES_INTERVAL_S, (now - self._began) / TIMES_PER_AGE):
            return
        self._checked = now
        sizes = {name: size_of(path) for name, path in list_streams(self._folder).items() if name not in _NOT_OUTPUT}
        grown = {name: size for name, size in sizes.items() if size > self._sizes.get(name, 0)}
        self._sizes.update(grown)
        try:
            if grown:
                append_line(os.path.join(self._folder, TIMES_FILE), json.dumps({"at": round(now, 2), "sizes": grown}))
        except OSError:
            pass  # a full disk: the output itself matters more
