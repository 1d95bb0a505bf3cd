"""How a run ended on this node: the decision from what its processes left, and the document of result.json.

The first failed rank is the reason of an end, then the first stop that was requested, then the launcher's exit code.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
import traceback
from typing import Any, Callable, Iterable, NamedTuple

from gpuops.agent import machine_resources, processes, run_files
from gpuops.agent.files.folder import free_bytes
from gpuops.agent.lease_clock import note_run_end
from gpuops.agent.node import Node, log, read_json
from gpuops.agent.run.stopping import StopRequest
from gpuops.agent.run_documents import LaunchSpec, Outcome, RankRecord, Reason, RunKind

MAX_OUT_LINES = 10
MAX_OUT_CHARACTERS = 1024
"""Limits of each stdout's part of a result: a run has many ranks."""


class RunEnd(NamedTuple):
    """How a run ended here, as far as its supervisor knows; the times are UTC seconds."""

    outcome: Outcome
    reason: Reason
    started: float | None
    returncode: int | None = None
    """The launcher's, as Popen gives it; None: it was not seen to end."""
    stopped_at: float = float("inf")
    """When this node began to end the run."""
    left: int | None = 0
    """How many processes could not be ended; None: unknown."""


def first_failure(records: Iterable[RankRecord], before: float) -> RankRecord | None:
    """The record of the rank that failed first, before our first signal (`before`: UTC seconds or infinite)."""
    failed = [(record.ended, record.rank, record) for record in records if record.has_failed and record.ended]
    ended, _, record = min(failed, default=(before, 0, None))
    return record if ended < before else None


def decide_outcome(
    kind: RunKind, returncode: int | None, records: Iterable[RankRecord], stop: StopRequest | None, acted_at: float
) -> tuple[Outcome, Reason]:
    """Outcome and reason. `returncode` is the launcher's, as Popen gives it; None: it was not seen to end.

    `acted_at`: when the first signal of a stop was sent (UTC seconds). A rank that failed before that is the reason.
    """
    failed = first_failure(records, acted_at)
    if failed is not None:
        say = f"rank {failed.rank} {describe_end(failed.code, failed.signal)}"
        return Outcome.FAILED, Reason("rank", say, rank=failed.rank)
    if stop is not None:
        return stop.outcome, stop.reason
    is_command = kind == RunKind.COMMAND
    reason_kind, program = ("command", "the command") if is_command else ("launcher", "torchrun")
    if returncode == 0:
        return Outcome.DONE, Reason(reason_kind, "it ended by itself")
    return Outcome.FAILED, Reason(reason_kind, f"{program} {describe_end(*split_returncode(returncode))}")


def split_returncode(returncode: int | None) -> tuple[int | None, int | None]:
    """Popen's return code as (exit code, signal)."""
    if returncode is None:
        return None, None
    return (None, -returncode) if returncode < 0 else (returncode, None)


def describe_end(code: int | None, sign: int | None) -> str:
    """`failed with exit code 3`, `was ended by SIGKILL`."""
    return f"failed with exit code {code}" if sign is None else f"was ended by {signal_name(sign)}"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def result_document(
    spec: LaunchSpec, folder: str, end: RunEnd, has_joined: Callable[[int], bool | None]
) -> dict[str, Any]:
    """The document of result.json. `has_joined`: whether a rank has joined the others; None: unknown.

    Where the run's files cannot be described it has no ranks: whatever a run leaves, its client learns how it ended.
    """
    code, sign = split_returncode(end.returncode)
    document = {
        "run": spec.run,
        "node": spec.node,
        "outcome": end.outcome,
        "reason": end.reason.document(),
        "started": end.started,
        "ended": time.time(),
        "launcher": {"code": code, "signal": sign},
        "ranks": [],
        "left": end.left,
    }
    try:
        document.update(_describe_files(spec, folder, end, has_joined))
    except Exception:
        log(f"the files of {spec.run} cannot be described\n{traceback.format_exc()}")
    return document


def _describe_files(
    spec: LaunchSpec, folder: str, end: RunEnd, has_joined: Callable[[int], bool | None]
) -> dict[str, Any]:
    records = run_files.read_records(folder)
    is_command = spec.kind == RunKind.COMMAND
    expected = () if is_command else range(spec.rank_base, spec.rank_base + spec.ranks)
    factor = run_files.COMMAND_TAIL_FACTOR if is_command else 1
    return {
        "ranks": [
            rank_document(
                folder, records.get(rank) or RankRecord(rank, rank - spec.rank_base), end.stopped_at, has_joined(rank)
            )
            for rank in sorted({*expected, *records})
        ],
        "tail": run_files.read_last_lines(os.path.join(folder, "launcher.err"), factor),
        "out": read_last_output(os.path.join(folder, "launcher.out")),
        "progress": run_files.read_progress(folder),
        "disk_free": free_bytes(folder),
    }


def rank_document(folder: str, record: RankRecord, stopped_at: float, joined: bool | None) -> dict[str, Any]:
    """One rank's part of result.json. `stopped_at`: when this node began to end the run (UTC seconds)."""
    return {
        "rank": record.rank,
        "local": record.local,
        "code": record.code,
        "signal": record.signal,
        "started": record.started,
        "ended": record.ended,
        "joined": joined,
        "oom": record.oom,
        "after_stop": record.ended is not None and record.ended >= stopped_at,
        "error": record.error,
        "tail": run_files.read_last_lines(os.path.join(folder, "ranks", f"{record.rank}.err")),
        "out": read_last_output(os.path.join(folder, "ranks", f"{record.rank}.out")),
    }


def read_last_output(path: str) -> str:
    """The end of a stdout: of use where nothing went wrong, or where a program prints its errors there."""
    return "".join(run_files.read_last_lines(path).splitlines(keepends=True)[-MAX_OUT_LINES:])[-MAX_OUT_CHARACTERS:]


def settle_lost_runs(node: Node) -> None:
    """Write a result for runs whose agent died before their end: `lost`, once none of their processes is left.

    Never raises: a run that cannot be settled must not keep the agent from serving the others' results.
    """
    for name in node.runs():
        try:
            if run_files.read_result(node.run(name)) is None:
                _settle_lost_run(node, name)
        except Exception:
            log(f"the run {name} could not be settled\n{traceback.format_exc()}")
    note_run_end(node)


def _settle_lost_run(node: Node, name: str) -> None:
    folder = node.run(name)
    spec = run_files.read_spec(node, name)
    if not spec:
        shutil.rmtree(folder, ignore_errors=True)  # the agent was killed before it started a process
        return
    marker = run_files.run_marker(node, spec.run, spec.cluster, spec.node)
    left = processes.end_all(lambda: processes.descendant_processes([marker]))
    reason = Reason("agent", _describe_loss(node))
    log(f"the run {name} is lost: {reason.say}")
    run_files.record_event(folder, "ended", outcome=Outcome.LOST, left=left, reason=reason.document())
    started = (read_json(node.path("live.json")) or {}).get("started")
    end = RunEnd(Outcome.LOST, reason, started, left=left)
    run_files.write_result(folder, result_document(spec, folder, end, lambda _rank: None))


def _describe_loss(node: Node) -> str:
    booted = (read_json(node.path("live.json")) or {}).get("boot_id")
    if booted is not None and booted != machine_resources.boot_id():
        return "the machine was restarted while the run was on"
    return "gpuops' agent on this node was killed while the run was on"
