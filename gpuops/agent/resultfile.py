"""result.json: how a run ended on this node, put together from what its processes left."""

from __future__ import annotations

import os
import shutil
import time
from typing import Any, Callable, Mapping

from gpuops.agent import lease, procs, runfiles
from gpuops.agent.node import Node, log, read_json, write_json
from gpuops.agent.outcome import split
from gpuops.agent.treefolder import free_bytes

OUT_LINES = 10
OUT_CHARACTERS = 1024
"""What a result tells of each stdout: a run has many ranks."""


def result(
    spec: Mapping[str, Any],
    folder: str,
    outcome: str,
    reason: Mapping[str, Any],
    started: float | None,
    returncode: int | None,
    stopped: float,
    joined: Callable[[int], bool | None],
    left: int,
) -> dict[str, Any]:
    """`stopped`: when this node began to end the run (UTC seconds); `left`: processes that could not be ended."""
    records = runfiles.records(folder)
    base = spec.get("rank_base") or 0
    expected = range(base, base + (spec.get("ranks") or 0)) if spec["kind"] == "torchrun" else ()
    code, sign = split(returncode)
    times = runfiles.COMMAND_TIMES if spec["kind"] == "command" else 1
    return {
        "run": spec["run"],
        "node": spec["node"],
        "outcome": outcome,
        "reason": dict(reason),
        "started": started,
        "ended": time.time(),
        "launcher": {"code": code, "signal": sign},
        "ranks": [
            rank_result(folder, rank, rank - base, records.get(rank), stopped, joined(rank))
            for rank in sorted({*expected, *records})
        ],
        "tail": runfiles.last_lines(os.path.join(folder, "launcher.err"), times),
        "out": last_out(os.path.join(folder, "launcher.out")),
        "progress": runfiles.progress(folder),
        "disk_free": free_bytes(folder),
        "left": left,
    }


def rank_result(
    folder: str, rank: int, local: int, record: Mapping[str, Any] | None, stopped: float, joined: bool | None
) -> dict[str, Any]:
    """One rank's part; `record` is None when it never began."""
    noted = record or {}
    ended = noted.get("ended")
    return {
        "rank": rank,
        "local": noted.get("local", local),
        "code": noted.get("code"),
        "signal": noted.get("signal"),
        "started": noted.get("started"),
        "ended": ended,
        "joined": joined,
        "oom": noted.get("oom", False),
        "after_stop": ended is not None and ended >= stopped,
        "error": noted.get("error"),
        "tail": runfiles.last_lines(os.path.join(folder, "ranks", f"{rank}.err")),
        "out": last_out(os.path.join(folder, "ranks", f"{rank}.out")),
    }


def last_out(path: str) -> str:
    """What was printed last: the last of it matters where nothing went wrong, or where errors are printed."""
    return "".join(runfiles.last_lines(path).splitlines(keepends=True)[-OUT_LINES:])[-OUT_CHARACTERS:]


def settle(node: Node) -> None:
    """Give the runs that an earlier agent did not see to their end a result: lost, once nothing of them is left."""
    for name in node.runs():
        folder = node.run(name)
        if runfiles.result(folder) is not None:
            continue
        spec = read_json(os.path.join(folder, "spec.json"))
        if spec is None:
            shutil.rmtree(folder, ignore_errors=True)  # killed before it could start anything
            continue
        marker = runfiles.marker(node, spec)
        left = procs.end_all(lambda marker=marker: procs.below([marker]))  # type: ignore[misc]
        reason = {"kind": "agent", "say": _why(node)}
        log(f"the run {name} is lost: {reason['say']}")
        runfiles.event(folder, "ended", outcome="lost", left=left, reason=reason)
        started = (read_json(node.path("live.json")) or {}).get("started")
        parts = result(spec, folder, "lost", reason, started, None, float("inf"), lambda _rank: None, left)
        write_json(os.path.join(folder, "result.json"), parts)
    if os.path.exists(node.path("live.json")):
        os.unlink(node.path("live.json"))


def _why(node: Node) -> str:
    booted = (read_json(node.path("live.json")) or {}).get("boot_id")
    if booted is not None and booted != lease.boot_id():
        return "the machine was restarted while the run was on"
    return "gpuops' agent on this node was killed while the run was on"
