"""How a run is stopped and how it ended on this node: pure decisions from what was seen, and result.json.

The first failed rank is the reason of an end, then the first stop that was requested, then the launcher's exit code.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from typing import Any, Callable, Iterable, Mapping, NamedTuple

from gpuops.agent import machine, processes, run_files
from gpuops.agent.files.folder import free_bytes
from gpuops.agent.node import Node, log, read_json, remove_file, write_json

KILL_DELAY_S = 2.0
"""Time between SIGTERM and SIGKILL in a stop `now`."""
OUT_LINES = 10
OUT_CHARACTERS = 1024
"""Limits of each stdout's part of a result: a run has many ranks."""


class Stop(NamedTuple):
    """Why this node stops its run. The first request counts."""

    outcome: str
    """`stopped`, or `lost` where it was not requested."""
    reason: Mapping[str, Any]


class Step(NamedTuple):
    after_s: float
    do: str
    """`ask` (stop file, SIGUSR1), `term` or `kill`."""


def stop_steps(how: str, grace_s: float, within_s: float | None = None) -> list[Step]:
    """The steps of a stop, `graceful` or `now`, the last no later than `within_s` where that is possible."""
    if how == "graceful":
        return shorten_steps([Step(0.0, "ask"), Step(grace_s, "term"), Step(2 * grace_s, "kill")], within_s)
    return [Step(0.0, "term"), Step(KILL_DELAY_S, "kill")]


def shorten_steps(steps: Iterable[Step], within_s: float | None) -> list[Step]:
    """The same steps, the last after `within_s` at most. The time after SIGTERM is shortened first, to KILL_DELAY_S."""
    if within_s is None:
        return list(steps)
    latest = {"ask": within_s, "term": max(0.0, within_s - KILL_DELAY_S), "kill": max(KILL_DELAY_S, within_s)}
    return [Step(min(step.after_s, latest[step.do]), step.do) for step in steps]


def first_failure(records: Iterable[Mapping[str, Any]], before: float) -> Mapping[str, Any] | None:
    """The record of the rank that failed first, before our first signal (`before`: UTC seconds or infinite)."""
    failed = [record for record in records if is_failure(record) and record["ended"] < before]
    return min(failed, key=lambda record: record["ended"], default=None)


def is_failure(record: Mapping[str, Any]) -> bool:
    return record.get("ended") is not None and (record.get("code") != 0 or record.get("signal") is not None)


def decide_outcome(
    kind: str, returncode: int | None, records: Iterable[Mapping[str, Any]], stop: Stop | None, acted: float
) -> tuple[str, dict[str, Any]]:
    """Outcome and reason. `returncode` is the launcher's, as Popen gives it; None: it was not seen to end.

    `acted`: when the first signal of a stop was sent (UTC seconds). A rank that failed before that is the reason.
    """
    failed = first_failure(records, acted)
    if failed is not None:
        return "failed", {
            "kind": "rank",
            "rank": failed["rank"],
            "say": f"rank {failed['rank']} {describe_end(failed)}",
        }
    if stop is not None:
        return stop.outcome, dict(stop.reason)
    if returncode == 0:
        return "done", {"kind": "command" if kind == "command" else "launcher", "say": "it ended by itself"}
    code, sign = split_returncode(returncode)
    if kind == "command":
        return "failed", {"kind": "command", "say": f"the command {describe_end({'code': code, 'signal': sign})}"}
    return "failed", {"kind": "launcher", "say": f"torchrun {describe_end({'code': code, 'signal': sign})}"}


def split_returncode(returncode: int | None) -> tuple[int | None, int | None]:
    """Popen's return code as (exit code, signal)."""
    if returncode is None:
        return None, None
    return (None, -returncode) if returncode < 0 else (returncode, None)


def describe_end(record: Mapping[str, Any]) -> str:
    """`failed with exit code 3`, `was ended by SIGKILL`."""
    sign = record.get("signal")
    if sign is not None:
        return f"was ended by {signal_name(sign)}"
    return f"failed with exit code {record.get('code')}"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def result_document(
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
    """The document of result.json. `stopped`: when this node began to end the run (UTC seconds); `left`: how many
    processes could not be ended."""
    records = run_files.read_records(folder)
    base = spec.get("rank_base") or 0
    expected = range(base, base + (spec.get("ranks") or 0)) if spec["kind"] == "torchrun" else ()
    code, sign = split_returncode(returncode)
    factor = run_files.COMMAND_TAIL_FACTOR if spec["kind"] == "command" else 1
    return {
        "run": spec["run"],
        "node": spec["node"],
        "outcome": outcome,
        "reason": dict(reason),
        "started": started,
        "ended": time.time(),
        "launcher": {"code": code, "signal": sign},
        "ranks": [
            rank_document(folder, rank, rank - base, records.get(rank), stopped, joined(rank))
            for rank in sorted({*expected, *records})
        ],
        "tail": run_files.read_last_lines(os.path.join(folder, "launcher.err"), factor),
        "out": read_last_output(os.path.join(folder, "launcher.out")),
        "progress": run_files.read_progress(folder),
        "disk_free": free_bytes(folder),
        "left": left,
    }


def rank_document(
    folder: str, rank: int, local: int, record: Mapping[str, Any] | None, stopped: float, joined: bool | None
) -> dict[str, Any]:
    """One rank's part; `record` is None where the rank never began."""
    known = record or {}
    ended = known.get("ended")
    return {
        "rank": rank,
        "local": known.get("local", local),
        "code": known.get("code"),
        "signal": known.get("signal"),
        "started": known.get("started"),
        "ended": ended,
        "joined": joined,
        "oom": known.get("oom", False),
        "after_stop": ended is not None and ended >= stopped,
        "error": known.get("error"),
        "tail": run_files.read_last_lines(os.path.join(folder, "ranks", f"{rank}.err")),
        "out": read_last_output(os.path.join(folder, "ranks", f"{rank}.out")),
    }


def read_last_output(path: str) -> str:
    """The end of a stdout: of use where nothing went wrong, or where a program prints its errors there."""
    return "".join(run_files.read_last_lines(path).splitlines(keepends=True)[-OUT_LINES:])[-OUT_CHARACTERS:]


def settle_lost_runs(node: Node) -> None:
    """Write a result for runs whose agent died before their end: `lost`, once none of their processes is left."""
    for name in node.runs():
        folder = node.run(name)
        if run_files.read_result(folder) is not None:
            continue
        spec = run_files.read_spec(node, name)
        if not spec:
            shutil.rmtree(folder, ignore_errors=True)  # the agent was killed before it started a process
            continue
        marker = run_files.run_marker(node, spec)
        left = processes.end_all(lambda marker=marker: processes.descendant_processes([marker]))  # type: ignore[misc]
        reason = {"kind": "agent", "say": _describe_loss(node)}
        log(f"the run {name} is lost: {reason['say']}")
        run_files.record_event(folder, "ended", outcome="lost", left=left, reason=reason)
        started = (read_json(node.path("live.json")) or {}).get("started")
        parts = result_document(spec, folder, "lost", reason, started, None, float("inf"), lambda _rank: None, left)
        write_json(os.path.join(folder, "result.json"), parts)
    remove_file(node.path("live.json"))


def _describe_loss(node: Node) -> str:
    booted = (read_json(node.path("live.json")) or {}).get("boot_id")
    if booted is not None and booted != machine.boot_id():
        return "the machine was restarted while the run was on"
    return "gpuops' agent on this node was killed while the run was on"
